"""The guard on the boxes: memory that runs short, engines that hang, a follower that is lost, and moves left alone."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from moving import BOXES, COPY, SPLIT, Moving, eventually
from test_lab_failures import Seen, load
from test_lab_hold import until

from fleetctl.lab.traffic import Traffic

MIB = 2**20
GUARD = "fleetctl-guard.service"
SETTINGS: dict[str, Any] = {"memory_low": "128MiB", "silent": "5s", "answer_within": "5s", "idle": 0}
ASK: Mapping[str, object] = {
    "model": "standin",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 40,
}


def with_guard(moving: Moving, **settings: Any) -> str:
    return moving.changed(lambda d: d.update(guard={**SETTINGS, **settings}))


def guarded(moving: Moving, layout: str = "replicas", **settings: Any) -> str:
    """Bring the fleet into a layout, guarded by guards that have done nothing yet; its fleet.yaml."""
    text = with_guard(moving, **settings)
    moving.cutover(layout, text)
    for box in BOXES:
        moving.sh(box, f"systemctl stop {GUARD}; rm -rf /var/lib/fleetctl/guard; systemctl start {GUARD}")
        eventually(lambda box=box: status(moving, text)[box]["status"] is not None)  # type: ignore[misc]
    servers = {f"standin/{layout}-{box}" for box in (BOXES if layout == "replicas" else BOXES[:1])}
    eventually(lambda: all(moving.servers()[server] == "UP" for server in servers))
    return text


def status(moving: Moving, text: str) -> dict[str, Any]:
    """What ``fleetctl guard status`` says of each box."""
    ran = moving.run("guard", "status", "--events", "100", text=text)
    return dict(next(e for e in ran.events if e["type"] == "guards")["boxes"])


def events(moving: Moving, box: str) -> list[dict[str, Any]]:
    """What the guard of a box has written down."""
    return [json.loads(line) for line in moving.sh(box, "cat /var/lib/fleetctl/guard/events.jsonl").splitlines()]


def did(moving: Moving, box: str) -> list[str]:
    return [event["kind"] for event in events(moving, box) if event["kind"] != "note"]


def said(moving: Moving, box: str) -> str:
    return "\n".join(event["why"] for event in events(moving, box))


def first(moving: Moving, box: str, words: str) -> float:
    """When the guard first said or did something."""
    return float(next(e["at"] for e in events(moving, box) if words in (e["kind"] + " " + e["why"])))


# Memory


class SmallBox:
    """A box whose kernel allows it so much memory and no more: the process that goes beyond is killed.

    Limit, use and freeing are real: the box is in a control group of the host with ``memory.limit_in_bytes``. Only the
    view is made here: a box of the lab sees the host's /proc/meminfo, so the guard reads a file that is written from
    that control group's own figures ten times a second, as lxcfs does it for containers.
    """

    def __init__(self, moving: Moving, box: str, limit: int) -> None:
        runner = moving.lab._runner(moving.lab.box(box))
        group = next(folder for folder in runner.group.folders if folder.parts[4] == "memory")
        self.group, self.limit = group, limit
        self.view = Path(f"/proc/{runner.running_leader()}/root/run/lab-meminfo")
        self._over = threading.Event()
        self.lowest = limit

    def used(self) -> int:
        """Bytes that nothing could be taken from: without the page cache."""
        rows = dict(line.split() for line in (self.group / "memory.stat").read_text().splitlines())
        cache = int(rows["total_inactive_file"]) + int(rows["total_active_file"])
        return int((self.group / "memory.usage_in_bytes").read_text()) - cache

    @property
    def available(self) -> int:
        return max(0, self.limit - self.used())

    def write(self) -> None:
        text = f"MemTotal: {self.limit // 1024} kB\nMemAvailable: {self.available // 1024} kB\n"
        spare = self.view.with_suffix(".new")
        spare.write_text(text)
        spare.replace(self.view)

    @contextmanager
    def small(self) -> Iterator[None]:
        limit = self.group / "memory.limit_in_bytes"
        limit.write_text(str(self.limit))
        thread = threading.Thread(target=self._show, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            limit.write_text("-1")

    def _show(self) -> None:
        while not self._over.is_set():
            self.write()
            self.lowest = min(self.lowest, self.available)
            self._over.wait(0.1)


# Takes a mebibyte some thirty times a second until it has so much, and keeps it.
HUNGRY = """import sys, time
held = []
for _ in range(int(sys.argv[1])):
    held.append(bytearray(b"x") * 1048576)
    time.sleep(0.03)
