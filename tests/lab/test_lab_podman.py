"""Engines in containers of Podman: moves, what is left behind, what is killed, and images from box to box."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import image_on, lab_of_containers, moving_in
from moving import BOXES, COPY, SPLIT, Moving, Ran, eventually

from fleetctl.errors import MoveUndoneError, RefusedError
from fleetctl.lab.image import IMAGE
from fleetctl.lab.lab import Lab

REFUSED, UNDONE = RefusedError.exit_code, MoveUndoneError.exit_code
STOP_LIMIT = 20.0  # seconds, of the lab's fleet.yaml
SECRET = "hf_" + "s" * 34
COPY_CONTAINER, SPLIT_CONTAINER = COPY.removesuffix(".service"), SPLIT.removesuffix(".service")


@pytest.fixture(scope="module")
def podman_lab() -> Iterator[Lab]:
    with lab_of_containers("podman") as lab:
        yield lab


@pytest.fixture
def moving(podman_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Moving:
    """The fleet as the test before left it; its engines have a secret in their environment."""
    monkeypatch.setenv("LAB_TOKEN", SECRET)
    moving = moving_in(podman_lab, tmp_path)
    moving.text = moving.changed(lambda d: d["models"]["standin"]["environment"].update(HF_TOKEN={"env": "LAB_TOKEN"}))
    return moving


def containers(moving: Moving, box: str) -> list[str]:
    """Name and first word of the state of every container: Up, Exited, Created."""
    return sorted(moving.sh(box, "podman ps --all --format '{{.Names}} {{.Status}}' | cut -d' ' -f1,2").splitlines())


def in_containers(moving: Moving, unit: str) -> None:
    """One container on each box, its processes in the control group of the unit, and status content."""
    name = unit.removesuffix(".service")
    for box in BOXES:
        assert containers(moving, box) == [f"{name} Up"]
        assert moving.unit(box, unit) == ("active", "enabled")
        group = moving.sh(box, f"cat /sys/fs/cgroup/system.slice/{unit}/cgroup.procs").split()
        inside = moving.sh(box, f"podman inspect --format '{{{{.State.Pid}}}}' {name}").strip()
        assert inside in group
        assert moving.pid(box, unit) in group
    seen = moving.status()
    assert (seen["exit"], seen["problems"]) == (0, []), seen
    assert moving.answers()


def test_split_to_replicas_and_back_with_every_request_answered(moving: Moving) -> None:
    moving.cutover("split")
    in_containers(moving, SPLIT)
    with moving.steady_traffic() as told:
        moving.cutover("replicas")
        in_containers(moving, COPY)
        moving.rollback()
        in_containers(moving, SPLIT)
    assert told.failed == []
    assert len(told.statuses) > 10


def test_a_stop_reaches_the_engine_at_once_and_leaves_no_container(moving: Moving) -> None:
    moving.be_in("replicas")
    began = time.monotonic()
    moving.sh("box2", f"systemctl stop {COPY}")
    assert time.monotonic() - began < STOP_LIMIT / 2
    log = moving.sh("box2", f"journalctl -u {COPY} -n 60 -o cat")
    assert "shutdown triggered" in log and "SIGKILL" not in log.rpartition("Stopping")[2]
    assert containers(moving, "box2") == []
    assert moving.processes("box2") == set()
    moving.sh("box2", f"systemctl start {COPY}")


def test_what_an_engine_says_is_in_the_journal_once_and_no_secret_shows(moving: Moving) -> None:
    moving.be_in("replicas")
    log = moving.sh("box1", f"journalctl _SYSTEMD_INVOCATION_ID=$(systemctl show -P InvocationID {COPY}) -o cat")
    assert log.count("Application startup complete") == 1
    running = moving.sh("box1", f"cat /proc/$(podman inspect --format '{{{{.State.Pid}}}}' {COPY_CONTAINER})/environ")
    assert SECRET in running
    assert SECRET not in log + moving.sh("box1", "ps -ef") + moving.sh("box1", "cat /etc/systemd/system/fleetctl-*")


def test_a_killed_conmon_costs_no_answer_and_the_engine_is_watched_over_all_the_same(moving: Moving) -> None:
    moving.be_in("replicas")
    before = moving.pid("box1", COPY)
    with moving.steady_traffic() as told:
        moving.sh("box1", "pkill -9 -x conmon")
        time.sleep(2)
    assert told.failed == []
    assert moving.pid("box1", COPY) == before
    moving.sh("box1", f"kill -9 $(cat /run/{COPY_CONTAINER}.pid)")
    eventually(lambda: moving.pid("box1", COPY) not in ("0", before) and moving.unit("box1", COPY)[0] == "active")
    assert "has ended and podman does not know" in moving.sh("box1", f"journalctl -u {COPY} -n 200 -o cat")
    in_containers(moving, COPY)


def test_a_killed_podman_leaves_nothing_and_the_engine_starts_again(moving: Moving) -> None:
    moving.be_in("replicas")
    before = moving.pid("box2", COPY)
    moving.sh("box2", f"pkill -9 -f 'podman [r]un --rm'; kill -9 {before}")
    eventually(lambda: moving.pid("box2", COPY) not in ("0", before) and moving.unit("box2", COPY)[0] == "active")
    in_containers(moving, COPY)


def test_an_orphan_of_our_name_goes_and_a_stranger_stays(moving: Moving) -> None:
    moving.be_in("replicas")
    moving.sh("box2", f"systemctl stop {COPY}")
    run = "podman run --detach --cgroups=disabled --network host --entrypoint vllm"
    serve = f"{IMAGE} serve lab/standin --host 127.0.0.1 --port"
    old = "-e FLEETCTL_ENGINE=split/standin@000000000000"
    moving.sh("box2", f"{run} --name {COPY_CONTAINER} {serve} 8100; {run} --name stranger {serve} 8101")
    moving.sh("box2", f"{run} {old} --name {SPLIT_CONTAINER} {serve} 8102")
    moving.sh("box2", f"systemctl start {COPY}")
    eventually(lambda: moving.unit("box2", COPY)[0] == "active")
    assert containers(moving, "box2") == [
        f"{COPY_CONTAINER} Up", f"{SPLIT_CONTAINER} Up", "stranger Up"
    ]  # fmt: skip
    found = {e["code"] for e in moving.run("doctor").events if e["type"] == "finding" and e["box"] == "box2"}
    assert found >= {"P01", "P03"}, found
    moving.run("doctor", "--fix", "--yes")
    eventually(lambda: f"{SPLIT_CONTAINER} Up" not in containers(moving, "box2"))
    assert "stranger Up" in containers(moving, "box2")
    moving.sh("box2", f"podman rm --force --time 0 stranger {SPLIT_CONTAINER}")
    in_containers(moving, COPY)


def test_a_box_comes_back_from_a_reboot_with_its_container(moving: Moving) -> None:
    moving.be_in("replicas")
    moving.lab.reboot("box2")
    eventually(lambda: moving.unit("box2", COPY)[0] == "active")
    eventually(lambda: moving.servers()["standin/replicas-box2"] == "UP")
    in_containers(moving, COPY)


@pytest.fixture
def other(moving: Moving) -> Iterator[str]:
    """On box2 the image's name is that of another image; the ID of the right one. It is put right afterwards."""
    moving.be_in("split")
    right = image_on(moving, "box2", "podman")
    moving.sh("box2", f"podman save --output /root/i.tar {IMAGE}; podman load --quiet --input /root/i.tar")
    moving.sh(
        "box2", f"printf other > /root/f; tar cf /root/o.tar -C /root f; podman import --quiet /root/o.tar {IMAGE}"
    )
    assert image_on(moving, "box2", "podman") not in ("", right)
    yield right
    moving.sh("box2", f"podman load --quiet --input /root/i.tar; podman tag {right} {IMAGE}")


