#!/usr/bin/env python3
"""What it costs to put a layout that is already in place: fleetctl beside pyinfra 3 and ansible-core.

Run it alone, as root, on Debian or Ubuntu: ``python3 bench/apply.py``. It brings up two boxes of its own, puts two
stand-in engines on each with ``fleetctl cutover``, and then measures, as whole processes and in turn, three commands
that find nothing to change: ``fleetctl cutover --to replicas``, a pyinfra deploy and an ansible playbook. Each of the
peers puts the five files that fleetctl put on either box (two engine units, their two environment files and the
readiness check), reloads systemd if one of them changed, and checks that one of the services runs and is enabled.

The three log in as the same user with the same key and become root with sudo. fleetctl does more than its peers: it
also takes the fleet's lock, and looks at the second engine, the processes, ports, memory and generations of both boxes,
at the 13 files of the proxy on the first, and at the running proxy itself.

Progress goes to standard error; the last line of standard output is JSON. Exit status 0: all was measured.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from _common import (
    CHECKOUT,
    BenchError,
    Contender,
    Figure,
    at_least,
    at_most,
    environment,
    interleaved,
    make_venv,
    run,
    say,
    say_load,
    version_of,
)
from _lab import base_cache, boxes_of, measured

from fleetctl.lab.lab import Lab
from fleetctl.lab.state import Bind

if TYPE_CHECKING:
    from fleetctl.lab.state import LabBox

FOLDER = Path("/var/lib/fleetctl-bench-apply")
MODELS = ("chat", "mail")
SERVICE = "fleetctl-replicas-chat.service"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure a layout that is already in place.")
    parser.add_argument("--rounds", type=int, default=9, help="rounds after the warm-up (7 or more for a claim)")
    parser.add_argument("--help-runs", type=int, default=15, help="runs of fleetctl --help")
    options = parser.parse_args()
    lab = Lab(
        FOLDER / "lab",
        bridge="fleetbench0",
        subnet="10.77.205.0/24",
        link_subnet="10.78.205.0/24",
        base=base_cache(),
    )
    control = FOLDER / "ssh"

    def clean() -> None:
        _end_masters(control)
        lab.down()

    return measured("apply", FOLDER, clean, lambda: measure(lab, control, options.rounds, options.help_runs))


def measure(lab: Lab, control: Path, rounds: int, help_runs: int) -> dict[str, Figure]:
    """Set everything up, measure, and return the figures."""
    fleetctl = make_venv(FOLDER / "fleetctl", str(CHECKOUT)) / "fleetctl"
    peers = make_venv(FOLDER / "peers", "pyinfra>=3,<4", "ansible-core")
    say(f"pyinfra {version_of(peers, 'pyinfra')}, ansible-core {version_of(peers, 'ansible-core')}")
    boxes = lab.up(2, say, binds=[Bind(CHECKOUT / "fleetctl/lab/standin", Path("/opt/standin"))])
    fleet = write_fleet(boxes)

    cutover = [str(fleetctl), "cutover", "--to", "replicas", "-f", str(fleet), "--yes", "--json"]
    say("putting the layout for the first time")
    run(cutover, doing="the first cutover")
    expect_nothing(run(cutover, doing="the second cutover"))

    files = five_files(fleetctl, fleet, lab, boxes)
    for box, contents in files.items():
        say(f"the peers put on {box}: {', '.join(contents)}")
    contenders = [
        Contender("fleetctl", cutover, expect_nothing, FOLDER),
        pyinfra(peers, boxes, files),
        ansible(peers, boxes, files, control),
    ]
    say_load()
    interleaved(contenders, rounds)
    say_load()
    helped = Contender("fleetctl --help", [str(fleetctl), "--help"], expect_help, FOLDER)
    interleaved([helped], help_runs)
    for contender in [*contenders, helped]:
        say(contender.told())
    ours, theirs, others, shown = (statistics.median(one.seconds) for one in [*contenders, helped])
    # Runs of one round are neighbours in time, so their ratio is steadier than that of the two medians.
    ratios = [slow / fast for fast, slow in zip(contenders[0].seconds, contenders[1].seconds, strict=True)]
    say(f"pyinfra / fleetctl, round by round: {min(ratios):.2f} to {max(ratios):.2f}")
    return {
        "fleetctl_apply_s": at_most(ours, 1.0),
        "pyinfra_s": Figure(round(theirs, 3), "s"),
        "ansible_s": Figure(round(others, 3), "s"),
        "speedup_over_pyinfra": at_least(theirs / ours, 2),
        "speedup_over_ansible": Figure(round(others / ours, 3), "x"),
        "help_s": at_most(shown, 0.2),
    }


# fleetctl ----------------------------------------------------------------------------------------------------


def write_fleet(boxes: Sequence[LabBox]) -> Path:
    """fleet.yaml: two models, a copy of each on both boxes, each engine with a secret in its environment."""
    token = FOLDER / "token"
    token.write_text("not-a-secret\n")
    names = [box.name for box in boxes]
    document = {
        "fleet": "bench",
        "boxes": boxes_of(boxes, "4GiB", "1GiB"),
        "models": {
            model: {
                "weights": "lab/standin",
                "served_as": [model],
                "context": 8192,
                "launch": {"venv": "/opt/standin"},
                "environment": {"STANDIN_LOAD_SECONDS": "1", "HF_TOKEN": {"file": str(token)}},
            }
            for model in MODELS
        },
        "layouts": {
            "replicas": {
                model: {"copies": {name: {"gpu_memory_utilization": 0.35} for name in names}, "concurrency": 4}
                for model in MODELS
            }
        },
        "proxy": {"box": names[0], "port": 8080},
    }
    path = FOLDER / "fleet.yaml"
    path.write_text(json.dumps(document, indent=2) + "\n")  # JSON is YAML
    return path


def expect_nothing(output: str) -> None:
    """fleetctl found nothing to change."""
    last = json.loads(output.strip().splitlines()[-1])
    if last.get("state") != "nothing":
        raise BenchError(f"fleetctl was to find nothing to change, and said: {json.dumps(last)[:500]}")


def expect_help(output: str) -> None:
    """The help names the command that is measured."""
    if "cutover" not in output:
        raise BenchError(f"fleetctl --help does not name cutover: {output[:500]}")


def five_files(fleetctl: Path, fleet: Path, lab: Lab, boxes: Sequence[LabBox]) -> dict[str, dict[str, Path]]:
    """box → path on the box → local copy, with the same mode, of what fleetctl put there for the engines.

    The paths are those that fleetctl renders for the second box, which has engines alone; the contents are read from
    the boxes, where secrets stand for real.
    """
    rendered = FOLDER / "rendered"
    run(
        [str(fleetctl), "render", "-f", str(fleet), "--layout", "replicas", "--out", str(rendered)],
        doing="fleetctl render",
    )
    top = rendered / "replicas" / boxes[1].name
    paths = sorted(f"/{path.relative_to(top)}" for path in top.rglob("*") if path.is_file())
    if len(paths) != 5:
        raise BenchError(f"{boxes[1].name} was to get five files, and gets {len(paths)}: {', '.join(paths)}")
    files: dict[str, dict[str, Path]] = {}
    for box in boxes:
        files[box.name] = {}
        for path in paths:
            kept = FOLDER / "files" / box.name / path.lstrip("/")
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(read(lab, box, "cat", path))
            kept.chmod(int(read(lab, box, "stat", "--format=%a", path), 8))
            files[box.name][path] = kept
    return files


def read(lab: Lab, box: LabBox, *argv: str) -> str:
    """Output of a command on a box."""
    done = lab.exec(box.name, argv)
    if done.returncode != 0:
        raise BenchError(f"{box.name}: {shlex.join(argv)}: {done.stderr.strip()}")
    return done.stdout


# Its peers ---------------------------------------------------------------------------------------------------

PYINFRA_DEPLOY = """
from pyinfra import host
from pyinfra.operations import files, systemd
from pyinfra.operations.util import any_changed

