"""Moves that go wrong on real boxes: refused before anything changes, or undone so that everything is as it was."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from moving import BOXES, COPY, PROXY, SPLIT, Moving, eventually

# Starts the stand-in with one word of its command line changed.
WRONG_ENGINE = """#!/usr/bin/python3
import os, sys
words = [{change!r}.get(word, word) for word in sys.argv[1:]]
os.execv("/opt/standin/bin/vllm", ["/opt/standin/bin/vllm", *words])
"""
OLD_ENGINE = """[Service]
ExecStart=/opt/standin/bin/vllm serve lab/old --host {address} --port 8000
Environment=STANDIN_LOAD_SECONDS=0.2
[Install]
WantedBy=multi-user.target
"""
OLD_LOOP = """[Service]
ExecStart=/bin/sh -c 'while sleep 0.3; do systemctl start old-vllm.service; done'
"""


def fails(moving: Moving, *says: str, text: str | None = None, rc: int = 6, to: str = "replicas") -> None:
    """A cutover to replicas (from split, or the other way round) fails so, says this, and leaves all as it was."""
    layout = "split" if to == "replicas" else "replicas"
    moving.be_in(layout)
    before = moving.picture()
    ran = moving.run("cutover", "--to", to, "--yes", text=text)
    assert ran.rc == rc, ran
    for part in says:
        assert part in ran.said, ran.said
    moving.unscathed(before, layout)


@contextmanager
def running(moving: Moving, box: str, unit: str, command: str) -> Iterator[None]:
    """A foreign process on a box, in a unit of its own."""
    moving.sh(box, f"systemd-run -q --unit={unit} {command}")
    try:
        yield
    finally:
        moving.sh(box, f"systemctl stop {unit}; systemctl reset-failed {unit} 2>/dev/null")


# Refused: nothing is changed


def test_names_that_do_not_exist_are_answered_with_the_nearest_that_does(moving: Moving) -> None:
    ran = moving.run("cutover", "--to", "replica", "--yes")
    assert (ran.rc, "did you mean replicas?" in ran.said) == (2, True), ran

    def box(document: dict[str, Any]) -> None:
        document["layouts"]["replicas"]["standin"]["copies"] = ["box1", "bix2"]

    def model(document: dict[str, Any]) -> None:
        document["layouts"]["replicas"] = {"standinn": {"copies": ["box1"]}}

    for change, wrong, near in ((box, "bix2", "box2"), (model, "standinn", "standin")):
        ran = moving.run("cutover", "--to", "replicas", "--yes", text=moving.changed(change))
        assert ran.rc == 2, ran
        assert wrong in ran.said and near in ran.said and ".yaml" in ran.said


@pytest.mark.parametrize(
    ("ssh", "env", "says"),
    [
        ({"port": 2222}, {}, "box2: nothing listens for SSH at {net}.12 port 2222"),
        ({"host": "{net}.99"}, {}, "{net}.99 port 22"),
        ({"user": "operator", "sudo_password": {"env": "BOX_SUDO"}}, {"BOX_SUDO": "wrong"}, "box2: sudo refused"),
        ({"user": "nobody-here"}, {}, "box2: "),
    ],
    ids=["refused", "silent", "wrong sudo password", "unknown user"],
)
def test_a_box_that_cannot_be_used_is_named(
    moving: Moving, ssh: dict[str, object], env: dict[str, str], says: str
) -> None:
    moving.be_in("split")
    before = moving.picture()
    net = moving.lab.box("box2").address.rpartition(".")[0]
    asked = {key: value.format(net=net) if isinstance(value, str) else value for key, value in ssh.items()}
    text = moving.changed(lambda d: d["boxes"]["box2"]["ssh"].update(asked))
    ran = moving.run("cutover", "--to", "replicas", "--yes", text=text, env=env)
    assert (ran.rc, says.format(net=net) in ran.said) == (3, True), ran
    moving.unscathed(before, "split")


def test_a_port_that_a_foreign_process_has_is_refused_with_its_name(moving: Moving) -> None:
    with running(moving, "box2", "squatter", "python3 -m http.server 8000"):
        eventually(lambda: ":8000" in moving.sh("box2", "ss -ltn"))
        pid = moving.pid("box2", "squatter")
        fails(
            moving,
            "box2: port 8000 for engine replicas/standin@box2 is taken by python3",
            f"(pid {pid}, squatter.service)",
            rc=5,
        )


def test_a_unit_that_fleetctl_did_not_write_is_not_overwritten(moving: Moving) -> None:
    moving.be_in("split")
    path = "/etc/systemd/system/fleetctl-third-standin.service"
    moving.put("box2", path, "[Service]\nExecStart=/bin/sleep 1000\n")
    before = moving.picture()
    third = moving.changed(lambda d: d["layouts"].update(third={"standin": {"copies": ["box2"]}}))
    ran = moving.run("cutover", "--to", "third", "--yes", text=third)
    assert (ran.rc, f"box2: there is a unit fleetctl-third-standin.service ({path})" in ran.said) == (5, True), ran
    moving.unscathed(before, "split")
    moving.sh("box2", f"rm {path}; systemctl daemon-reload")


@pytest.mark.parametrize(("box", "path"), [("box2", "/etc/fleetctl"), ("box1", "/var/lib/fleetctl")])
def test_a_full_disk_is_refused(moving: Moving, box: str, path: str) -> None:
    moving.be_in("split")
    moving.lab.limit_disk(box, path, 8 * 2**20)
    try:
        fails(moving, f"{box}: no space left on the disk of {path}", "16 MiB wanted", rc=5)
    finally:
        moving.lab.unlimit_disk(box, path)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("weights", "/models/none", "box1: the weights /models/none of model standin are not there"),
        ("launch", {"venv": "/opt/none"}, "box2: /opt/none/bin/vllm is not a program there"),
    ],
)
def test_what_an_engine_needs_and_is_not_there_is_refused(moving: Moving, key: str, value: object, says: str) -> None:
    fails(moving, says, text=moving.changed(lambda d: d["models"]["standin"].update({key: value})), rc=5)


def test_a_box_without_haproxy_is_refused(moving: Moving) -> None:
    moving.be_in("split")
    moving.sh("box1", "mv /usr/sbin/haproxy /usr/sbin/haproxy.away")
    try:
        fails(moving, "box1: HAProxy is not installed", rc=5)
    finally:
        moving.sh("box1", "mv /usr/sbin/haproxy.away /usr/sbin/haproxy")


# Undone: everything is as it was


def test_a_disk_that_fills_up_after_the_plan_undoes_the_move(moving: Moving, tmp_path: Path) -> None:
    moving.be_in("split")
    before = moving.picture()
    plan = tmp_path / "plan.json"
    assert moving.run("plan", "--to", "replicas", "--out", str(plan)).rc == 0
    moving.lab.limit_disk("box2", "/etc/fleetctl", 8 * 2**20)
    try:
        moving.sh("box2", "cat /dev/zero > /etc/fleetctl/filler")
        ran = moving.run("cutover", "--plan", str(plan), "--yes")
        assert ran.rc == 6, ran
        assert "box2: no space left on /etc/fleetctl" in ran.said
    finally:
        moving.sh("box2", "rm /etc/fleetctl/filler")
        moving.lab.unlimit_disk("box2", "/etc/fleetctl")
    moving.unscathed(before, "split")


def test_a_disk_of_the_journal_that_fills_up_in_the_middle_leaves_a_move_that_can_be_undone(moving: Moving) -> None:
    moving.be_in("split")
    before = moving.picture()
    moving.lab.limit_disk("box1", "/var/lib/fleetctl", 20 * 2**20)
    try:
        move = moving.start("cutover", "--to", "replicas", "--yes")
        move.until("hold.hold")
        moving.sh("box1", "cat /dev/zero > /var/lib/fleetctl/filler")
        ran = move.finish()
        assert ran.rc in (6, 7), ran
        assert "no space left" in ran.said
    finally:
        moving.sh("box1", "rm -f /var/lib/fleetctl/filler")
        moving.lab.unlimit_disk("box1", "/var/lib/fleetctl")
    if moving.status()["exit"] == 8:
        moving.rollback()
    moving.unscathed(before, "split")


def test_a_port_that_is_taken_after_the_plan_undoes_the_move(moving: Moving, tmp_path: Path) -> None:
    moving.be_in("split")
    before = moving.picture()
    plan = tmp_path / "plan.json"
    assert moving.run("plan", "--to", "replicas", "--out", str(plan)).rc == 0
    with running(moving, "box2", "squatter", "python3 -m http.server 8000"):
        ran = moving.run("cutover", "--plan", str(plan), "--yes")
        pid = moving.pid("box2", "squatter")
    assert (ran.rc, f"port 8000 is taken by python3 (pid {pid}, squatter.service)" in ran.said) == (6, True), ran
    moving.unscathed(before, "split")


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (
            {"STANDIN_EXIT_DURING_LOAD": "0.2"},
            [f"{COPY} ended while it was loading", f"last lines of {COPY} on box2:", "Error"],
        ),
        ({"STANDIN_HEALTH_LIES": "true"}, ["replicas/standin@box2 failed the gate completion", "500", "last lines of"]),
    ],
    ids=["dies while loading", "healthy but answers 500"],
)
def test_an_engine_that_does_not_work_undoes_the_move_with_its_last_words(
    moving: Moving, fault: dict[str, str], says: list[str]
) -> None:
    def one_copy(document: dict[str, Any]) -> None:
        document["layouts"]["replicas"]["standin"]["copies"] = {"box1": None, "box2": {"environment": fault}}

    moving.be_in("split")
    with moving.steady_traffic(1) as traffic:
        fails(moving, *says, text=moving.changed(one_copy))
    assert traffic.failed == []


def test_a_follower_that_fails_alone_fails_the_move_at_once(moving: Moving) -> None:
    """The head waits for it in their meeting, for as long as a load may take: nobody else may."""
    folder = f"/etc/systemd/system/{SPLIT}.d"
    moving.be_in("replicas")
    moving.put("box2", f"{folder}/spoiled.conf", "[Service]\nExecStartPre=/bin/false\n")
    try:
        began = time.monotonic()
        fails(moving, f"{SPLIT} ended while it was loading", "box2", to="split")
        assert time.monotonic() - began < 60, "the limit of the load is two minutes"
    finally:
        moving.sh("box2", f"rm -r {folder}; systemctl daemon-reload")


def test_an_engine_that_never_gets_ready_undoes_the_move_at_its_limit(moving: Moving) -> None:
    moving.be_in("split")
    text = moving.changed(lambda d: d["models"]["standin"].update(load_limit="3s"))
    never = "#!/bin/sh\ncase $* in *--help*) exit 1;; esac\necho still loading\nexec sleep 1000\n"
    for box in BOXES:
        moving.put(box, "/opt/never/bin/vllm", never, "755")
    text = text.replace("/opt/standin", "/opt/never")
    fails(moving, "is not ready after 3 s (limit 3 s)", "still loading", text=text)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"262144": "1000"}, "its context is 1000 tokens and has to be 262144"),
        ({"standin": "other"}, "it does not serve standin but other"),
    ],
    ids=["context", "name"],
)
def test_an_engine_that_serves_something_else_undoes_the_move(
    moving: Moving, change: dict[str, str], says: str
) -> None:
    for box in BOXES:
        moving.put(box, "/opt/wrong/bin/vllm", WRONG_ENGINE.format(change=change), "755")
    text = moving.changed(lambda d: d["models"]["standin"].update(launch={"venv": "/opt/wrong"}))
    fails(moving, "failed the gate model", says, text=text)


def test_memory_that_is_not_there_is_told_with_the_sum_and_undoes_the_move(moving: Moving) -> None:
    total = int(moving.sh("box1", "awk '/MemTotal/ {print $2}' /proc/meminfo")) // 1024

    def greedy(document: dict[str, Any]) -> None:
        document["boxes"]["box2"].update(memory=f"{total - 1}MiB", reserve="1MiB")

    fails(moving, "GiB are available and the engine asks for", text=moving.changed(greedy))


def test_a_supervisor_that_keeps_starting_the_old_unit_undoes_the_move(fresh: Moving) -> None:
    moving = fresh
    address = moving.lab.box("box2").address
    moving.put("box2", "/etc/systemd/system/old-vllm.service", OLD_ENGINE.format(address=address))
    moving.put("box2", "/etc/systemd/system/old-loop.service", OLD_LOOP)
    moving.sh("box2", "systemctl daemon-reload; systemctl enable --now old-vllm.service; systemctl start old-loop")
    eventually(lambda: moving.unit("box2", "old-vllm.service")[0] == "active")
    before = moving.picture()
    text = moving.changed(lambda d: d.update(superseded=[{"unit": "old-vllm.service", "boxes": ["box2"]}]))
    ran = moving.run("cutover", "--to", "replicas", "--yes", text=text)
    assert any("old-loop.service names old-vllm.service" in warning for warning in ran.plan["warnings"])
    assert (ran.rc, "old-vllm.service" in ran.said, "superseded:" in ran.said) == (6, True, True), ran
    eventually(lambda: moving.unit("box2", "old-vllm.service") == ("active", "enabled"))
    moving.same_as(before)
    assert moving.processes("box1") == moving.processes("box2") == set()
    assert moving.unit("box1", PROXY) == ("inactive", "")
    seen = moving.status(text)
    assert (seen["exit"], seen["layout"], seen["lock"]) == (0, None, None), seen


def test_a_first_cutover_that_fails_at_its_very_end_leaves_nothing_of_it(fresh: Moving) -> None:
    moving = fresh
    before = moving.picture()
    moving.sh("box1", "mkdir -p /etc/fleetctl/current")  # where the last step puts its link
    ran = moving.run("cutover", "--to", "split", "--yes")
    assert ran.rc == 6, ran
    assert "settle.settle_proxy.proxy@box1" in ran.steps("undone"), ran
    moving.sh("box1", "rmdir /etc/fleetctl/current")
    assert moving.same_as(before)
    assert moving.processes("box1") == moving.processes("box2") == set()
    moving.cutover("split")
    assert moving.answers()


def test_a_cutover_that_also_changes_the_proxy_and_fails_at_its_very_end_is_undone(moving: Moving) -> None:
    moving.be_in("split")
    before = moving.picture()

    def no_way_back(document: dict[str, Any]) -> None:
        document["layouts"] = {"solo": {"standin": {"copies": ["box2"]}}}
        document["proxy"]["drain"] = "77s"

    text = moving.changed(no_way_back)
    with moving.steady_traffic(1) as traffic:
        move = moving.start("cutover", "--to", "solo", "--yes", text=text)
        move.until("open.open", "done")
        # A generation that is not complete cannot become the current one.
        moving.sh("box1", "rm /etc/fleetctl/generations/$(ls /etc/fleetctl/generations | sort -n | tail -1)/meta.json")
        ran = move.finish()
    assert ran.rc == 6, ran
    assert ran.steps("failed") == ["settle.make_current.box1"], ran
    assert "settle.settle_proxy.proxy@box1" in ran.steps("undone"), ran
    moving.unscathed(before, "split")
    assert traffic.failed == []


# Boxes that go away in the middle


@pytest.mark.parametrize(
    ("box", "at"),
    [("box1", "hold.drain"), ("box2", "switch.await_free.box2"), ("box1", "prove.await_ready.replicas/standin@box1")],
    ids=["lead at hold", "other at switch", "lead at prove"],
)
def test_a_box_rebooted_in_the_middle_of_a_move_leaves_a_fleet_that_serves(moving: Moving, box: str, at: str) -> None:
    moving.be_in("split")
    before = moving.picture()
    slowed: dict[str, dict[str, float]] = {
        "hold.drain": {"speed": 0.001},
        "switch.await_free.box2": {"stop_seconds": 8},
    }
    slow = slowed.get(at, {"load_seconds": 60})
    for name in BOXES:
        moving.control(name, **slow)
    asked = threading.Thread(target=lambda: moving.complete().status_code, daemon=True)
    if at == "hold.drain":
        asked.start()
        eventually(lambda: moving.status()["engines"][0]["running"] == 1)
    move = moving.start("cutover", "--to", "replicas", "--yes")
    move.until(at)
    for name in BOXES:
        moving.sh(name, "rm /etc/standin.json")
    moving.lab.reboot(box)
    ran = move.finish()
    assert ran.rc in (0, 6, 7, 8), ran
    if moving.status()["exit"] == 8:
        moving.rollback()
    eventually(moving.answers)
    seen = moving.status()
    assert seen["unfinished"] is None and seen["lock"] is None, (seen, ran)
    if ran.rc == 0:
        assert seen["layout"] == "replicas"
    else:
        assert box in ran.said, ran
        moving.unscathed(before, "split")


# Engines that die while they serve


@pytest.mark.parametrize(
    ("layout", "boxes"),
    [("split", ["box2"]), ("split", ["box1"]), ("replicas", ["box1", "box2"])],
    ids=["follower", "head", "both copies"],
)
def test_killed_engines_come_back_and_requests_wait_for_them(moving: Moving, layout: str, boxes: list[str]) -> None:
    moving.be_in(layout)
    unit = SPLIT if layout == "split" else COPY
    epochs = {box: epoch(moving, box) for box in BOXES} if layout == "split" else {}
    for box in boxes:
        moving.sh(box, "pkill -KILL -f 'vllm serve'")
    eventually(lambda: "UP" not in {s for name, s in moving.servers().items() if name.startswith(f"standin/{layout}")})
    with moving.steady_traffic(3) as traffic:
        eventually(lambda: len(traffic.statuses) >= 6, lambda: moving.status())
    assert traffic.failed == []
    for box in BOXES:
        eventually(lambda box=box: moving.unit(box, unit) == ("active", "enabled"))  # type: ignore[misc]
    if layout == "split":
        now = {box: epoch(moving, box) for box in BOXES}
        assert now["box1"] == now["box2"] != epochs["box1"]
    eventually(lambda: moving.status()["exit"] == 0, lambda: moving.status()["problems"])


def epoch(moving: Moving, box: str) -> str:
    """The last start of the split that a rank has logged."""
    log = moving.sh(box, f"journalctl -q -b -o cat -u {SPLIT} | grep 'engine started'")
    return log.splitlines()[-1].partition("epoch ")[2].partition(":")[0]


@pytest.mark.parametrize("how", ["kill -9 $(pgrep -x haproxy)", "systemctl stop fleetctl-proxy"])
def test_a_proxy_that_dies_in_the_middle_of_a_move_ends_up_with_the_servers_of_the_layout_only(
    moving: Moving, how: str
) -> None:
    moving.be_in("split")
    move = moving.start("cutover", "--to", "replicas", "--yes")
    move.until("switch.await_free", "begin")
    moving.sh("box1", how)
    assert move.finish().rc == 0
    up = {name for name, status in moving.servers().items() if status == "UP"}
    assert up == {"standin/replicas-box1", "standin/replicas-box2"}
    assert moving.status()["exit"] == 0
    assert moving.answers()


def test_a_proxy_that_was_stopped_is_started_by_the_same_cutover(moving: Moving) -> None:
    moving.be_in("replicas")
    moving.sh("box1", "systemctl stop fleetctl-proxy")
    assert moving.status()["exit"] == 9
    assert moving.run("cutover", "--to", "replicas", "--yes").rc == 0
    assert moving.status()["exit"] == 0
    assert moving.answers()


def test_boxes_of_another_fleet_are_not_taken(moving: Moving) -> None:
    moving.be_in("replicas")
    before = moving.picture()
    other = moving.changed(lambda document: document.update(fleet="other"))
    ran = moving.run("cutover", "--to", "split", "--yes", text=other)
    assert (ran.rc, "box1: it belongs to fleet lab" in ran.said) == (5, True), ran
    moving.unscathed(before, "replicas")
