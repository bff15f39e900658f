"""Which engine the lab's boxes run, and the fleet.yaml that fits it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jinja2 import Environment, StrictUndefined

from fleetctl.errors import LabError
from fleetctl.lab import folder
from fleetctl.lab.image import IMAGE, SETTINGS, write_image_tree
from fleetctl.lab.lab import DEFAULT_ROOT, Lab
from fleetctl.lab.requirements import Say
from fleetctl.lab.state import Bind, Containers, LabBox, write_whole
from fleetctl.resources import root_text

EngineKind = Literal["standin", "vllm"]

STANDIN = Path("/opt/standin")
STANDIN_SOURCE = Path(__file__).parent / "standin"

_ON_BOX = "/var/lib/standin-image.tar"
# Of realvllm's arguments, those that fleetctl sets itself, from context: and concurrency:.
_SET_BY_FLEETCTL = ("--max-model-len", "--max-num-seqs")
# The proxy asks twice a second: its questions would push everything else out of a unit's last lines.
_QUIET = "--disable-access-log-for-endpoints=/health,/metrics"


def engines_folder() -> Path:
    """Where real engines and their model are kept for every lab of this machine; FLEETCTL_ENGINES names another."""
    return Path(os.environ.get("FLEETCTL_ENGINES") or DEFAULT_ROOT / "engines").absolute()


def bring_up(
    lab: Lab,
    boxes: int | None,
    engine: EngineKind,
    say: Say,
    *,
    speed: float = 1.0,
    engines: Path | None = None,
    containers: Containers = None,
) -> list[LabBox]:
    """Boxes with an engine to run, and the lab's fleet.yaml. Safe to repeat.

    With ``containers`` the stand-in runs in those, from an image that all boxes have; None keeps what the lab has.

    ``engines`` is the folder that holds real vLLM and its model, made there when they are missing (default:
    `engines_folder`). It lies outside of the lab, so that labs share it and none downloads it again.
    """
    binds = [Bind(STANDIN_SOURCE, STANDIN)]
    folder = engines or engines_folder()
    if engine == "vllm":
        from fleetctl.lab.realvllm import install_vllm
        from fleetctl.lab.tinymodel import make_tiny_model

        folder.mkdir(parents=True, exist_ok=True)
        venv = install_vllm(vllm_folder(folder), say)
        model = make_tiny_model(model_folder(folder), venv / "bin" / "python", say)
        binds += [Bind(venv, venv), Bind(model, model)]
    made = lab.up(boxes, say, binds=binds, containers=containers)
    if lab.containers:
        load_image(lab, [box.name for box in made], say)
    _write_fleet_file(lab, fleet_text(lab, made, engine, speed=speed, engines=folder), say)
    return made


def load_image(lab: Lab, names: Sequence[str], say: Say) -> None:
    """The image with the stand-in onto boxes that lack it: made on one, the same one on the others."""
    program = lab.containers or "podman"
    lacking = [name for name in names if lab.exec(name, [program, "image", "inspect", IMAGE]).returncode != 0]
    if not lacking:
        return
    archive = lab.root / folder.IMAGE
    if not archive.exists():
        say(f"making the image {IMAGE} (Debian's python3 and the stand-in)")
        make_image(lab, lacking[0], archive)
    for name in lacking:
        lab.copy_in(name, archive, _ON_BOX)
        _containers(lab, name, "load", "--quiet", "--input", _ON_BOX)
        lab.exec(name, ["rm", "-f", _ON_BOX])
        say(f"{name} has the image {IMAGE}")


def make_image(lab: Lab, name: str, archive: Path) -> None:
    """Make the image on a box, and save it as an archive of this machine; the box does not keep it."""
    write_image_tree(lab.base_system(), STANDIN_SOURCE, archive)
    lab.copy_in(name, archive, _ON_BOX)
    changes = [word for setting in SETTINGS for word in ("--change", setting)]
    _containers(lab, name, "import", *changes, _ON_BOX, IMAGE)
    _containers(lab, name, "save", "--output", f"{_ON_BOX}.saved", IMAGE)
    lab.copy_out(name, f"{_ON_BOX}.saved", archive)
    _containers(lab, name, "image", "rm", "--force", IMAGE)
    lab.exec(name, ["rm", "-f", _ON_BOX, f"{_ON_BOX}.saved"])


def _containers(lab: Lab, name: str, *words: str) -> None:
    program = lab.containers or "podman"
    done = lab.exec(name, [program, *words])
    if done.returncode != 0:
        raise LabError(f"{name}: {program} {words[0]} ended with {done.returncode}: {done.stderr.strip()[-500:]}")


def _write_fleet_file(lab: Lab, text: str, say: Say) -> None:
    """Write the lab's fleet.yaml, unless somebody has edited the one that is there."""
    written = lab.root / ".fleet.yaml.written"
    there = lab.fleet_file.read_text() if lab.fleet_file.exists() else None
    if there is not None and written.exists() and there != written.read_text():
        say(f"{lab.fleet_file} was edited and is left as it is; remove it and repeat to get a new one")
        return
    write_whole(lab.fleet_file, text)
    write_whole(written, text)


def vllm_folder(engines: Path) -> Path:
    """Where real vLLM is installed; the boxes see it at the same path, read-only."""
    from fleetctl.lab.realvllm import VERSION

    return engines / f"vllm-{VERSION}"


def model_folder(engines: Path) -> Path:
    """Where the tiny model for real vLLM is."""
    return engines / "tiny"


def fleet_text(
    lab: Lab,
    boxes: Sequence[LabBox],
    engine: EngineKind,
    *,
    speed: float = 1.0,
    engines: Path | None = None,
) -> str:
    """The fleet.yaml of a lab."""
    values: dict[str, object] = {"memory": "4GiB", "reserve": "1GiB", "concurrency": 12, "speed": speed}
    if engine == "vllm":
        from fleetctl.lab.realvllm import ENGINE_ARGUMENTS, ENGINE_ENVIRONMENT

        folder = engines or engines_folder()
        values |= {
            "venv": vllm_folder(folder),
            "model": model_folder(folder),
            "arguments": [*(word for word in ENGINE_ARGUMENTS if not word.startswith(_SET_BY_FLEETCTL)), _QUIET],
            "environment": dict(ENGINE_ENVIRONMENT),
            "memory": "8GiB",
            "reserve": "2GiB",
            "concurrency": 4,
        }
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    values |= {"image": IMAGE, "containers": lab.containers if engine == "standin" else None}
    template = environment.from_string(root_text("templates", "lab.yaml.j2"))
    return template.render(boxes=list(boxes), engine=engine, **values) + "\n"