time.sleep(3600)
"""


def eat(moving: Moving, box: str, mebibytes: int) -> None:
    moving.put(box, "/root/hungry.py", HUNGRY)
    moving.sh(box, f"systemctl reset-failed hungry; systemd-run --unit=hungry python3 /root/hungry.py {mebibytes}")


def went_down(moving: Moving, server: str, since: float) -> float:
    """When HAProxy said for the first time that a server is down, because its agent says so."""
    command = f"journalctl -u fleetctl-proxy -o short-unix --since @{int(since)} --no-pager"
    lines = moving.sh("box1", command).splitlines()
    return float(next(line.split()[0] for line in lines if f"{server} is DOWN" in line and "agent" in line))


_COST = f"""pid=$(systemctl show -P MainPID {GUARD})
grep -E 'VmRSS|VmLck' /proc/$pid/status; ps -o etimes=,cputimes= -p $pid"""


def eaten(moving: Moving, box: str) -> int:
    """Bytes that the hungry process has."""
    told = moving.sh(box, "grep VmRSS /proc/$(systemctl show -P MainPID hungry)/status").split()
    return int(told[1]) * 1024 if told else 0


@pytest.mark.parametrize(
    ("layout", "unit", "server"),
    [("replicas", COPY, "standin/replicas-box2"), ("split", SPLIT, "standin/split-box1")],
)
def test_another_process_grows_the_engine_leaves_the_proxy_stops_before_the_box_stalls_and_comes_back(
    moving: Moving, layout: str, unit: str, server: str
) -> None:
    """In the split the box is the follower's: its guard has to tell the proxy through the head's."""
    text = guarded(moving, layout)
    drop_in = "[Service]\nEnvironment=FLEETCTL_GUARD_MEMINFO=/run/lab-meminfo\n"
    engine_holds = 192 * MIB
    moving.control("box2", memory_bytes=engine_holds)
    moving.sh("box2", f"systemctl restart {unit}")
    eventually(lambda: moving.servers()[server] == "UP")
    base = SmallBox(moving, "box2", 0).used()
    # What is left for others is less than what will be asked for, unless the engine gives its own back.
    box = SmallBox(moving, "box2", base + 300 * MIB)
    with box.small():
        eventually(box.view.exists)
        moving.put("box2", f"/run/systemd/system/{GUARD}.d/lab.conf", drop_in)
        moving.sh("box2", f"systemctl daemon-reload; systemctl restart {GUARD}")
        eventually(lambda: "on guard" in said(moving, "box2"))
        with Traffic(moving.proxy, "standin", rate=10.0) as traffic:
            eat(moving, "box2", 440)
            eventually(lambda: "stop" in did(moving, "box2"))
            eventually(lambda: moving.unit("box2", unit)[0] == "inactive", lambda: said(moving, "box2"))
            result = moving.sh("box2", f"systemctl show -P Result {unit}").strip()
            # It got all that it asked for: without a guard the kernel kills it, or the engine, at the limit.
            eventually(lambda: eaten(moving, "box2") >= 440 * MIB, lambda: eaten(moving, "box2") // MIB)
            shown, whole = moving.run("guard", "status", text=text), moving.status(text)
            time.sleep(12)
            assert did(moving, "box2") == ["stop"], "there is no room for it yet"
            moving.sh("box2", "systemctl stop hungry")
            eventually(lambda: moving.servers()[server] == "UP", lambda: said(moving, "box2"))
        cost = moving.sh("box2", _COST)
        moving.sh("box2", f"rm -r /run/systemd/system/{GUARD}.d; systemctl daemon-reload; systemctl restart {GUARD}")
    requests = traffic.requests()
    out, stop = first(moving, "box2", "out of the proxy"), first(moving, "box2", "stop")
    down, gone = went_down(moving, server, out), first(moving, "box2", "stopped; ")
    left = next(e["available"] for e in events(moving, "box2") if "out of the proxy" in e["why"])
    print(
        f"\n{len(requests)} requests; out of the proxy with {left // MIB} MiB left, HAProxy knew it "
        f"{down - out:.2f} s later, stopped after {stop - out:.1f} s, gone after {gone - out:.1f} s; "
        f"lowest {box.lowest // MIB} MiB; the guard: {cost.split()}"
    )
    assert [request for request in requests if not request.answered] == []
    assert did(moving, "box2") == ["stop", "start"]
    assert out < down < gone and out < stop and "requests are cut" not in said(moving, "box2")
    assert box.lowest > 0 and result == "success"
    assert did(moving, "box1") == []
    told = next(e for e in shown.events if e["type"] == "guards")
    assert shown.rc == 9 and any(f"{unit} is stopped: memory is short" in problem for problem in told["problems"])
    assert any(f"the guard has {unit} out of the proxy: memory is short" in note for note in whole["notes"])


# What the rest of the box takes


def measured(moving: Moving, box: str) -> dict[str, Any]:
    """What the guard of a box has written down of its services: every minute, and when it ends."""
    time.sleep(6)  # it looks every 5 s
    moving.sh(box, f"systemctl restart {GUARD}")
    told = moving.sh(box, "cat /var/lib/fleetctl/guard/services.json 2>/dev/null")
    return dict(json.loads(told)["days"][-1]) if told else {}


def test_a_service_that_took_more_than_the_reserve_while_nobody_looked_refuses_the_next_plan(moving: Moving) -> None:
    guarded(moving)
    moving.control("box2", memory_bytes=64 * MIB)  # an engine's own memory is no service's
    moving.sh("box2", f"systemctl restart {COPY}")
    eventually(lambda: moving.servers()["standin/replicas-box2"] == "UP")
    eat(moving, "box2", 400)
    eventually(lambda: eaten(moving, "box2") >= 400 * MIB, lambda: eaten(moving, "box2") // MIB)
    eventually(lambda: measured(moving, "box2").get("services", {}).get("hungry.service", 0) >= 400 * MIB)
    moving.sh("box2", "systemctl stop hungry; rm /etc/standin.json")
    day = json.loads(moving.sh("box2", "cat /var/lib/fleetctl/guard/services.json"))["days"][-1]
    print(f"\nbox2 at its worst: { {name: size // MIB for name, size in day['services'].items()} } MiB")
    assert day["services"]["hungry.service"] >= 400 * MIB
    assert not any("replicas" in name for name in day["services"]) and day["foreign"] == {}

    def small_reserve(document: dict[str, Any]) -> None:
        document.update(guard=SETTINGS)
        document["boxes"]["box2"].update(reserve="320MiB")

    refused = moving.run("plan", "--to", "split", text=moving.changed(small_reserve))
    assert refused.rc != 0 and "hungry.service would be hurt first; write reserve: " in refused.said, refused
    shown = moving.run("plan", "--to", "split", text=with_guard(moving))
    assert shown.rc == 0 and "hungry" in str(shown.events) and "others" in str(shown.events), shown


# Hung engines


def test_a_hung_copy_is_restarted_once_and_then_only_kept_out(moving: Moving) -> None:
    guarded(moving, restarts=1)
    seen, took = asyncio.run(_hang(moving))
    print(f"\na copy hangs under load: {seen}; back in the proxy after {took:.1f} s")
    assert seen.before_first_byte == []
    assert did(moving, "box2") == ["kill_and_restart"] and did(moving, "box1") == []
    assert "no counter has moved" in said(moving, "box2")
    # It hangs again: the limit is reached.
    pid = moving.pid("box2", COPY)
    moving.control("box2", hang=True)
    with Traffic(moving.proxy, "standin", rate=5.0):
        eventually(lambda: "1 restarts within an hour, which is the limit" in said(moving, "box2"))
        assert moving.servers()["standin/replicas-box2"] == "DOWN"
        assert moving.pid("box2", COPY) == pid
        # A guard that dies now comes back, counts on, and takes back its word when the engine is well.
        moving.sh("box2", f"systemctl kill -s KILL {GUARD}")
        eventually(lambda: said(moving, "box2").count("on guard: restart") == 2)
        time.sleep(2)
        assert moving.servers()["standin/replicas-box2"] == "DOWN"
        moving.sh("box2", "rm /etc/standin.json")
        eventually(lambda: moving.servers()["standin/replicas-box2"] == "UP", lambda: said(moving, "box2"))
    assert did(moving, "box2") == ["kill_and_restart"] and said(moving, "box2").count("back in the proxy") == 2


async def _hang(moving: Moving) -> tuple[Seen, float]:
    async with load(moving.proxy, 20, ASK) as seen:
        await until(lambda: seen.requests > 60, "the requests are not answered")
        began, pid = time.monotonic(), moving.pid("box2", COPY)
        await asyncio.to_thread(moving.control, "box2", hang=True)
        while await asyncio.to_thread(moving.pid, "box2", COPY) == pid:
            assert time.monotonic() - began < 120, said(moving, "box2")
        await asyncio.to_thread(moving.sh, "box2", "rm /etc/standin.json")
        while (await asyncio.to_thread(moving.servers))["standin/replicas-box2"] != "UP":
            assert time.monotonic() - began < 180, said(moving, "box2")
        return seen, time.monotonic() - began


def test_a_hung_split_restarts_on_both_boxes_and_a_lost_follower_needs_no_guard(moving: Moving) -> None:
    guarded(moving, "split")
    pids = {box: moving.pid(box, SPLIT) for box in BOXES}
    with Traffic(moving.proxy, "standin", rate=5.0) as traffic:
        moving.control("box1", hang=True)
        eventually(lambda: moving.pid("box1", SPLIT) != pids["box1"], lambda: said(moving, "box1"))
        moving.sh("box1", "rm /etc/standin.json")
        eventually(lambda: moving.servers()["standin/split-box1"] == "UP", lambda: said(moving, "box1"))
        eventually(lambda: moving.answers())
    assert [request for request in traffic.requests() if request.failed and request.first_byte is None] == []
    after = {box: moving.pid(box, SPLIT) for box in BOXES}
    assert all(after[box] != pids[box] for box in BOXES), "a split counts as one"
    assert did(moving, "box1") == ["kill_and_restart"] and did(moving, "box2") == []
    moving.sh("box2", f"systemctl kill -s KILL {SPLIT}")
    eventually(lambda: all(moving.pid(box, SPLIT) not in ("0", after[box]) for box in BOXES))
    eventually(lambda: moving.servers()["standin/split-box1"] == "UP" and moving.answers())
    assert did(moving, "box1") == ["kill_and_restart"] and did(moving, "box2") == []


# Moves


def test_a_move_that_was_cut_off_is_left_alone_on_every_box_until_it_is_over(moving: Moving) -> None:
    text = guarded(moving)
    changed = yaml.safe_load(text)
    changed["models"]["standin"]["arguments"] = ["--seed", "7"]
    other = yaml.safe_dump(changed)
    move = moving.start("apply", "--yes", text=other)
    move.until("roll.open.replicas/standin@box1", "done")
    move.process.kill()
    move.finish()
    moving.control("box2", hang=True)
    with Traffic(moving.proxy, "standin", rate=5.0) as traffic:
        eventually(lambda: "standing back: the apply by" in said(moving, "box2"), lambda: said(moving, "box2"))
        time.sleep(13)
        assert did(moving, "box2") == [] and moving.servers()["standin/replicas-box2"] != "DOWN"
        moving.sh("box2", "rm /etc/standin.json")
        ran = moving.run("apply", "--yes", text=other)
    assert ran.rc == 0, ran
    assert [request for request in traffic.requests() if request.failed] == []
    eventually(lambda: "on guard again" in said(moving, "box2"), lambda: said(moving, "box2"))
    assert all(moving.sh(box, "ls /var/lib/fleetctl/moving.json 2>/dev/null") == "" for box in BOXES)
    assert moving.run("drain", "box2", "--yes", text=other).rc == 0
    eventually(lambda: "the box is drained by" in said(moving, "box2"))
    assert moving.run("undrain", "box2", "--yes", text=other).rc == 0


def test_it_comes_and_goes_with_the_file_and_leaves_nothing(moving: Moving) -> None:
    moving.be_in("replicas")
    before, pids = moving.picture(), {box: moving.pid(box, COPY) for box in BOXES}
    refused = moving.run("guard", "install", "--yes")
    assert (refused.rc, "`guard: {}`" in refused.said) == (2, True), refused
    protect = [{"unit": "ssh.service", "memory": "64MiB", "boxes": ["box2"]}]
    text = with_guard(moving, protect=protect)
    with Traffic(moving.proxy, "standin", rate=10.0) as traffic:
        installed = moving.run("guard", "install", "--yes", text=text)
        assert installed.rc == 0, installed
        assert moving.unit("box1", GUARD) == moving.unit("box2", GUARD) == ("active", "enabled")
        assert moving.sh("box2", "systemctl show -P MemoryMin ssh.service").strip() == str(64 * MIB)
        assert moving.sh("box2", "systemctl show -P MemoryMin system.slice").strip() == str(64 * MIB)
        eventually(lambda: all((status(moving, text)[box]["status"] or {}).get("asked", 0) > 0 for box in BOXES))
        assert moving.run("apply", "--yes", text=text).nothing
        seen = moving.status(text)
        assert (seen["exit"], seen["problems"]) == (0, []), seen
        moving.sh("box2", f"systemctl stop {GUARD}")
        assert any(GUARD in problem for problem in moving.status(text)["problems"])
        wrong = moving.run("guard", "remove", "--yes", text=text)
        assert (wrong.rc, "take guard: out of fleet.yaml" in wrong.said) == (2, True), wrong
        removed = moving.run("guard", "remove", "--yes")
        assert removed.rc == 0, removed
    assert [request for request in traffic.requests() if not request.answered] == []
    assert {box: moving.pid(box, COPY) for box in BOXES} == pids, "no engine is touched for it"
    after = moving.picture()
    gone = {box: _without_generations(text) for box, text in after.items()}
    assert gone == {box: _without_generations(text) for box, text in before.items()}
    assert moving.sh("box2", "systemctl show -P MemoryMin ssh.service").strip() == "0"
    assert all(moving.sh(box, f"systemctl show -P LoadState {GUARD}").strip() == "not-found" for box in BOXES)


def _without_generations(picture: str) -> list[str]:
    """Of what is on a box all but the numbers of its generations."""
    return [line for line in picture.splitlines() if not line.isdigit() and not line.startswith("generations/")]


pytestmark = pytest.mark.skipif(
    not Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists()
    and not Path("/sys/fs/cgroup/cgroup.controllers").exists(),
    reason="the host has no memory controller",
)
