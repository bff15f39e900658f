"""Every rendered file of the example fleets, kept in golden/ and read by the tools that read it on a box.

After a wanted change: ``UPDATE_GOLDEN=1 pytest tests/unit/test_render_golden.py``, then look at the difference.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fleetctl.render.engine import Place
from fleetctl.render.layout import render_layout
from fleetctl.render.release import Release
from fleetctl.render.trial import render_trial
from fleetctl.spec.fleet import Fleet

GOLDEN = Path(__file__).parent / "golden"
EXAMPLE = Path(__file__).parents[2] / "templates" / "example.yaml"
FLEETS = {"example": EXAMPLE} | {name: GOLDEN / f"{name}.yaml" for name in ("pool", "floating", "queue", "cluster")}
# Scripts, the Lua action and the error pages are in the repository already; secrets are references.
KEPT = (".service", ".cfg", ".conf", ".env", ".nft", "keys", "bridge-key", "settings.json")
KEPT += ("worker.json", "gateway.json", "batch.json")
# Follow from everything else in the file, from the text of rank.py or of the templates, and from a pool's programs.
DIGEST = re.compile(
    "(?:@[0-9a-f]{12}|(?<=description fleetctl )[0-9a-f]{16})$|(?<=fleetctl/programs/)[0-9a-f]{16}", re.MULTILINE
)


def load(fleet: str) -> Fleet:
    return Fleet.model_validate(yaml.safe_load(FLEETS[fleet].read_text()))


def releases() -> list[tuple[str, str]]:
    return [(fleet, layout) for fleet in FLEETS for layout in load(fleet).layouts]


def name_of(path: str) -> str:
    """Drop-ins of several units have one name."""
    folder, name = Path(path).parts[-2:]
    return f"{folder}/{name}" if folder.endswith(".d") else name


@pytest.mark.parametrize(("fleet", "layout"), releases())
def test_the_files_of_a_layout_are_the_golden_ones(fleet: str, layout: str) -> None:
    release = render_layout(load(fleet), layout)
    made = {
        f"{fleet}/{layout}/{box}/{name_of(file.path)}": DIGEST.sub("@DIGEST", file.content)
        for box, files in release.files.items()
        for file in files
        if file.path.endswith(KEPT)
    }
    if os.environ.get("UPDATE_GOLDEN"):
        shutil.rmtree(GOLDEN / fleet / layout, ignore_errors=True)
        for name, content in made.items():
            (GOLDEN / name).parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / name).write_text(content)
    kept = {str(p.relative_to(GOLDEN)): p.read_text() for p in (GOLDEN / fleet / layout).rglob("*") if p.is_file()}
    assert sorted(made) == sorted(kept)
    for name, content in made.items():
        assert content == kept[name], name


TRIALS = [("example", "replicas", "qwen", "spark1"), ("pool", "next", "big", "a"), ("pool", "today", "small", "c")]


def trial(fleet: str, layout: str, model: str, box: str) -> str:
    """The unit that measures a copy."""
    return render_trial(load(fleet), Place(layout, model, box, 0, (box,), 8000, 0.5)).content


@pytest.mark.parametrize("case", TRIALS)
def test_the_unit_of_a_trial_is_the_golden_one_and_systemd_reads_it(
    case: tuple[str, str, str, str], tmp_path: Path
) -> None:
    kept, made = GOLDEN / "trials" / f"{'-'.join(case)}.service", trial(*case)
    if os.environ.get("UPDATE_GOLDEN"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(made)
    assert made == kept.read_text()
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "fleetctl-trial.service"
    unit.write_text(with_programs_in(tmp_path, made))
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


PROGRAMS = (
    "/opt/vllm/bin/vllm",
    "/usr/bin/docker",
    "/usr/bin/podman",
    "/usr/sbin/haproxy",
    "/usr/sbin/keepalived",
    "/usr/sbin/nft",
    "/usr/sbin/nats-server",
    "/opt/encoders/bin/python3",
)


def with_programs_in(root: Path, unit: str) -> str:
    """A unit's text whose programs are under ``root``: systemd wants them there; this machine may lack some."""
    for program in PROGRAMS:
        path = root / program.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        path.chmod(0o755)
        unit = unit.replace(f"={program}", f"={path}").replace(f"=-{program}", f"=-{path}")
    return unit


def on_disk(release: Release, box: str, root: Path) -> None:
    """Put the files of a box under ``root``, and say so wherever one names another."""
    for file in release.files[box]:
        path = root / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = file.content.replace("/etc/fleetctl", f"{root}/etc/fleetctl")
        path.write_bytes(text.replace("/run/fleetctl-proxy", str(root)).encode())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize(("fleet", "layout"), releases())
