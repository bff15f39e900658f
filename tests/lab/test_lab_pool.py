"""Into a pool and back on real boxes: NATS, gateways, workers, engines that a worker starts, and what may die."""

from __future__ import annotations

import json
import shlex
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from moving import BOXES, COPY, PATIENCE, PROXY, Moving, eventually

NATS, GATEWAY, WORKER = "fleetctl-nats.service", "fleetctl-gateway.service", "fleetctl-worker.service"
ENGINE, OTHER = "fleetctl-pool-standin.service", "fleetctl-pool-other.service"
SOCKETS = ("/run/fleetctl/pool-standin/engine.sock", "/run/fleetctl/worker/control.sock")
SPEAK = """
import http.client, socket, sys
method, path, what = sys.argv[1:]
connection = http.client.HTTPConnection("127.0.0.1", 8091, timeout=10)
if path:
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(path)
connection.request(method, what)
print(connection.getresponse().status)
"""
PASSWORDS = {f"NATS_{role.upper()}": f'{role} pass"w$rd' for role in ("gateway", "worker", "operator")}


def with_pool(document: dict[str, Any]) -> None:
    """A pool of two models: one pinned, the other loaded when somebody asks for it."""
    document["models"]["other"] = {**document["models"]["standin"], "served_as": ["other"]}
    document["layouts"]["pool"] = {
        "standin": {"pool": list(BOXES), "pin": True, "memory": "64MiB", "concurrency": 8},
        "other": {"pool": ["box2"], "memory": "64MiB"},
    }
    passwords = {role: {"env": f"NATS_{role.upper()}"} for role in ("gateway", "worker", "operator")}
    document["pool"] = {
        "nats": {"boxes": ["box1"], "store": "256MiB", "passwords": passwords},
        "gateways": list(BOXES),
    }


@pytest.fixture
def text(moving: Moving) -> str:
    """The lab's file with a pool."""
    return moving.changed(with_pool)


def ask(moving: Moving, model: str) -> httpx.Response:
    """One completion of a model through the proxy."""
    asked = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    return httpx.post(f"{moving.proxy}/v1/chat/completions", json=asked, timeout=PATIENCE, trust_env=False)


def spoken(moving: Moving, box: str, user: str, method: str, path: str, what: str) -> str:
    """The status with which a user of a box is answered through a Unix socket, or at the worker's port."""
    words = ["runuser", "-u", user, "--", "python3", "-c", SPEAK, method, path, what]
    return moving.sh(box, f"{shlex.join(words)} 2>&1; true").strip()


def in_pool(moving: Moving, text: str) -> None:
    """Everything of the pool runs, starts at boot or does not, and nothing is wrong."""
    for box, units in (("box1", (NATS, GATEWAY, WORKER)), ("box2", (GATEWAY, WORKER))):
        for unit in units:
            assert moving.unit(box, unit) == ("active", "enabled"), unit
        assert moving.unit(box, ENGINE) == ("active", "disabled")
        assert moving.unit(box, COPY) == ("inactive", "")
    up = {name for name, status in moving.servers().items() if status == "UP"}
    assert up == {f"{model}/pool-{box}" for model in ("standin", "other") for box in BOXES}
    seen = moving.status(text)
    assert (seen["exit"], seen["layout"], seen["problems"]) == (0, "pool", []), seen


def test_there_and_back_with_requests_answered_all_the_while(moving: Moving, text: str) -> None:
    moving.be_in("replicas")
    planned = moving.run("plan", "--to", "pool", text=text, env=PASSWORDS)
    assert planned.rc == 0, planned
    with moving.steady_traffic() as traffic:
        moving.cutover("pool", text=text, env=PASSWORDS)
    assert traffic.failed == [] and len(traffic.statuses) > 4
    in_pool(moving, text)
    assert moving.unit("box2", OTHER) == ("inactive", "disabled")
    assert ask(moving, "other").status_code == 200, "its engine was loaded for this request"
    eventually(lambda: moving.unit("box2", OTHER) == ("active", "disabled"))  # the unit asks the engine itself too
    again = moving.run("cutover", "--to", "pool", "--yes", text=text, env=PASSWORDS)
    assert (again.rc, again.nothing) == (0, True), again
    with moving.steady_traffic() as back:
        moving.rollback()
    assert back.failed == []
    seen = moving.status()
    assert (seen["exit"], seen["layout"]) == (0, "replicas"), seen
    for box in BOXES:
        assert moving.our_units(box) == ([PROXY, COPY] if box == "box1" else [COPY])
        assert {name.split("@")[0] for name in moving.processes(box)} == {"FLEETCTL_ENGINE=replicas/standin"}
        assert moving.sh(box, "ls /etc/fleetctl/pool 2>/dev/null") == ""
        assert moving.sh(box, "pgrep -f '[n]ats-server|[f]leetctl.pool' || echo none").strip() == "none"