put = [
    files.put(name=path, src=source, dest=path, mode=mode, user="root", group="root", _sudo=True)
    for path, source, mode in host.data.puts
]
systemd.daemon_reload(name="daemon-reload", _if=any_changed(*put), _sudo=True)
systemd.service(name="service", service=host.data.unit, running=True, enabled=True, _sudo=True)
"""


def pyinfra(peers: Path, boxes: Sequence[LabBox], files: dict[str, dict[str, Path]]) -> Contender:
    """A pyinfra deploy of the files. ``--yes`` leaves out its dry run, and both boxes are worked on at once."""
    folder = FOLDER / "pyinfra"
    folder.mkdir()
    inventory = [
        (
            box.address,
            {
                "ssh_user": box.user,
                "ssh_key": str(box.key),
                "ssh_known_hosts_file": str(box.known_hosts),
                "ssh_strict_host_key_checking": "yes",
                "ssh_look_for_keys": False,
                "ssh_allow_agent": False,
                "unit": SERVICE,
                "puts": [
                    (path, str(local), f"{local.stat().st_mode & 0o777:o}") for path, local in files[box.name].items()
                ],
            },
        )
        for box in boxes
    ]
    (folder / "inventory.py").write_text(f"boxes = {inventory!r}\n")
    (folder / "deploy.py").write_text(PYINFRA_DEPLOY)

    def unchanged(output: str) -> None:
        """Every operation was one without a change, and all of them were reached."""
        total = next((line.split()[2:] for line in output.splitlines() if line.split()[:2] == ["Grand", "total"]), None)
        operations = str(sum(len(puts) + 2 for puts in files.values()))
        if total != [operations, "-", "-", operations]:  # hosts, success, error, no change
            raise BenchError(f"pyinfra was to find nothing to change, and said:\n{output}")

    argv = [str(peers / "pyinfra"), "--yes", "--no-wait", "inventory.py", "deploy.py"]
    return Contender("pyinfra", ["sh", "-c", f"exec {shlex.join(argv)} 2>&1"], unchanged, folder)


def ansible(peers: Path, boxes: Sequence[LabBox], files: dict[str, dict[str, Path]], control: Path) -> Contender:
    """An ansible playbook of the files: pipelining, a kept SSH connection, no fact gathering, both boxes at once."""
    folder = FOLDER / "ansible"
    folder.mkdir()
    control.mkdir()
    inventory = {
        "all": {
            "hosts": {
                box.name: {
                    "ansible_host": box.address,
                    "ansible_user": box.user,
                    "ansible_ssh_private_key_file": str(box.key),
                    "ansible_python_interpreter": "/usr/bin/python3",
                    "ansible_ssh_common_args": f"-F /dev/null -o UserKnownHostsFile={box.known_hosts}",
                    "puts": [
                        {"path": path, "source": str(local), "mode": f"0{local.stat().st_mode & 0o777:o}"}
                        for path, local in files[box.name].items()
                    ],
                }
                for box in boxes
            }
        }
    }
    copy = {
        "src": "{{ item.source }}",
        "dest": "{{ item.path }}",
        "mode": "{{ item.mode }}",
        "owner": "root",
        "group": "root",
    }
    play = {
        "hosts": "all",
        "gather_facts": False,
        "become": True,
        "strategy": "free",
        "tasks": [
            {"name": "files", "ansible.builtin.copy": copy, "loop": "{{ puts }}", "register": "put"},
            {
                "name": "daemon-reload",
                "ansible.builtin.systemd_service": {"daemon_reload": True},
                "when": "put is changed",
            },
            {
                "name": "service",
                "ansible.builtin.systemd_service": {"name": SERVICE, "state": "started", "enabled": True},
            },
        ],
    }
    # JSON is YAML
    (folder / "inventory.yaml").write_text(json.dumps(inventory))
    (folder / "play.yaml").write_text(json.dumps([play]))
    (folder / "ansible.cfg").write_text(
        "[defaults]\nforks = 10\ngathering = explicit\nhost_key_checking = True\nretry_files_enabled = False\n"
        f"local_tmp = {folder / 'tmp'}\nnocows = True\n"
        "[ssh_connection]\npipelining = True\nssh_args = -o ControlMaster=auto -o ControlPersist=60s\n"
        f"control_path_dir = {control}\n"
    )

    def unchanged(output: str) -> None:
        """The recap has both boxes with nothing changed, failed or out of reach."""
        recap = [line for line in output.splitlines() if "unreachable=" in line]
        quiet = ("changed=0 ", "unreachable=0 ", "failed=0 ", "skipped=1 ")
        if len(recap) != len(boxes) or not all(word in line for line in recap for word in quiet):
            raise BenchError(f"ansible was to find nothing to change, and said:\n{output}")

    env = environment(ANSIBLE_CONFIG=str(folder / "ansible.cfg"), ANSIBLE_HOME=str(folder / "home"), LC_ALL="C.UTF-8")
    argv = [str(peers / "ansible-playbook"), "-i", "inventory.yaml", "play.yaml"]
    return Contender("ansible", argv, unchanged, folder, env)


def _end_masters(control: Path) -> None:
    """End the SSH connections that ansible keeps open for its next run."""
    for way in control.glob("*") if control.is_dir() else ():
        subprocess.run(["ssh", "-O", "exit", "-o", f"ControlPath={way}", "box"], capture_output=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
