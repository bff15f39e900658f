"""Every command that README.md and docs/ show is run as it is written, on two boxes, by an operator called ops."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from checkpoints import write_model
from documented import ROOT, Shown, commands
from moving import FLEETCTL
from places import BOXES_ARE, DIRTY, NEW

from fleetctl.cli.main import app
from fleetctl.lab.lab import Lab
from fleetctl.lab.tinylora import make_tiny_base, make_tiny_lora

ELSEWHERE = {
    ".venv/bin/fleetctl status": "test_lab_demo.py, on the boxes that are left",
    ".venv/bin/fleetctl lab ssh box1": "test_lab_boxes.py",
    ".venv/bin/fleetctl lab down": "test_lab_boxes.py",
    "fleetctl lab up --podman --dir /var/lib/podman-lab": "test_lab_podman.py",
    "fleetctl images push MODEL": "test_lab_podman.py, where boxes run containers",
    "fleetctl images push IMAGE BOX --from BOX --limit 2GB/s": "test_lab_podman.py",
    "fleetctl eval tools --suite tool-eval-bench": "test_lab_suites.py, in an environment of its own",
    "fleetctl eval tools --suite inspect:inspect_evals/gsm8k --within 1h": "test_lab_suites.py, another task",
    "fleetctl eval tools --suite inspect:my_task.py@name": "test_lab_suites.py",
    "fleetctl plan --to pool": "test_lab_pool.py, for these boxes have no pool",
    "fleetctl cutover --to pool": "test_lab_pool.py",
    "fleetctl pool status": "../unit/test_pool_command.py, for these boxes have no pool",
    "fleetctl pool pin minilm": "../unit/test_pool_command.py",
    "fleetctl pool load qwen3-tiny --box spark1": "../unit/test_pool_command.py",
    "fleetctl pool evict bge-m3": "../unit/test_pool_command.py",
    "fleetctl restart minilm": "test_lab_pool.py, for these boxes have no pool",
    "fleetctl pool unpin minilm": "../unit/test_pool_command.py",
    "fleetctl batch run tasks.jsonl": "../unit/pool/test_batch_command.py, for these boxes have no pool",
    "fleetctl batch run tasks.jsonl --no-wait --out answers.jsonl": "../unit/pool/test_batch_command.py",
    "fleetctl batch list": "../unit/pool/test_batch_command.py",
    "fleetctl batch status b-0123456789abcdef": "../unit/pool/test_batch_command.py",
    "fleetctl batch fetch b-0123456789abcdef": "../unit/pool/test_batch_command.py",
    "fleetctl batch cancel b-0123456789abcdef": "../unit/pool/test_batch_command.py",
    "fleetctl batch remove b-0123456789abcdef --yes": "../unit/pool/test_batch_command.py",
    "fleetctl lora push ./contracts --via loras@spark1 --user loras": "test_lab_loras_role.py, with that user",
}
"""Commands on the reader's own lab, which the tests must leave alone, and on other boxes: which test runs the same."""

_LAST_MOVE = "$(fleetctl history --json | grep -o '20[0-9TZ-]*-[0-9a-f]\\{4\\}' | tail -n 1)"

FORMS = {
    "fleetctl capacity MODEL [--box-memory 128GB] [--share 0.76] [--kv fp8] [--tp 1,2] [--pp 1,2] [--context N]": (
        "fleetctl capacity ./llama --box-memory 128GB --share 0.76 --kv fp8 --tp 1,2 --pp 1 --context 4096"
    ),
    "fleetctl capacity calibrate spark1 [--model qwen] [--share 0.6] [--hold]": (
        "fleetctl capacity calibrate spark1 --model qwen --share 0.4 --hold"
    ),
    "fleetctl capacity MODEL --log engine.log --box-memory 121.63GiB --share 0.72": (
        "fleetctl capacity ./llama --log engine.log --box-memory 121.63GiB --share 0.72"
    ),
    "fleetctl weights pull qwen": "fleetctl weights pull qwen --from ./base",  # a hub is not reached from here
    "fleetctl setup --engine vllm==0.11.0": "fleetctl setup",  # the environment is there
    "fleetctl drain spark2": "fleetctl drain spark1",  # this fleet has a model on spark2 alone
    "fleetctl undrain spark2": "fleetctl undrain spark1",
    "fleetctl history MOVE": f"fleetctl history {_LAST_MOVE}",
    "fleetctl history MOVE --json": f"fleetctl history {_LAST_MOVE} --json",
}
"""Lines that show how a command is called → one way to call it."""

