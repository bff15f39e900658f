"""The proxy on both boxes with one floating address: whichever box goes, clients that ask again once are answered.

The tests follow each other: the first brings the second proxy, the last takes it away.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

from moving import BOXES, PROXY, Moving, Ran, eventually
from retrying import Told, retrying_load

from fleetctl.lab.traffic import Traffic

VRRP = "fleetctl-vrrp.service"
ASK = {"model": "standin", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 40}
OTHER = {"box1": "box2", "box2": "box1"}


def address(moving: Moving) -> str:
    """One of the lab's network that no box has."""
    return moving.lab.box("box1").address.rpartition(".")[0] + ".200"


def two_proxies(moving: Moving) -> str:
    """fleet.yaml with a proxy on both boxes."""
    return moving.changed(lambda d: d["proxy"].update(box=None, boxes=[*BOXES], floating={"address": address(moving)}))


def url(moving: Moving) -> str:
    return f"http://{address(moving)}:8080"


def holders(moving: Moving) -> list[str]:
    """Boxes that run and have the address."""
    return [box for box in BOXES if has_address(moving, box)]


def has_address(moving: Moving, box: str) -> bool:
    return address(moving) in moving.sh(box, "ip -brief address")


def be_on_two(moving: Moving) -> None:
    ran = moving.cutover("replicas", text=two_proxies(moving))
    assert ran.rc == 0
    eventually(lambda: len(holders(moving)) == 1)
    eventually(lambda: healthy(moving))


def healthy(moving: Moving) -> bool:
    seen = moving.status(two_proxies(moving))
    return (seen["exit"], seen["problems"]) == (0, [])


async def under_load(moving: Moving, act: Callable[[str], Any], calm: float = 1.0) -> tuple[Told, str, float]:
    """Something happens to the box that has the address while clients ask.

    Returns what they saw, where the address is then, and how many seconds it took to get there. Afterwards nothing may
    disturb them for ``calm`` seconds.
    """
    async with retrying_load(url(moving), ASK) as told:
        while told.requests < 100:
            await asyncio.sleep(0.1)
        (before,) = holders(moving)
        other, start = OTHER[before], time.monotonic()
        doing = asyncio.create_task(asyncio.to_thread(act, before))
        while not await asyncio.to_thread(has_address, moving, other):
            assert time.monotonic() - start < 60, "the address does not move"
            await asyncio.sleep(0.05)
        moved = time.monotonic() - start
        await doing
        await asyncio.sleep(2)  # whatever was refused or cut has been asked again
        disturbed = (told.retried, len(told.broken))
        await asyncio.sleep(calm)
        assert (told.retried, len(told.broken)) == disturbed, "a second interruption"
    return told, other, moved


def told_of(what: str, told: Told, moved: float) -> None:
    print(f"\n{what}: address moved after {moved:.2f} s; {told}")


def test_an_address_that_another_machine_has_is_not_taken(moving: Moving) -> None:
    moving.be_in("replicas")
    bridge = moving.lab.bridge.name
    subprocess.run(["ip", "address", "add", f"{address(moving)}/32", "dev", bridge], check=True)
    try:
        refused = moving.run("apply", "--yes", text=two_proxies(moving))
    finally:
        subprocess.run(["ip", "address", "delete", f"{address(moving)}/32", "dev", bridge], check=True)
    assert (refused.rc, "not of this fleet has the floating address" in refused.said) == (5, True), refused


def test_the_second_proxy_and_the_address_come_with_an_apply_and_go_with_an_undo(moving: Moving) -> None:
    moving.be_in("replicas")
    before, text = moving.picture(), two_proxies(moving)
    with Traffic(moving.proxy, "standin", rate=10.0) as traffic:
        move = moving.start("apply", "--yes", text=text)
        move.until("settle.settle_address.address@box2", "done")
        move.process.kill()
        move.finish()
        undone = moving.run("rollback", "--undo", "--yes", text=text)
        assert undone.rc == 0, undone
        moving.unscathed(before, "replicas")
        assert holders(moving) == []
        ran = moving.run("apply", "--yes", text=text)
    assert ran.rc == 0, ran
    assert [request for request in traffic.requests() if not request.answered] == []
    seen = moving.status(text)
    assert (seen["exit"], seen["problems"], seen["address"]) == (0, [], address(moving)), seen
    assert seen["address_on"] == holders(moving) and len(holders(moving)) == 1
    for box in BOXES:
        assert [moving.unit(box, unit) for unit in (PROXY, VRRP)] == [("active", "enabled")] * 2
    assert moving.run("apply", "--yes", text=text).nothing
    # What is asked of keepalived before its files are used tells wrong from right.
    folder = "/etc/fleetctl/vrrp"
    moving.sh("box1", f"sed s/nopreempt/nopremt/ {folder}/keepalived.conf > /tmp/wrong.conf")
    for file, status in ((f"{folder}/keepalived.conf", "0"), ("/tmp/wrong.conf", "5")):
        assert moving.sh("box1", f"python3 {folder}/vrrp.py check {file} >&2; echo $?").strip() == status


def test_a_reboot_of_the_box_with_the_address_is_waited_for_and_its_return_is_not_noticed(moving: Moving) -> None:
    be_on_two(moving)
    told, now, moved = asyncio.run(under_load(moving, moving.lab.reboot, calm=5))
    told_of("rebooted", told, moved)
    assert told.failed == []
    assert told.longest < told.usual + 10  # 1.4 s where little else runs
    assert holders(moving) == [now]  # the box that came back does not take it
    eventually(lambda: healthy(moving))