def test_passwords_are_where_only_root_reads_them_and_no_program_has_more_than_it_needs(
    moving: Moving, text: str
) -> None:
    moving.cutover("pool", text=text, env=PASSWORDS)
    for box in BOXES:
        found = moving.sh(box, "grep -rlFs -e 'worker pass' /etc /var /run --exclude-dir=journal").split()
        assert "/etc/fleetctl/pool/worker.password" in found
        readable = [path for path in found if moving.sh(box, f"runuser -u fleet -- cat {path} 2>/dev/null")]
        assert readable == [], "by a user of the box"
        assert moving.sh(box, "ps -o user= -C nats-server").strip() != "root"
        listening = moving.sh(box, "ss -Hltn").split("\n")
        mine = {line.split()[3] for line in listening if line}
        own = moving.lab.box(box).address
        assert {f"{own}:8090", "127.0.0.1:8091"} <= mine, mine
        assert not {f"{own}:8091", "0.0.0.0:8091"} & mine, mine
        assert not [place for place in mine if place.rpartition(":")[2] in ("8000", "8001")], "engines have no port"
        for path in SOCKETS:
            assert spoken(moving, box, "root", "GET", path, "/health") == "200", path
            assert "PermissionError" in spoken(moving, box, "fleet", "GET", path, "/health"), path
        assert spoken(moving, box, "fleet", "GET", "", "/health") == "200"
        assert spoken(moving, box, "fleet", "POST", "", "/models/standin/evict") == "403"


def test_what_dies_loses_no_request_and_is_back_also_after_a_reboot(moving: Moving, text: str) -> None:
    moving.cutover("pool", text=text, env=PASSWORDS)
    for box, unit in (("box2", GATEWAY), ("box2", WORKER), ("box1", NATS)):
        with moving.steady_traffic() as traffic:
            eventually(lambda traffic=traffic: len(traffic.statuses) > 4)  # type: ignore[misc]
            moving.sh(box, f"systemctl kill --signal=SIGKILL {unit}")
            count = len(traffic.statuses)
            eventually(lambda traffic=traffic, count=count: len(traffic.statuses) > count + 20)  # type: ignore[misc]
        assert traffic.failed == [], (unit, traffic.statuses)
        eventually(lambda box=box, unit=unit: moving.unit(box, unit)[0] == "active")  # type: ignore[misc]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(moving.lab.reboot, BOXES))
    eventually(lambda: ask(moving, "standin").status_code == 200)
    eventually(lambda: moving.status(text)["exit"] == 0, lambda: moving.status(text))
    in_pool(moving, text)


def test_a_pinned_engine_that_does_not_load_takes_the_move_back(moving: Moving) -> None:
    moving.be_in("replicas")
    before = moving.picture()
    programs = {box: moving.sh(box, "ls -A /var/lib/fleetctl/programs 2>/dev/null || true") for box in BOXES}

    def broken(document: dict[str, Any]) -> None:
        with_pool(document)
        document["models"]["standin"]["load_limit"] = "5s"
        document["layouts"]["pool"]["standin"]["environment"] = {"STANDIN_LOAD_SECONDS": "600"}

    ran = moving.run("cutover", "--to", "pool", "--yes", text=moving.changed(broken), env=PASSWORDS)
    assert ran.rc == 6, ran
    assert "is not loaded" in json.dumps(ran.events) or "failed" in ran.said
    moving.unscathed(before, "replicas")
    for box in BOXES:
        assert moving.sh(box, "pgrep -f '[n]ats-server|[f]leetctl.pool' || echo none").strip() == "none"
        assert moving.sh(box, "ls -A /var/lib/fleetctl/programs 2>/dev/null || true") == programs[box]


