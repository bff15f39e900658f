"""The rendered units on boxes with real systemd: words arrive, engines exclude each other, a split is one thing."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from places import BASE

import fleetctl
from fleetctl.lab.lab import Lab
from fleetctl.lab.state import Bind
from fleetctl.render.escape import environment_line, exec_line
from fleetctl.render.layout import render_layout
from fleetctl.render.release import Release
from fleetctl.spec.fleet import Fleet

PATIENCE = 60.0  # seconds; only ever spent by a test that fails
SPLIT, COPY = "fleetctl-split-qwen.service", "fleetctl-replicas-qwen.service"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    here = tmp_path_factory.mktemp("units")
    standin = Path(fleetctl.__file__).parent / "lab" / "standin"
    lab = Lab(
        here / "lab",
        bridge="fleetunit0",
        subnet="10.77.43.0/24",
        link_subnet="10.77.44.0/24",
        base=BASE,
    )
    try:
        lab.up(2, binds=[Bind(standin, Path("/opt/standin"))])
        for name in ("box1", "box2"):
            run(lab, name, "mkdir -p /etc/fleetctl/bin /etc/fleetctl/secrets /etc/fleetctl/proxy")
        yield lab
    finally:
        lab.down()


@pytest.fixture(autouse=True)
def nothing_runs(lab: Lab) -> None:
    for name in ("box1", "box2"):
        run(lab, name, f"systemctl disable {SPLIT} {COPY}")
        run(lab, name, f"systemctl stop {SPLIT} {COPY} fleetctl-proxy old-vllm; systemctl reset-failed")


def run(lab: Lab, box: str, command: str, text: str | None = None) -> str:
    return lab.exec(box, ["sh", "-c", command], input=text).stdout


def until(what: Callable[[], object], why: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, why()
        time.sleep(0.1)


def fleet_of(lab: Lab, *, load_seconds: float = 1.0, load_limit: float = 30.0, stop_seconds: float = 0.0) -> Fleet:
    boxes = {
        box.name: {
            "address": box.address,
            "link": box.link_address,
            "interface": "host0",
            "memory": "4GiB",
            "reserve": "1GiB",
        }
        for box in lab.boxes()
    }
    model = {
        "weights": "org/tiny",
        "weights_size": "1GiB",
        "context": 4096,
        "launch": {"venv": "/opt/standin"},
        "environment": {
            "STANDIN_LOAD_SECONDS": str(load_seconds),
            "STANDIN_STOP_SECONDS": str(stop_seconds),
            "ODD": "100% $HOME \"'\\ x",
        },
        "load_limit": load_limit,
        "stop_limit": 10,
    }
    return Fleet.model_validate(
        {
            "fleet": "units",
            "boxes": boxes,
            "models": {"qwen": model},
            "layouts": {"split": {"qwen": {"split": list(boxes)}}, "replicas": {"qwen": {"copies": list(boxes)}}},
            "proxy": {"box": "box1", "hold": "60s"},
            "superseded": ["old-vllm.service"],
        }
    )


def put(lab: Lab, *releases: Release) -> None:
    for release in releases:
        for box, files in release.files.items():
            for file in files:
                run(lab, box, f"cat > '{file.path}'; chmod {file.mode:o} '{file.path}'", file.content)
    for name in ("box1", "box2"):
        run(lab, name, "systemctl daemon-reload")


def state(lab: Lab, box: str, unit: str) -> str:
    return run(lab, box, f"systemctl is-active {unit}").strip()


def journal(lab: Lab, box: str, unit: str) -> str:
    return run(lab, box, f"journalctl -q -o cat -n 50 -u {unit}; systemctl status -n0 {unit}")


def wait_for(lab: Lab, box: str, unit: str, wanted: str) -> None:
    until(lambda: state(lab, box, unit) == wanted, lambda: f"{state(lab, box, unit)}\n{journal(lab, box, unit)}")


def test_every_word_and_every_variable_arrives_byte_for_byte(lab: Lab) -> None:
    chance = random.Random(1)
    letters = "%$'\"\\ ;{}&|<>*?~#!@+-:=,a\n\t\r\x01\x7f\x1bé漢😀nxu0%%$$"
    words = [
        "",
        ";",
        "-",
        "@x",
        "+x",
        "!x",
        ":x",
        "|x",
        "%",
        "%%",
        "%n",
        "$",
        "$$",
        "${HOME}",
        "$HOME",
        "\\",
        "\\;",
        "a\\",
    ]
    words += ["".join(chance.choices(letters, k=chance.randint(0, 12))) for _ in range(300)]
    variables = {f"V{number}": word for number, word in enumerate(words)}
    script = "import json,os,sys;json.dump([sys.argv[1:],dict(os.environ)],open('/run/words','w'))"
    unit = "[Service]\nType=oneshot\n"
    unit += "".join(f"Environment={environment_line(*item)}\n" for item in variables.items())
    unit += f"ExecStart={exec_line(['/usr/bin/python3', '-c', script, *words])}\n"
    run(lab, "box1", "cat > /etc/systemd/system/words.service; systemctl daemon-reload", unit)
    started = lab.exec("box1", ["systemctl", "start", "words.service"])
    assert started.returncode == 0, journal(lab, "box1", "words.service")
    argv, environment = json.loads(run(lab, "box1", "cat /run/words"))
    assert argv == words
    assert {name: environment.get(name) for name in variables} == variables


def test_a_copy_is_activating_until_it_answers_and_takes_the_place_of_what_ran_before(lab: Lab) -> None:
    fleet = fleet_of(lab)
    put(lab, render_layout(fleet, "split"), render_layout(fleet, "replicas"))
    run(lab, "box2", "printf '[Service]\\nExecStart=/bin/sleep 1000\\n' > /etc/systemd/system/old-vllm.service")
    run(lab, "box2", "systemctl daemon-reload; systemctl start old-vllm")
    run(lab, "box2", f"systemctl start --no-block {COPY}")
    assert state(lab, "box2", COPY) == "activating"
    wait_for(lab, "box2", COPY, "active")
    assert state(lab, "box2", "old-vllm") == "inactive"
    health = f"curl -s -o /dev/null -w '%{{http_code}}' http://{lab.box('box2').address}:8000/health"
    python = f"python3 -c 'import urllib.request as u;print(u.urlopen(\"http://{lab.box('box2').address}:8000/health\").status)'"
    assert "200" in run(lab, "box2", f"{health} || {python}")
    pid = run(lab, "box2", f"systemctl show -P MainPID {COPY}").strip()
    environ = run(lab, "box2", f"tr '\\0' '\\n' < /proc/{pid}/environ")
    rank = next(e.head for e in render_layout(fleet, "replicas").engines if e.head.box == "box2")
    assert f"FLEETCTL_ENGINE=replicas/qwen@{rank.digest[:12]}\n" in environ
    assert "ODD=100% $HOME \"'\\ x\n" in environ
    assert "HOME=/root\n" in environ
    # systemd gives as much of LimitNOFILE= as the kernel allows the box.
    soft = int(run(lab, "box2", f"grep 'open files' /proc/{pid}/limits").split()[3])
    assert soft > 1024


SLOW = "[Service]\nExecStart=/bin/sh -c 'trap \"sleep 5; exit\" TERM; while :; do sleep 0.1; done'\n"


@pytest.mark.parametrize("before", [COPY, "old-vllm.service"])
def test_a_unit_starts_only_when_the_one_it_conflicts_with_is_gone_which_takes_5_s(lab: Lab, before: str) -> None:
    # Without an ordering beside Conflicts= both would have the address, and the memory, for that long.
    fleet = fleet_of(lab, stop_seconds=5)
    run(lab, "box1", "cat > /etc/systemd/system/old-vllm.service", SLOW)
    put(lab, render_layout(fleet, "split"), render_layout(fleet, "replicas"))
    run(lab, "box1", f"systemctl start {before}")
    wait_for(lab, "box1", before, "active")
    run(lab, "box1", f"systemctl start --no-block {SPLIT}")
    wait_for(lab, "box1", SPLIT, "activating")

    def moment(unit: str, event: str) -> int:
        return int(run(lab, "box1", f"systemctl show -P {event}TimestampMonotonic {unit}"))

    stopping, gone = moment(before, "ActiveExit"), moment(before, "InactiveEnter")
    assert gone - stopping > 4_000_000, "it took its time"
    assert moment(SPLIT, "ExecMainStart") >= gone


def test_a_split_is_ready_and_lost_as_one_and_comes_back_as_one(lab: Lab) -> None:
    put(lab, render_layout(fleet_of(lab), "split"))
    run(lab, "box2", f"systemctl start --no-block {SPLIT}")
    time.sleep(2)
    assert state(lab, "box2", SPLIT) == "activating"
    run(lab, "box1", f"systemctl start --no-block {SPLIT}")
    for box in ("box1", "box2"):
        wait_for(lab, box, SPLIT, "active")
    first = {box: epoch(lab, box) for box in ("box1", "box2")}
    assert first["box1"] == first["box2"]
    run(lab, "box2", f"systemctl kill --kill-whom=all -s KILL {SPLIT}")
    until(lambda: state(lab, "box1", SPLIT) != "active", lambda: "the head does not notice the lost follower")
    for box in ("box1", "box2"):
        wait_for(lab, box, SPLIT, "active")
    second = {box: epoch(lab, box) for box in ("box1", "box2")}
    assert second["box1"] == second["box2"] != first["box1"]


def epoch(lab: Lab, box: str) -> str:
    log = run(lab, box, f"journalctl -q -o cat -u {SPLIT} | grep 'engine started'")
    return log.splitlines()[-1].partition("epoch ")[2].split()[0]


def test_layouts_push_each_other_out_without_an_ordering_cycle(lab: Lab) -> None:
    fleet = fleet_of(lab)
    put(lab, render_layout(fleet, "split"), render_layout(fleet, "replicas"))
    for unit, other in ((SPLIT, COPY), (COPY, SPLIT), (SPLIT, COPY)):
        for box in ("box1", "box2"):
            run(lab, box, f"systemctl start --no-block {unit}")
        for box in ("box1", "box2"):
            wait_for(lab, box, unit, "active")
            assert state(lab, box, other) in ("inactive", "failed")
    assert lab.exec("box1", ["systemctl", "stop", SPLIT, COPY]).returncode == 0
    assert lab.exec("box2", ["systemctl", "restart", SPLIT, COPY]).returncode in (0, 1)
    assert "cycl" not in run(lab, "box1", "journalctl -q -b -o cat _PID=1")
    assert "cycl" not in run(lab, "box2", "journalctl -q -b -o cat _PID=1")


def test_an_engine_that_never_gets_ready_is_given_up_and_does_not_loop_for_ever(lab: Lab) -> None:
    release = render_layout(fleet_of(lab, load_seconds=1000, load_limit=1), "replicas")
    put(lab, release)
    hurry = "[Service]\\nTimeoutStartSec=1\\nRestartSec=100ms\\n"
    run(lab, "box1", f"mkdir -p /run/systemd/system/{COPY}.d; printf '{hurry}' > /run/systemd/system/{COPY}.d/x.conf")
    run(lab, "box1", f"systemctl daemon-reload; systemctl start --no-block {COPY}")
    wait_for(lab, "box1", COPY, "failed")
    assert run(lab, "box1", f"systemctl show -P NRestarts {COPY}").strip() == "4"
    run(lab, "box1", f"rm -r /run/systemd/system/{COPY}.d")


def test_an_engine_that_ends_while_it_loads_is_noticed_at_once(lab: Lab) -> None:
    put(lab, render_layout(fleet_of(lab, load_seconds=1000), "replicas"))
    run(lab, "box1", f"systemctl start --no-block {COPY}")
    until(lambda: run(lab, "box1", f"systemctl show -P MainPID {COPY}").strip() != "0", lambda: "not started")
    time.sleep(1)
    run(lab, "box1", f"systemctl kill --kill-whom=main -s KILL {COPY}")
    until(
        lambda: run(lab, "box1", f"systemctl show -P NRestarts {COPY}").strip() == "1",
        lambda: journal(lab, "box1", COPY),
    )


def test_the_proxy_of_a_box_runs_beside_debians_and_holds(lab: Lab) -> None:
    put(lab, render_layout(fleet_of(lab), "replicas"))
    started = lab.exec("box1", ["systemctl", "start", "fleetctl-proxy"])
    assert started.returncode == 0, journal(lab, "box1", "fleetctl-proxy")
    address = lab.box("box1").address
    ask = f"python3 -c 'import urllib.request as u;print(u.urlopen(\"http://{address}:8080/v1/models\",timeout=60).read())'"
    run(lab, "box2", f"({ask} > /run/answer 2>&1 &)")
    time.sleep(1)
    assert run(lab, "box2", "cat /run/answer") == ""
    run(lab, "box2", f"systemctl start {COPY}")
    until(lambda: '"qwen"' in run(lab, "box2", "cat /run/answer"), lambda: run(lab, "box2", "cat /run/answer"))
    before = run(lab, "box1", "systemctl show -P MainPID fleetctl-proxy")
    assert lab.exec("box1", ["systemctl", "reload", "fleetctl-proxy"]).returncode == 0
    assert run(lab, "box1", "systemctl show -P MainPID fleetctl-proxy") == before
    assert '"qwen"' in run(lab, "box2", ask)
    assert run(lab, "box1", "stat -c '%a %U' /run/fleetctl-proxy/admin.sock").strip() == "600 root"


def test_a_reboot_comes_back_in_the_layout_that_is_enabled(lab: Lab) -> None:
    fleet = fleet_of(lab)
    put(lab, render_layout(fleet, "split"), render_layout(fleet, "replicas"))
    for box in ("box1", "box2"):
        run(lab, box, f"systemctl disable {SPLIT} {COPY}; systemctl enable {SPLIT}")
    run(lab, "box1", f"systemctl start --no-block {SPLIT}")
    lab.reboot("box2")
    for box in ("box1", "box2"):
        wait_for(lab, box, SPLIT, "active")
        assert state(lab, box, COPY) == "inactive"


def test_a_boot_is_complete_while_a_rank_still_waits_for_the_other_box(lab: Lab) -> None:
    put(lab, render_layout(fleet_of(lab), "split"))
    run(lab, "box2", f"systemctl enable {SPLIT}")
    # Nothing is run in the box until it is a new one: a command in a box that goes down may never return.
    box = lab._runner(lab.box("box2"))
    before = box.reboot()
    until(lambda: box.leader() not in (None, before) and box.ssh_answers(1.0), lambda: "no new boot")
    until(
        lambda: run(lab, "box2", "systemctl is-active multi-user.target").strip() == "active",
        lambda: run(lab, "box2", "systemctl list-jobs"),
    )
    assert state(lab, "box2", SPLIT) == "activating"
    until(lambda: "waiting for the head" in journal(lab, "box2", SPLIT), lambda: journal(lab, "box2", SPLIT))
    run(lab, "box1", f"systemctl start --no-block {SPLIT}")
    for box in ("box1", "box2"):
        wait_for(lab, box, SPLIT, "active")