def test_a_box_that_loses_its_power_is_replaced_and_meanwhile_status_goes_on_and_moves_are_refused(
    moving: Moving,
) -> None:
    be_on_two(moving)
    told, now, moved = asyncio.run(under_load(moving, moving.lab.power_off))
    told_of("power cut", told, moved)
    off = OTHER[now]
    move = moving.start("cutover", "--to", "split", "--yes", text=two_proxies(moving))
    seen = moving.status(two_proxies(moving))
    refused = move.finish()
    moving.lab.power_on(off)
    assert told.failed == []
    assert (seen["exit"], seen["unreachable"], seen["address_on"]) == (3, [off], [now]), seen
    assert (refused.rc, off in refused.said) == (3, True), refused
    eventually(lambda: moving.unit(off, VRRP)[0] == "active" and healthy(moving))
    assert holders(moving) == [now]


def test_without_its_haproxy_a_box_does_not_keep_the_address(moving: Moving) -> None:
    be_on_two(moving)
    told, now, moved = asyncio.run(under_load(moving, lambda box: moving.sh(box, f"systemctl kill -s KILL {PROXY}")))
    told_of("HAProxy killed", told, moved)
    assert told.failed == []
    eventually(lambda: healthy(moving))
    assert holders(moving) == [now]


def test_a_haproxy_that_hangs_loses_the_address(moving: Moving) -> None:
    be_on_two(moving)
    (before,) = holders(moving)
    moving.sh(before, f"systemctl kill -s STOP {PROXY}")
    eventually(lambda: holders(moving) == [OTHER[before]])
    moving.sh(before, f"systemctl kill -s CONT {PROXY}")
    eventually(lambda: healthy(moving))
    assert holders(moving) == [OTHER[before]]


def test_a_drained_box_stays_drained_when_the_proxies_start_again(moving: Moving) -> None:
    be_on_two(moving)
    text = two_proxies(moving)
    assert moving.run("drain", "box2", "--yes", text=text).rc == 0
    for box in BOXES:
        moving.sh(box, f"systemctl kill -s KILL {PROXY}")
    eventually(lambda: len(holders(moving)) == 1 and all(moving.unit(b, PROXY)[0] == "active" for b in BOXES))
    for _ in range(2):  # health checks have gone well meanwhile
        seen = moving.status(text)
        assert [engine["server"] for engine in seen["engines"]] == ["up", "drained"], seen
        time.sleep(0.5)
    eventually(lambda: healthy(moving))
    back = moving.run("undrain", "box2", "--yes", text=text)
    assert back.rc == 0, back
    assert [engine["server"] for engine in moving.status(text)["engines"]] == ["up", "up"]
    assert moving.sh("box1", "grep -c standin /var/lib/fleetctl/proxy-servers").strip() == "0"


def test_a_rolling_restart_acts_on_both_proxies_and_loses_nothing(moving: Moving) -> None:
    be_on_two(moving)
    before = holders(moving)
    with Traffic(url(moving), "standin", rate=10.0) as traffic:
        ran = moving.run("restart", "--yes", text=two_proxies(moving))
    assert ran.rc == 0, ran
    assert [request for request in traffic.requests() if not request.answered] == []
    for box in BOXES:
        assert any(".hold." in step and step.endswith(f"proxy@{box}") for step in ran.steps())
    assert holders(moving) == before
    assert healthy(moving)


def test_the_address_may_move_in_the_middle_of_a_move(moving: Moving) -> None:
    be_on_two(moving)
    (before,) = holders(moving)

    async def cutover() -> tuple[Told, Ran]:
        async with retrying_load(url(moving), ASK, clients=8, attempts=4) as told:
            move = moving.start("cutover", "--to", "split", "--yes", text=two_proxies(moving))
            await asyncio.to_thread(move.until, "switch.start_engine", "done")
            await asyncio.to_thread(moving.sh, before, f"systemctl kill -s KILL {PROXY}")
            ran = await asyncio.to_thread(move.finish)
        return told, ran

    told, ran = asyncio.run(cutover())
    print(f"\nHAProxy killed in the middle of a cutover: {told}")
    assert ran.rc == 0, ran
    assert (told.failed, holders(moving)) == ([], [OTHER[before]])
    eventually(lambda: healthy(moving))


def test_back_to_one_proxy_nothing_of_the_address_is_left(moving: Moving) -> None:
    moving.cutover("replicas", text=two_proxies(moving))
    with Traffic(moving.proxy, "standin", rate=10.0) as traffic:
        ran = moving.run("apply", "--yes")
    assert ran.rc == 0, ran
    assert [request for request in traffic.requests() if not request.answered] == []
    assert any(f"{address(moving)}:8080 is not answered any more" in told for told in ran.plan["warnings"])
    assert holders(moving) == []
    for box in BOXES:
        assert VRRP not in moving.our_units(box)
        assert moving.files(box, "/etc/fleetctl/vrrp") == []
    assert PROXY not in moving.our_units("box2")
    seen = moving.status()
    assert (seen["exit"], seen["problems"], seen["address"]) == (0, [], None), json.dumps(seen)