def test_a_box_is_drained_and_put_back_and_engines_start_anew_with_no_failed_request(moving: Moving, text: str) -> None:
    moving.cutover("pool", text=text, env=PASSWORDS)
    refused = moving.run("drain", "box2", "--yes", text=text, env=PASSWORDS)
    assert refused.rc == 5 and "no engine serves other" in refused.said, refused
    with moving.steady_traffic() as traffic:
        drained = moving.run("drain", "box2", "--hold", "--yes", text=text, env=PASSWORDS)
        assert drained.rc == 0, drained
        moving.sh("box2", f"systemctl restart {WORKER}")  # the note outlasts it
        eventually(lambda: pool_of(moving, text)["worker", "box2"]["drained"])
        seen = moving.status(text)
        assert (seen["exit"], seen["problems"]) == (0, []), seen
        assert {one["server"] for one in seen["engines"] if one["boxes"] == ["box2"]} == {"drained"}
        assert moving.servers()["standin/pool-box2"] != "UP" and moving.unit("box2", ENGINE)[0] == "active"
        before = moving.sh("box2", f"systemctl show -P InvocationID {ENGINE}")
        moving.sh("box2", f"systemctl stop {ENGINE}")  # somebody works on it: nobody starts it meanwhile
        count = len(traffic.statuses)
        eventually(lambda: len(traffic.statuses) > count + 10)
        assert moving.unit("box2", ENGINE)[0] == "inactive"
        back = moving.run("undrain", "box2", "--yes", text=text, env=PASSWORDS)
        assert back.rc == 0, back
        in_pool(moving, text)
        again = moving.sh("box2", f"systemctl show -P InvocationID {ENGINE}")
        assert again != before
        anew = moving.run("restart", "standin", "--yes", text=text, env=PASSWORDS)
        assert anew.rc == 0, anew
        assert moving.sh("box2", f"systemctl show -P InvocationID {ENGINE}") != again
    assert traffic.failed == []
    told = moving.run("top", "--once", "--json", text=text)
    pool = told.events[-1]["pool"]
    assert {one["id"]: one["phase"] for one in pool["engines"]}["pool/standin@box1"] == "loaded", pool
    assert pool["limit"] == 1000 and pool["models"]["standin"]["waiting"] == 0


def pool_of(moving: Moving, text: str) -> dict[tuple[str, str], Any]:
    """Programs of the pool by kind and box, as status has them."""
    programs = moving.status(text)["sample"]["pool"]["programs"]
    return {(one["kind"], one["box"]): one for one in programs}


def test_models_that_are_not_pinned_are_tried_where_gates_say_so_and_one_that_fails_takes_the_move_back(
    moving: Moving,
) -> None:
    moving.be_in("replicas")
    before = moving.picture()

    def tried(document: dict[str, Any]) -> None:
        with_pool(document)
        document["gates"] = {**document.get("gates", {}), "unpinned": True}

    def broken(document: dict[str, Any]) -> None:
        tried(document)
        document["models"]["other"] |= {"load_limit": "5s", "stop_limit": "5s"}
        document["layouts"]["pool"]["other"]["environment"] = {"STANDIN_LOAD_SECONDS": "600"}

    ran = moving.run("cutover", "--to", "pool", "--yes", text=moving.changed(broken), env=PASSWORDS)
    assert (ran.rc, "other" in ran.said) == (6, True), ran
    moving.unscathed(before, "replicas")
    assert "load" not in moving.sh("box2", "cat /var/lib/fleetctl/pool/wishes.json 2>/dev/null; true")
    with moving.steady_traffic() as traffic:
        moved = moving.run("cutover", "--to", "pool", "--yes", text=moving.changed(tried), env=PASSWORDS)
    assert (moved.rc, traffic.failed) == (0, []), moved
    assert "try.gate_unpinned.pool/other@box2" in moved.steps(), moved
    assert moving.unit("box2", OTHER)[0] == "active"
