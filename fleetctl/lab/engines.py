"""Which engine the lab's boxes run, and the fleet.yaml that fits it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jinja2 import Environment, StrictUndefined

from fleetctl.lab.lab import Lab
from fleetctl.lab.requirements import Say
from fleetctl.lab.state import Bind, LabBox
from fleetctl.resources import root_text

EngineKind = Literal["standin", "vllm"]

STANDIN = Path("/opt/standin")
STANDIN_SOURCE = Path(__file__).parent / "standin"


def bring_up(lab: Lab, boxes: int | None, engine: EngineKind, say: Say, *, speed: float = 1.0) -> list[LabBox]:
    """Boxes with an engine to run, and the lab's fleet.yaml. Safe to repeat."""
    binds = [Bind(STANDIN_SOURCE, STANDIN)]
    if engine == "vllm":
        from fleetctl.lab.realvllm import install_vllm
        from fleetctl.lab.tinymodel import make_tiny_model

        engines = lab.root / "engines"
        engines.mkdir(parents=True, exist_ok=True)
        venv = install_vllm(vllm_folder(lab), say)
        model = make_tiny_model(model_folder(lab), venv / "bin" / "python", say)
        binds += [Bind(venv, venv), Bind(model, model)]
    made = lab.up(boxes, say, binds=binds)
    lab.fleet_file.write_text(fleet_text(lab, made, engine, speed=speed))
    return made


def vllm_folder(lab: Lab) -> Path:
    """Where real vLLM is installed; the boxes see it at the same path, read-only."""
    from fleetctl.lab.realvllm import VERSION

    return lab.root / "engines" / f"vllm-{VERSION}"


def model_folder(lab: Lab) -> Path:
    """Where the tiny model for real vLLM is."""
    return lab.root / "engines" / "tiny-llama"


def fleet_text(lab: Lab, boxes: Sequence[LabBox], engine: EngineKind, *, speed: float = 1.0) -> str:
    """The fleet.yaml of a lab."""
    values: dict[str, object] = {"memory": "4GiB", "reserve": "1GiB", "concurrency": 12, "speed": speed}
    if engine == "vllm":
        from fleetctl.lab.realvllm import ENGINE_ARGUMENTS, ENGINE_ENVIRONMENT

        values |= {
            "venv": vllm_folder(lab),
            "model": model_folder(lab),
            "arguments": list(ENGINE_ARGUMENTS),
            "environment": dict(ENGINE_ENVIRONMENT),
            "memory": "8GiB",
            "reserve": "2GiB",
            "concurrency": 4,
        }
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(root_text("templates", "lab.yaml.j2"))
    return template.render(boxes=list(boxes), engine=engine, **values) + "\n"
