"""What was found by measuring, written into fleet.yaml: shown first, and asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fleetctl.bench.report import Told, Tried
from fleetctl.cli.ask import confirm
from fleetctl.cli.output import console, emit, say
from fleetctl.cli.show_tune import difference, show_difference
from fleetctl.errors import RefusedError
from fleetctl.render.candidate import BATCHED, DRAFTS, SHARE
from fleetctl.spec.edit import save, with_concurrency
from fleetctl.spec.edit_engine import EngineSettings, with_engine_settings


def write_concurrency(
    file: Path, text: str, layout: str, model: str, boxes: list[str], found: Sequence[Told], *, yes: bool, json: bool
) -> None:
    """The smallest answer of the copies becomes the concurrency of their placement."""
    chosen = min(told.tuned.answer.concurrency for told in found)
    after = with_concurrency(text, layout, model, chosen, boxes, str(file))
    _write(file, text, after, yes=yes, json=json, layout=layout, model=model, concurrency=chosen)


def write_settings(
    file: Path, text: str, layout: str, model: str, boxes: list[str], found: Sequence[Tried], *, yes: bool, json: bool
) -> None:
    """What came out better is set; a setting for all copies only where all that were measured agree."""
    after = text
    agreed: dict[str, float] = {}
    for name in (BATCHED, DRAFTS):
        answers = [told.better(name) for told in found if name in told.outcome.chosen]
        values = {value for value in answers if value is not None}
        if len(values) == 1 and None not in answers:
            agreed[name] = values.pop()
        elif values:
            words = ", ".join("as it is" if value is None else f"{value:g}" for value in answers)
            say(f"{name} stays: the copies differ ({words}), and it is set for all of them", as_json=json)
    wanted = EngineSettings(_whole(agreed.get(BATCHED)), _whole(agreed.get(DRAFTS)))
    after = with_engine_settings(after, layout, model, boxes, wanted, str(file))
    shares = {box: share for box, told in zip(boxes, found, strict=True) if (share := told.better(SHARE)) is not None}
    for box, share in shares.items():
        after = with_engine_settings(after, layout, model, [box], EngineSettings(share=share), str(file))
    _write(file, text, after, yes=yes, json=json, layout=layout, model=model, settings=agreed, shares=shares)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _write(file: Path, text: str, after: str, *, yes: bool, json: bool, **what: Any) -> None:
    diff = difference(str(file), text, after, "tuned")
    if not json:
        show_difference(diff, console())
    if diff:
        if not yes and not confirm(f"Write this into {file}?"):
            raise RefusedError("not done; nothing was changed")
        save(file, text, after)
    if json:
        emit("written", file=str(file), **what, diff=diff)
    elif diff:
        console().print(f"{file} is written. `fleetctl apply` brings it to the engines, one at a time.", markup=False)
    else:
        console().print(f"{file} stays as it is: nothing that was measured says otherwise.", markup=False)