def test_a_name_that_is_another_image_on_another_box_is_refused_until_it_is_pushed(moving: Moving, other: str) -> None:
    ran = moving.run("cutover", "--to", "replicas", "--yes")
    assert ran.rc == REFUSED, ran
    assert f"the image {IMAGE} is not the same on its boxes: box1 has {other[7:19]}" in ran.said
    assert f"fleetctl images push {IMAGE} --from box1 box2" in ran.said
    assert moving.run("images", "list").rc == 9
    refused = moving.run("images", "push", "standin", "--yes")
    assert (refused.rc, "--from BOX" in refused.said) == (REFUSED, True), refused
    pushed = moving.run("images", "push", "standin", "--from", "box1", "--yes")
    assert pushed.rc == 0, pushed
    assert image_on(moving, "box2", "podman") == other
    assert moving.run("images", "push", "standin", "--yes").nothing
    assert moving.run("images", "list").rc == 0
    moving.cutover("replicas")
    in_containers(moving, COPY)


def test_an_image_pinned_by_its_id_is_started_whatever_its_name_has_become(moving: Moving, other: str) -> None:
    text = moving.changed(lambda d: d["models"]["standin"]["launch"].update(id=other))
    moving.cutover("replicas", text)
    in_containers(moving, COPY)
    for box in BOXES:
        assert moving.sh(box, f"podman inspect --format '{{{{.Image}}}}' {COPY_CONTAINER}").strip() == other[7:]
    assert f'"{other}"' in moving.sh("box2", "cat $(readlink -f /etc/fleetctl/current)/meta.json")
    told = " ".join(moving.run("rollback").plan["warnings"])
    assert f"was made with {other[7:19]} as {IMAGE}" in told


