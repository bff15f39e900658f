"""Playbooks: the stages of a move, as YAML that an operator can read, copy and change."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from fleetctl.errors import SpecError
from fleetctl.render.release import Value
from fleetctl.spec.plain import plain_yaml


class Use(Value):
    """A step that a stage uses, with the parameters the playbook gives it."""

    step: str
    params: dict[str, Any] = {}


def _use(value: Any) -> Any:
    """``name`` or ``name: {parameter: value}``."""
    if isinstance(value, str):
        return {"step": value}
    if isinstance(value, dict) and len(value) == 1 and "step" not in value:
        name, params = next(iter(value.items()))
        return {"step": name, "params": params or {}}
    return value


class PlaybookStage(Value):
    """Steps that belong together. With ``flow`` each lane goes on without waiting for the others.

    With ``one_at_a_time`` all its steps are done for one engine before the first of them for the next.
    """

    stage: str
    summary: str
    flow: bool = False
    one_at_a_time: bool = False
    steps: tuple[Annotated[Use, BeforeValidator(_use)], ...] = Field(min_length=1)


class Playbook(Value):
    """All stages of one kind of move."""

    name: str
    stages: tuple[PlaybookStage, ...] = Field(min_length=1)


def parse_playbook(text: str, source: str, known: Collection[str]) -> Playbook:
    """The playbook in a YAML text. Raises SpecError naming the source, the place and the nearest known step."""
    try:
        book = Playbook.model_validate(plain_yaml(text, source))
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(str(part) for part in problem['loc']) or 'the file'}: {problem['msg']}"
            for problem in error.errors()
        )
        raise SpecError(f"{source} is not a playbook: {wrong}") from error
    used = [use.step for stage in book.stages for use in stage.steps]
    for step in used:
        if step not in known:
            near = difflib.get_close_matches(step, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"steps are: {', '.join(sorted(known))}"
            raise SpecError(f"{source}: there is no step named {step}", hint=hint)
    repeated = sorted({step for step in used if used.count(step) > 1})
    if repeated:
        raise SpecError(f"{source}: used more than once: {', '.join(repeated)}")
    names = [stage.stage for stage in book.stages]
    if len(set(names)) != len(names):
        raise SpecError(f"{source}: two stages have the same name")
    return book
