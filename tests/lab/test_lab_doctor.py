"""Doctor on a fleet that serves: nothing on a healthy one, every planted fault, and --fix mends the safe ones.

A fault that another family finds is one more row of FAULTS.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from moving import BOXES, COPY, FLEETCTL, SPLIT, Moving, Ran, eventually

ETC = "/etc/systemd/system"
LEFT = "split/standin@0123456789ab"


@dataclass(frozen=True)
class Fault:
    """Something planted on a box by a shell command: the codes and places that are found because of it, and no others.

    ``fixed``: --fix mends it. ``gone`` is a shell command that takes away what is left; ``apply`` does the rest.
    """

    symptom: str
    plant: str
    found: tuple[tuple[str, str], ...]
    fixed: bool = False
    gone: str = "true"
    files: dict[str, str] = field(default_factory=dict)
    box: str = "box2"


FAULTS = (
    Fault(
        "an old watchdog with a timer restarts the split, whose start stops the copy",
        "systemctl daemon-reload; systemctl enable --now -q old-watchdog.timer",
        (("U07", "old-watchdog.service"),),
        fixed=True,
        gone=f"rm -r {ETC}/old-watchdog.* /opt/old; systemctl daemon-reload",
        files={
            "/opt/old/watchdog.sh": f"UNIT={SPLIT}\n[ -e /run/nothing ] && systemctl restart $UNIT\nexit 0\n",
            f"{ETC}/old-watchdog.service": "[Service]\nType=oneshot\nExecStart=/bin/sh /opt/old/watchdog.sh\n",
            f"{ETC}/old-watchdog.timer": "[Timer]\nOnBootSec=9h\n[Install]\nWantedBy=timers.target\n",
        },
    ),
    Fault(
        "a cron entry restarts the copy every night",
        "true",
        (("U08", "/etc/cron.d/nightly:2"),),
        gone="rm /etc/cron.d/nightly",
        files={"/etc/cron.d/nightly": f"SHELL=/bin/sh\n0 3 * * * root systemctl restart {COPY}\n"},
    ),
    Fault(
        "a service of a user starts an engine",
        "cd /root/.config/systemd/user; mkdir default.target.wants; ln -s ../vllm.service default.target.wants/",
        (("U10", "/root/.config/systemd/user/vllm.service"),),
        gone="rm -r /root/.config/systemd",
        files={"/root/.config/systemd/user/vllm.service": "[Service]\nExecStart=/opt/vllm/bin/vllm serve m\n"},
    ),
    Fault(
        "a drop-in changes what the copy restarts on",
        "systemctl daemon-reload",
        (("U11", f"{ETC}/{COPY}.d/site.conf"),),
        gone=f"rm -r {ETC}/{COPY}.d; systemctl daemon-reload",
        files={f"{ETC}/{COPY}.d/site.conf": "[Service]\nRestart=no\nEnvironment=HF_TOKEN=hf_0123456789\n"},
    ),
    Fault(
        "somebody edited a file of ours",
        "sed -i 's/^import /import  /' /etc/fleetctl/bin/ready.py",
        (("U16", "/etc/fleetctl/bin/ready.py"),),
    ),
    Fault(
        "an engine of the other layout is enabled beside the one that serves",
        f"cp $(ls -d /etc/fleetctl/generations/*/files{ETC}/{SPLIT} | tail -1) {ETC}/; systemctl enable -q {SPLIT}",
        (("U01", SPLIT),),
        fixed=True,
    ),
    Fault(
        "the engine that serves would not start after a reboot",
        f"systemctl disable -q {COPY}",
        (("U03", COPY),),
        fixed=True,
        box="box1",
    ),
    Fault(
        "a worker was left over from an engine that is gone",
        f"FLEETCTL_ENGINE={LEFT} setsid sleep 7200 >/dev/null 2>&1 </dev/null &",
        (("P01", LEFT),),
        fixed=True,
    ),
)


def findings(ran: Ran, *, after_fix: bool = False) -> list[tuple[str, str, str]]:
    """Code, box and place of what one look found."""
    return sorted(
        (e["code"], e["box"], e["where"]) for e in ran.events if e["type"] == "finding" and e["after_fix"] is after_fix
    )


def expected(faults: tuple[Fault, ...] = FAULTS) -> list[tuple[str, str, str]]:
    return sorted((code, fault.box, where) for fault in faults for code, where in fault.found)


def shown(moving: Moving, *words: str) -> tuple[int, str]:
    """Exit status of doctor and what it prints for a person."""
    argv = [FLEETCTL, "doctor", *words, "-f", str(moving.file())]
    ran = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def plant(moving: Moving, fault: Fault) -> None:
    for path, text in fault.files.items():
        moving.put(fault.box, path, text)
    moving.sh(fault.box, fault.plant)


@pytest.fixture
def healthy(moving: Moving) -> Iterator[Moving]:
    """Copies on both boxes, which a firewall closes. The boxes know the split too: the fleet was in it before."""
    moving.text = moving.changed(lambda document: document.update(firewall={}))
    if SPLIT not in moving.sh("box2", f"ls /etc/fleetctl/generations/*/files{ETC}"):
        moving.be_in("split")
        assert findings(moving.run("doctor")) == [], "a split that is well"
    moving.be_in("replicas")
    yield moving


def test_every_planted_fault_is_found_and_nothing_else_and_fix_mends_the_safe_ones(healthy: Moving) -> None:
    moving = healthy
    begin = time.monotonic()
    assert shown(moving) == (0, "nothing was found\n")
    print(f"\ndoctor on two boxes took {time.monotonic() - begin:.2f} s")
    for fault in FAULTS:
        plant(moving, fault)
    ran = moving.run("doctor")
    assert (ran.rc, findings(ran)) == (9, expected()), ran
    told = {e["code"]: e for e in ran.events if e["type"] == "finding"}
    assert "hf_0123456789" not in str(ran.events)
    assert any(f"UNIT={SPLIT}" in line or "systemctl restart $UNIT" in line for line in told["U07"]["evidence"])
    assert any(line.startswith("+import  ") for line in told["U16"]["evidence"])
    assert findings(moving.run("doctor", "box1")) == [one for one in expected() if one[1] == "box1"]

    # Without a terminal and --yes nobody can be asked, and nothing is done.
    pids, before = {box: moving.pid(box, COPY) for box in BOXES}, moving.moves()
    asked = moving.run("doctor", "--fix")
    assert (asked.rc, "nobody can be asked" in asked.said) == (2, True), asked
    assert findings(moving.run("doctor")) == expected() and moving.moves() == before

    with moving.steady_traffic() as answers:
        fixed = moving.run("doctor", "--fix", "--yes")
    left = tuple(fault for fault in FAULTS if not fault.fixed)
    assert (fixed.rc, findings(fixed, after_fix=True)) == (9, expected(left)), fixed
    assert answers.failed == [] and {box: moving.pid(box, COPY) for box in BOXES} == pids
    assert len(fixed.steps()) == sum(fault.fixed for fault in FAULTS)
    back = next(e["commands"] for e in fixed.events if e["type"] == "taken_back_by")
    assert f"box1: systemctl disable {COPY}" in back and f"box2: systemctl enable {SPLIT}" in back
    assert "box2: systemctl enable old-watchdog.timer; systemctl start --no-block old-watchdog.timer" in back
    assert moving.unit("box2", "old-watchdog.timer") == ("inactive", "disabled")
    assert (moving.unit("box1", COPY), moving.unit("box2", SPLIT)[1]) == (("active", "enabled"), "disabled")
    assert f"FLEETCTL_ENGINE={LEFT}" not in moving.processes("box2")
    seen = moving.status()
    assert (seen["last"]["operation"], seen["last"]["end"]["result"], seen["lock"]) == ("doctor", "done", None)

    # The rest is as each finding says.
    for fault in FAULTS:
        moving.sh(fault.box, fault.gone)
    assert moving.run("apply", "--yes").rc == 0
    assert shown(moving) == (0, "nothing was found\n")


BROKEN = (
    Fault(
        "somebody else has the port of a copy",
        f"systemctl stop {COPY}; systemd-run -q --unit squatter python3 -m http.server 8000",
        (("P04", "port 8000"),),
        gone="systemctl stop squatter",
        box="box1",
    ),
    Fault(
        "systemd has given up on that copy, for it could not start",
        f"systemctl daemon-reload; systemctl restart {COPY}",
        (("U11", f"{ETC}/{COPY}.d/fail.conf"), ("U13", COPY)),
        gone=f"rm -r {ETC}/{COPY}.d; systemctl daemon-reload; systemctl reset-failed {COPY}",
        files={f"{ETC}/{COPY}.d/fail.conf": "[Service]\nRestartSec=100ms\nExecStart=\nExecStart=/bin/false\n"},
        box="box1",
    ),
    Fault(
        "a copy whose start limit was taken away restarts for ever",
        # Until systemd has started it again as often: on a busy machine a second may be too short for that.
        f"U={COPY}; systemctl daemon-reload; for n in 1 2 3 4; do systemctl kill -s KILL $U; sleep 1; "
        "until [ $(systemctl show -P NRestarts $U) -ge $n ]; do systemctl kill -s KILL $U; sleep 1; done; done",
        (("U11", f"{ETC}/{COPY}.d/loop.conf"), ("U12", COPY)),
        gone=f"rm -r {ETC}/{COPY}.d; systemctl daemon-reload; systemctl restart {COPY}",
        files={
            f"{ETC}/{COPY}.d/loop.conf": "[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestartSec=1ms\nExecStartPost=\n"
        },
    ),
)


def test_what_keeps_copies_down_is_found_and_left_to_a_person(healthy: Moving) -> None:
    moving = healthy
    for fault in BROKEN:
        plant(moving, fault)
    last: list[Any] = []

    def there() -> bool:
        last[:] = findings(moving.run("doctor"))
        return last == expected(BROKEN)

    eventually(there, lambda: last)
    moves = moving.moves()
    ran = moving.run("doctor", "--fix", "--yes")
    assert (findings(ran), ran.steps(), moving.moves()) == (expected(BROKEN), [], moves), ran
    storm = next(e for e in ran.events if e.get("code") == "U12")
    assert "it loops for ever" in storm["says"]
    for fault in BROKEN:
        moving.sh(fault.box, fault.gone)
    assert moving.run("apply", "--yes").rc == 0
    eventually(lambda: shown(moving) == (0, "nothing was found\n"), lambda: shown(moving))


def test_a_repair_that_fails_takes_back_what_was_mended_before_it(healthy: Moving) -> None:
    moving = healthy
    moving.sh("box2", f"systemctl disable -q {COPY}")
    watchdog = next(fault for fault in FAULTS if fault.found[0][0] == "U07")
    # This one was enabled by the path of its file, which `disable` takes away from systemd.
    for path, text in watchdog.files.items():
        moving.put("box2", path.replace(ETC, "/opt/old"), text)
    moving.sh("box2", "cd /opt/old; systemctl link ./old-watchdog.service; systemctl enable --now $PWD/*.timer")
    moving.put(
        "box2",
        "/usr/local/bin/systemctl",
        f'#!/bin/sh\n[ "$1 $2" = "enable {COPY}" ] && echo not today >&2 && exit 1\nexec /usr/bin/systemctl "$@"\n',
        "755",
    )
    try:
        ran = moving.run("doctor", "--fix", "--yes")
        assert (ran.rc, "not today" in ran.said) == (6, True), ran
        assert ran.steps("undone") == ["mend.mend.box2.2", "mend.mend.box2.1"], ran
        assert moving.unit("box2", "old-watchdog.timer") == ("active", "enabled")
        assert moving.unit("box2", COPY) == ("active", "disabled")
        seen = moving.status()
        assert (seen["last"]["operation"], seen["last"]["end"]["result"]) == ("doctor", "undone")
    finally:
        moving.sh("box2", "rm /usr/local/bin/systemctl")
    ran = moving.run("doctor", "--fix", "--yes")
    assert (ran.rc, findings(ran, after_fix=True)) == (0, []), ran
    moving.sh("box2", f"rm -r {ETC}/old-watchdog.* /opt/old; systemctl daemon-reload")


def test_a_repair_whose_command_was_killed_is_taken_back_by_rollback(healthy: Moving) -> None:
    moving = healthy
    moving.sh("box2", f"systemctl disable -q {COPY}")
    plant(moving, next(fault for fault in FAULTS if fault.found[0][0] == "U07"))
    slow = f'#!/bin/sh\n[ "$1 $2" = "enable {COPY}" ] && sleep 60\nexec /usr/bin/systemctl "$@"\n'
    moving.put("box2", "/usr/local/bin/systemctl", slow, "755")
    move = moving.start("doctor", "--fix", "--yes")
    move.until("mend.mend.box2.2")
    move.process.kill()
    move.process.wait()
    moving.sh("box2", "rm /usr/local/bin/systemctl")
    assert moving.unit("box2", "old-watchdog.timer")[1] == "disabled"
    told = moving.run("apply", "--yes")
    assert (told.rc, "`fleetctl doctor --fix` finishes it" in told.said) == (8, True), told
    assert moving.run("rollback", "--yes").rc == 0
    assert moving.unit("box2", "old-watchdog.timer") == ("active", "enabled")
    assert moving.unit("box2", COPY) == ("active", "disabled")
    ran = moving.run("doctor", "--fix", "--yes")
    assert (ran.rc, findings(ran, after_fix=True)) == (0, []), ran
    moving.sh("box2", f"rm {ETC}/old-watchdog.*; systemctl daemon-reload")


def test_while_a_move_was_cut_off_nothing_is_mended(healthy: Moving) -> None:
    moving = healthy
    moving.sh("box2", f"systemctl disable -q {COPY}")
    move = moving.start("restart", "--yes")
    move.until("roll.stop_engine")
    move.process.kill()
    move.process.wait()
    ran = moving.run("doctor", "--fix", "--yes")
    assert (ran.rc, "was cut off" in ran.said) == (8, True), ran
    assert moving.unit("box2", COPY)[1] == "disabled"
    assert moving.run("rollback", "--yes").rc == 0
    ran = moving.run("doctor", "--fix", "--yes")
    assert (ran.rc, len(ran.steps())) == (0, 1), ran