def test_a_container_that_cannot_be_made_is_told_before_anything_is_stopped(moving: Moving) -> None:
    moving.be_in("split")
    before = moving.picture()
    text = moving.changed(lambda d: d["models"]["standin"]["launch"].update(gpus="nvidia"))
    ran = moving.run("cutover", "--to", "replicas", "--yes", text=text)
    assert ran.rc == UNDONE, ran
    assert "unresolvable CDI devices nvidia.com/gpu=all" in ran.said
    assert "stop_engine" not in " ".join(ran.steps())
    assert moving.same_as(before)
    in_containers(moving, SPLIT)


@pytest.fixture
def lacking(moving: Moving) -> Iterator[str]:
    """box2 has no image and runs nothing; the ID of the image."""
    moving.be_in("replicas")
    moving.rollback("--to", "0")
    right = image_on(moving, "box1", "podman")
    moving.sh("box2", f"podman save --output /root/i.tar {IMAGE}; podman rmi --all --force")
    yield right
    moving.sh("box2", f"podman image exists {IMAGE} || podman load --quiet --input /root/i.tar")


def way_of(pushed: Ran) -> str:
    """How the image got there."""
    sent = [e for e in pushed.events if e["type"] == "step" and "send_image" in e["step"] and e["state"] == "done"]
    return str(sent[0]["result"]["through"])


def test_a_missing_image_is_told_before_anything_is_stopped_and_is_pushed(moving: Moving, lacking: str) -> None:
    before = moving.picture()
    ran = moving.run("cutover", "--to", "replicas", "--yes")
    assert ran.rc != 0
    assert f"fleetctl images push {IMAGE} box2" in ran.said
    assert "stop_engine" not in " ".join(ran.steps())
    assert moving.same_as(before)
    pushed = moving.run("images", "push", "standin", "--yes")
    assert pushed.rc == 0, pushed
    assert way_of(pushed) == "link"
    assert image_on(moving, "box2", "podman") == lacking
    assert moving.run("images", "verify").rc == 0
    assert moving.sh("box2", "find /var/tmp -type f") == ""

    # The same between boxes that cannot reach each other.
    moving.sh("box2", "podman rmi --all --force")
    box1 = moving.lab.box("box1")
    rules = f"ip saddr {{ {box1.address}, {box1.link_address} }} tcp dport 1024-65535 reject"
    apart = f"ip daddr {{ {box1.address}, {box1.link_address} }} tcp dport 1024-65535 reject"
    moving.sh(
        "box2",
        "nft add table ip apart; nft 'add chain ip apart in { type filter hook input priority 0; }'; "
        f"nft 'add rule ip apart in {rules}'; nft 'add chain ip apart out {{ type filter hook output priority 0; }}'; "
        f"nft 'add rule ip apart out {apart}'",
    )
    try:
        pushed = moving.run("images", "push", "standin", "--yes")
    finally:
        moving.sh("box2", "nft delete table ip apart")
    assert pushed.rc == 0, pushed
    assert way_of(pushed) == "this machine"
    assert image_on(moving, "box2", "podman") == lacking


def test_the_engine_in_an_image_is_asked_which_flags_it_knows(moving: Moving) -> None:
    moving.be_in("replicas")
    before = {box: moving.pid(box, COPY) for box in BOXES}
    wrong = moving.changed(lambda d: d["models"]["standin"].update(arguments=["--enable-prefix-cashing"]))
    refused = moving.run("apply", "--yes", text=wrong)
    said = f"vLLM {IMAGE} does not know --enable-prefix-cashing; did you mean --enable-prefix-caching?"
    assert (refused.rc, said in refused.said) == (REFUSED, True), refused
    assert {box: moving.pid(box, COPY) for box in BOXES} == before
    right = moving.changed(lambda d: d["models"]["standin"].update(arguments=["--enable-prefix-caching"]))
    ran = moving.run("apply", "--yes", text=right)
    assert ran.rc == 0, ran
    steps = [event for event in ran.events if event["type"] == "step" and ".verify_flags." in event["step"]]
    done = {event["step"]: event for event in steps if event["state"] == "done"}
    assert sorted(done) == [f"prepare.verify_flags.{box}/standin" for box in BOXES]
    assert not any("could not be asked" in warning for warning in ran.plan["warnings"])
    assert all(containers(moving, box) == [f"{COPY_CONTAINER} Up"] for box in BOXES)
