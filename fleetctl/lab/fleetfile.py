"""The fleet.yaml that describes the lab's own boxes, from a template."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fleetctl.lab.state import LabBox, write_whole


def render(template: str, boxes: Sequence[LabBox], root: Path) -> str:
    """``template`` (Jinja) filled with ``boxes`` (a list of LabBox) and ``root`` (the lab's folder)."""
    from jinja2 import Environment, StrictUndefined  # only `lab up` needs it, and importing it takes a while

    env = Environment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True)
    return env.from_string(template).render(boxes=list(boxes), root=str(root))


def write(path: Path, template: str, boxes: Sequence[LabBox], root: Path) -> None:
    write_whole(path, render(template, boxes, root))