def test_systemd_reads_every_unit_without_a_complaint(fleet: str, layout: str, tmp_path: Path) -> None:
    release = render_layout(load(fleet), layout)
    for box, files in release.files.items():
        on_disk(release, box, tmp_path / box)
        for file in (file for file in files if file.path.endswith(".service")):
            unit = tmp_path / box / file.path.lstrip("/")
            unit.write_text(with_programs_in(tmp_path / box, unit.read_text()))
            done = subprocess.run(
                ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, ""), f"{file.path}\n{done.stderr}"


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
@pytest.mark.parametrize(("fleet", "layout"), releases())
def test_haproxy_takes_every_configuration_without_knowing_a_name(fleet: str, layout: str, tmp_path: Path) -> None:
    release = render_layout(load(fleet), layout)
    assert release.proxy is not None
    for box in release.proxy.boxes:
        on_disk(release, box, tmp_path / box)
        done = subprocess.run(
            ["haproxy", "-c", "-q", "-f", str(tmp_path / box / "etc/fleetctl/proxy/haproxy.cfg")],
            capture_output=True,
            text=True,
            check=False,
        )
        # Names, and the states of servers, are not known before a box has been in use.
        usual = ("could not resolve", "Can't open global server state file", "[NOTICE]")
        unexpected = [line for line in done.stderr.splitlines() if not any(words in line for words in usual)]
        assert (done.returncode, unexpected) == (0, [])


@pytest.mark.skipif(
    shutil.which("nft") is None or os.geteuid() != 0, reason="nft is not installed, or this is not root"
)
@pytest.mark.parametrize(("fleet", "layout"), releases())
def test_nft_takes_every_table_once_and_again_and_lists_nothing_else(fleet: str, layout: str, tmp_path: Path) -> None:
    tables = [
        file for files in render_layout(load(fleet), layout).files.values() for file in files if ".nft" in file.path
    ]
    assert bool(tables) == (load(fleet).firewall is not None)
    for table in tables:
        path = tmp_path / "firewall.nft"
        path.write_text(table.content)
        # In a network namespace of its own: what this machine has loaded is not touched.
        twice = 'nft -c -f "$0" && nft -f "$0" && nft -f "$0" && nft list tables'
        done = subprocess.run(
            ["unshare", "--net", "sh", "-c", twice, path], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "table inet fleetctl\n", "")


def read_by_keepalived(text: str, folder: Path) -> tuple[int, str]:
    """Exit status and words of keepalived for a configuration, on some interface of this machine."""
    path = folder / "keepalived.conf"
    interface = next(one.name for one in Path("/sys/class/net").iterdir() if one.name != "lo")
    path.write_text(text.replace("@INTERFACE@", interface))
    command = ["keepalived", "--vrrp", "--config-test", f"--use-file={path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def keepalived_conf(box: str) -> str:
    release = render_layout(load("floating"), "replicas")
    return next(file.content for file in release.files[box] if file.path.endswith("/keepalived.conf"))


@pytest.mark.skipif(shutil.which("keepalived") is None, reason="keepalived is not installed")
@pytest.mark.parametrize("box", ["spark1", "spark2"])
def test_keepalived_reads_its_configuration_without_a_complaint(box: str, tmp_path: Path) -> None:
    assert read_by_keepalived(keepalived_conf(box), tmp_path) == (0, "")


@pytest.mark.skipif(shutil.which("keepalived") is None, reason="keepalived is not installed")
@pytest.mark.parametrize(
    ("old", "new"),
    [("nopreempt", "nopremt"), ("virtual_router_id 51", "virtual_router_id 300"), ("advert_int 0.3", "advert_int x")],
)
def test_what_keepalived_cannot_use_is_told_by_its_exit_status(old: str, new: str, tmp_path: Path) -> None:
    status, said = read_by_keepalived(keepalived_conf("spark1").replace(old, new), tmp_path)
    assert status != 0 and said


def test_the_boxes_differ_in_who_they_are_and_agree_on_the_rest() -> None:
    one, two = keepalived_conf("spark1").splitlines(), keepalived_conf("spark2").splitlines()
    assert [(a.strip(), b.strip()) for a, b in zip(one, two, strict=True) if a != b] == [
        ("router_id spark1", "router_id spark2"),
        ("priority 200", "priority 199"),
        ("unicast_src_ip 10.0.0.1", "unicast_src_ip 10.0.0.2"),
        ("10.0.0.2 min_ttl 255 max_ttl 255", "10.0.0.1 min_ttl 255 max_ttl 255"),
    ]