SHORTER = {
    "bench": "--duration 1s --warm-up 100ms --mix agent",
    "compare": "--duration 1s --warm-up 100ms --mix agent",
    "tune": "--duration 1s --probes 4 --most 4 --mix agent",
    "link test": "--seconds 0.3",
}
"""Options that a test adds, so that nothing takes long; the last one of a kind counts."""

IMPORTED = {
    "compose.yaml": "docker-compose.yml",
    "vllm-qwen.service": "vllm-qwen.service",
    "sparkrun.yaml": "recipe.yaml",
    "haproxy.cfg": "haproxy.cfg",
    "nginx.conf": "nginx.conf",
}
"""Files of tests/unit/imported → the names that the pages have for them."""

WEIGHTS = "/models/qwen"
LAST = "docs/setup.md"
"""The page that gives the boxes back."""

ENDLESS = re.compile(r"\b(web|top|exporter|clients --watch)\b(?!.*(--once|--write|--watch 60))|logs .*-f\b")
MAY_FIND = re.compile(r"\bfleetctl (doctor|clients|status|guard status|proxy lint)\b")
"""Commands that end with 9 when they find something."""


@pytest.fixture(scope="module")
def office(moving_lab: Lab, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of an operator whose boxes are spark1 and spark2; fleet.yaml lies there."""
    stash = request.session.stash
    if stash[BOXES_ARE] != NEW:
        moving_lab.reset()
    stash[BOXES_ARE] = DIRTY
    folder = tmp_path_factory.mktemp("office")
    _boxes(moving_lab)
    _ssh(moving_lab, folder)
    _files(moving_lab, folder)
    _command(folder)
    # `fleetctl lab` means this lab.
    base = moving_lab.root / "base"
    for line in ("weights pull qwen --from ./base", "weights push qwen"):
        done = ran(f"fleetctl {line}", folder)
        assert done.returncode == 0, done.stderr
    base.symlink_to(moving_lab.base)
    os.environ["FLEETCTL_LAB"] = str(moving_lab.root)
    yield folder
    del os.environ["FLEETCTL_LAB"]
    base.unlink()


def _boxes(lab: Lab) -> None:
    for box in lab.boxes():
        script = """
            useradd -m -s /bin/bash ops
            mkdir -p ~ops/.ssh
            cp /home/fleet/.ssh/authorized_keys ~ops/.ssh/
            chown -R ops: ~ops/.ssh
            echo 'ops ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/ops
            cp -r /opt/standin /opt/standin-33
            sed -i s/0.32.0+standin/0.33.0/ /opt/standin-33/__init__.py
        """
        lab.exec(box.name, ["sh", "-ec", script])


def _ssh(lab: Lab, folder: Path) -> None:
    known = lab.known_hosts.read_text()
    (folder / "known_hosts").write_text(known + re.sub(r"^\S*,box", "spark", known, flags=re.M))
    hosts = [
        f"Host {box.name.replace('box', 'spark')}\n  HostName {box.address}\n  IdentityFile {lab.key}\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n"
        for box in lab.boxes()
    ]
    (folder / "ssh_config").write_text("".join(hosts))


def _files(lab: Lab, folder: Path) -> None:
    text = lab.fleet_file.read_text().replace('STANDIN_LOAD_SECONDS: "5"', 'STANDIN_LOAD_SECONDS: "0.5"')
    text = re.sub(r"\bbox(?=\d)", "spark", re.sub(r"^(\s+)standin:", r"\1qwen:", text, flags=re.M))
    tree = yaml.safe_load(text)
    # 0.4 of 4 GiB, less 1 GiB of weights and 0.5 GiB for the cache.
    log = {"STANDIN_WEIGHTS_BYTES": str(2**30), "STANDIN_CACHE_BYTES": str(2**29)}
    tree["models"]["qwen"]["environment"].update(log)
    tree["models"]["small"] = {**tree["models"]["qwen"], "weights": WEIGHTS, "weights_size": "256MiB"}
    tree["layouts"]["replicas"]["qwen"]["copies"] = {
        box: {"gpu_memory_utilization": 0.45} for box in tree["layouts"]["replicas"]["qwen"]["copies"]
    }
    tree["layouts"]["replicas"]["small"] = {"copies": {"spark2": {"gpu_memory_utilization": 0.2}}}
    tree["models"]["qwen"] |= {"weights": WEIGHTS, "loras": {}, "launch": {"build": "v32"}}
    tree["models"]["qwen"]["speculative"] = {"method": "mtp", "num_speculative_tokens": 2}
    tree["builds"] = {"v32": {"venv": "/opt/standin"}, "v33": {"venv": "/opt/standin-33"}}
    tree["guard"] = {}
    (folder / "office.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    shutil.copy(folder / "office.yaml", folder / "fleet.yaml")
    (folder / "tasks.jsonl").write_text('{"prompt": "What is 17*23?", "score": "numeric", "expected": 391}\n')
    write_model(folder / "llama")
    make_tiny_base(folder / "base")
    make_tiny_lora(folder / "contracts")
    for name, given in IMPORTED.items():
        shutil.copy(ROOT / "tests/unit/imported" / name, folder / given)
    (folder / "jobs").mkdir()
    (folder / "jobs/nightly.env").write_text("OPENAI_BASE_URL=http://proxy.office:8080/v1\n")


def _command(folder: Path) -> None:
    """``fleetctl`` that agrees where it would ask, and measures for a short time."""
    program = typer.main.get_command(app)
    agreeing = sorted(name for name in _leaves(program, "") if "--yes" in _options(program, name))
    lines = ["#!/bin/bash", "extra=()", 'case "$1 $2 " in']
    for name in sorted({"init", *agreeing, *SHORTER}):
        shorter = SHORTER.get(name, "")
        agree = "--yes" if name in agreeing or name == "bench" else ""
        reach = f"--ssh-config {folder}/ssh_config" if name in ("init", "setup") else ""
        lines.append(f'"{name} "*) extra=({agree} {reach} {shorter});;')
    lines += ["esac", f'exec {FLEETCTL} "$@" "${{extra[@]}}"']
    path = folder / "bin/fleetctl"
    path.parent.mkdir()
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)


def _leaves(command: Any, name: str) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name
    for each in inner or ():
        yield from _leaves(inner[each], f"{name} {each}".strip())


def _options(command: Any, name: str) -> set[str]:
    for word in name.split():
        command = command.commands[word]
    return {option for each in command.params for option in each.opts}


def as_run(shown: Shown, lab: Lab) -> str:
    """The line with the lab's addresses in place of the reader's."""
    text = FORMS.get(shown.text.partition("#")[0].strip(), shown.text)
    box = lab.box("box1").address
    text = text.replace("10.0.0.11:8000", f"{box}:8000").replace("10.0.0.7:8000", f"{box}:8080")
    text = re.sub(r"10\.0\.0\.\d+:(?=9\d\d\d)", "127.0.0.1:", text)
    return text.replace("/etc/prometheus/", "prometheus/").replace("/srv/jobs", "jobs")


def ran(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "COLUMNS": "120",
        "TERM": "xterm-256color",
    }
    # --foreground: where the shell does not make way for timeout, top would be of a background process group, which a
    # terminal stops for good.
    line = f"timeout --foreground -s INT --preserve-status 6 {text.partition('#')[0]}" if ENDLESS.search(text) else text
    if ENDLESS.search(text) and " top" in text and "--json" not in text:
        line = f"script -qefc '{line}' /dev/null"
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "page", sorted(dict.fromkeys(shown.page for shown in commands()), key=lambda page: page == LAST)
)
def test_every_command_of_a_page_does_what_the_page_says(page: str, office: Path, moving_lab: Lab) -> None:
    if page != "README.md":
        prepared = ran("fleetctl cutover --to replicas", office)
        assert prepared.returncode == 0, prepared.stderr
        log = moving_lab.exec("box1", ["journalctl", "-u", "fleetctl-replicas-qwen", "-o", "cat"])
        (office / "engine.log").write_text(log.stdout)
    for shown in commands():
        if shown.page != page or shown.text.partition("#")[0].strip() in ELSEWHERE:
            continue
        text = as_run(shown, moving_lab)
        if re.search(r" init | setup ops@", text):  # there is no file yet
            (office / "fleet.yaml").unlink(missing_ok=True)
        done = ran(text, office)
        if " init " in text or "--write" in text or "--into" in text:
            shutil.copy(office / "office.yaml", office / "fleet.yaml")
        away = {3} if page == "docs/lab.md" and " status" in text else set[int]()
        unknown = {5} if "profile save" in text else set[int]()  # so short a tune finds no knee
        fine = (
            {0}
            | away
            | unknown
            | ({9} if MAY_FIND.search(text) else set())
            | ({130, 2} if ENDLESS.search(text) else set())
        )
        assert done.returncode in fine, f"{shown}\nrun as: {text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert "Traceback" not in done.stdout + done.stderr, shown


def test_what_is_run_elsewhere_is_there() -> None:
    here = Path(__file__).parent
    assert [told for told in ELSEWHERE.values() if not (here / told.split(",")[0]).exists()] == []
