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

from fleetctl.render.layout import render_layout
from fleetctl.render.release import Release
from fleetctl.spec.fleet import Fleet

GOLDEN = Path(__file__).parent / "golden"
EXAMPLE = Path(__file__).parents[2] / "templates" / "example.yaml"
FLEETS = {"example": EXAMPLE, "pool": GOLDEN / "pool.yaml"}
# Scripts, the Lua action and the error pages are in the repository already; secrets are references.
KEPT = (".service", ".cfg", ".conf", ".env", "keys", "settings.json")
# Follow from everything else in the file, and from the text of rank.py or of the templates.
DIGEST = re.compile("(?:@[0-9a-f]{12}|(?<=description fleetctl )[0-9a-f]{16})$", re.MULTILINE)


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
        for program in ("opt/vllm/bin/vllm", "usr/bin/docker", "usr/bin/podman", "usr/sbin/haproxy"):
            path = tmp_path / box / program
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
            path.chmod(0o755)
        for file in (file for file in files if file.path.endswith(".service")):
            unit = tmp_path / box / file.path.lstrip("/")
            text = unit.read_text()
            for program in ("/opt/vllm/bin/vllm", "/usr/bin/docker", "/usr/bin/podman", "/usr/sbin/haproxy"):
                text = text.replace(f"={program}", f"={tmp_path}/{box}{program}")
                text = text.replace(f"=-{program}", f"=-{tmp_path}/{box}{program}")
            unit.write_text(text)
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
    on_disk(release, release.proxy.box, tmp_path)
    done = subprocess.run(
        ["haproxy", "-c", "-q", "-f", str(tmp_path / "etc/fleetctl/proxy/haproxy.cfg")],
        capture_output=True,
        text=True,
        check=False,
    )
    unexpected = [line for line in done.stderr.splitlines() if "could not resolve" not in line]
    assert (done.returncode, unexpected) == (0, [])
