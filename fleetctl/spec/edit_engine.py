"""Settings that an engine reads when it starts, set in the text of a fleet.yaml: comments, order and form stay.

As in :mod:`fleetctl.spec.edit` the text is read again afterwards, and an edit that changes anything else is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from fleetctl.errors import SpecError
from fleetctl.spec.edit import by_hand, mapping_in, replaced, with_key
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.load import parse_fleet
from fleetctl.spec.syntax import compose

BATCHED_FLAG = "--max-num-batched-tokens"
SHARE = "gpu_memory_utilization"


@dataclass(frozen=True)
class EngineSettings:
    """What to set of a model in a layout; None: it stays. ``share`` is of the boxes that it was measured on."""

    batched_tokens: int | None = None
    speculative_tokens: int | None = None
    share: float | None = None


def with_engine_settings(
    text: str, layout: str, model: str, boxes: Collection[str], wanted: EngineSettings, source: str = "fleet.yaml"
) -> str:
    """The text with these settings. Batched tokens are set where the flag stands, else in the placement.

    Raises SpecError when the file is not one that is understood, or cannot be edited without changing something else.
    """
    fleet, edited = parse_fleet(text, source), text
    where, lines = f"layouts: {layout}: {model}", dict[str, str]()
    try:
        if wanted.batched_tokens is not None:
            lines = {"arguments": f'[{BATCHED_FLAG}, "{wanted.batched_tokens}"]'}
            edited, fleet = _with_batched(edited, fleet, layout, model, boxes, wanted.batched_tokens)
        if wanted.speculative_tokens is not None:
            where, lines = f"models: {model}", {"num_speculative_tokens": str(wanted.speculative_tokens)}
            edited, fleet = _with_drafts(edited, fleet, model, wanted.speculative_tokens)
        if wanted.share is not None:
            where, lines = f"layouts: {layout}: {model}: copies: {next(iter(boxes))}", {SHARE: f"{wanted.share:g}"}
            for box in boxes:
                edited, fleet = _with_share(edited, fleet, layout, model, box, wanted.share)
    except SpecError as error:
        raise by_hand(lines, source, where) from error
    after = parse_fleet(edited, source)  # what the file has no room for is said of the value itself
    if after != fleet:
        raise by_hand(lines, source, where)
    return edited


def _at(text: str, *keys: str) -> yaml.MappingNode:
    here = mapping_in(compose(text, "fleet.yaml"), keys[0])
    for key in keys[1:]:
        here = mapping_in(here, key)
    return here


def _with_drafts(text: str, fleet: Fleet, model: str, tokens: int) -> tuple[str, Fleet]:
    speculative = fleet.models[model].speculative
    if speculative is None:
        raise SpecError(f"{model} has no speculative:")
    key = "num_speculative_tokens"
    edited = with_key(text, _at(text, "models", model, "speculative"), key, str(tokens))
    part = fleet.models[model].model_copy(update={"speculative": speculative.model_copy(update={key: tokens})})
    return edited, fleet.model_copy(update={"models": {**fleet.models, model: part}})


def _placed(fleet: Fleet, layout: str, model: str, **update: Any) -> Fleet:
    placement = fleet.layouts[layout][model].model_copy(update=update)
    return fleet.model_copy(update={"layouts": {**fleet.layouts, layout: {**fleet.layouts[layout], model: placement}}})


def _with_share(text: str, fleet: Fleet, layout: str, model: str, box: str, share: float) -> tuple[str, Fleet]:
    placement = fleet.layouts[layout][model]
    copies = placement.copies or {}
    wanted = _placed(fleet, layout, model, copies={**copies, box: copies[box].model_copy(update={SHARE: share})})
    entry = f"{{{SHARE}: {share:g}}}"
    name, node = _pair(_at(text, "layouts", layout, model), "copies")
    if isinstance(node, yaml.SequenceNode):
        return _as_mapping(text, name, node, {one: entry if one == box else "{}" for one in copies}), wanted
    if not isinstance(node, yaml.MappingNode):
        raise SpecError("copies: is not written out")
    there, seat = _pair(node, box)
    if isinstance(seat, yaml.MappingNode) and seat.value:
        return with_key(text, seat, SHARE, f"{share:g}"), wanted
    return replaced(text, there, seat, entry), wanted


def _as_mapping(text: str, name: yaml.Node, node: yaml.SequenceNode, entries: dict[str, str]) -> str:
    """A list of boxes as a mapping of them. Raises SpecError where a comment stands in it."""
    begin, end = node.start_mark.index, node.end_mark.index
    if "#" in text[begin:end].rstrip():
        raise SpecError("a comment stands in the list of boxes")
    if node.flow_style:
        written = ", ".join(f"{box}: {entry}" for box, entry in entries.items())
        return f"{text[:begin]}{{{written}}}{text[end:]}"
    indent = node.start_mark.column
    if indent <= name.start_mark.column:
        raise SpecError("the list of boxes is not indented")
    lines = [f"{box}: {entry}" for box, entry in entries.items()]
    tail = text[begin:end][len(text[begin:end].rstrip()) :]
    return text[:begin] + ("\n" + " " * indent).join(lines) + tail + text[end:]


def _with_batched(
    text: str, fleet: Fleet, layout: str, model: str, boxes: Collection[str], tokens: int
) -> tuple[str, Fleet]:
    placement, part = fleet.layouts[layout][model], fleet.models[model]
    own = [box for box in boxes if _flag_at(placement.boxes[box].arguments) is not None]
    kind = placement.kind
    for box in own:
        seat = placement.boxes[box]
        text = _flag_set(text, ("layouts", layout, model, kind, box), seat.arguments, tokens)
        seats = fleet.layouts[layout][model].boxes
        changed = seat.model_copy(update={"arguments": _changed(seat.arguments, tokens)})
        fleet = _placed(fleet, layout, model, **{kind: {**seats, box: changed}})
    if len(own) == len(boxes) > 0:
        return text, fleet
    if _flag_at(placement.arguments) is None and _flag_at(part.arguments) is not None:
        text = _flag_set(text, ("models", model), part.arguments, tokens)
        changed_model = part.model_copy(update={"arguments": _changed(part.arguments, tokens)})
        return text, fleet.model_copy(update={"models": {**fleet.models, model: changed_model}})
    text = _flag_set(text, ("layouts", layout, model), placement.arguments, tokens)
    return text, _placed(fleet, layout, model, arguments=_changed(placement.arguments, tokens))


def _flag_at(arguments: Sequence[str]) -> int | None:
    """Where the flag stands, the last time, however it is spelled."""
    places = [at for at, word in enumerate(arguments) if word.partition("=")[0].replace("_", "-") == BATCHED_FLAG]
    return places[-1] if places else None


def _changed(arguments: Sequence[str], tokens: int) -> tuple[str, ...]:
    at = _flag_at(arguments)
    if at is None:
        return (*arguments, BATCHED_FLAG, str(tokens))
    flag, equals, _ = arguments[at].partition("=")
    if equals:
        return (*arguments[:at], f"{flag}={tokens}", *arguments[at + 1 :])
    return (*arguments[: at + 1], str(tokens), *arguments[at + 2 :])


def _flag_set(text: str, keys: tuple[str, ...], arguments: Sequence[str], tokens: int) -> str:
    """The text with the flag in ``arguments:`` of the mapping under ``keys``."""
    here, at = _at(text, *keys), _flag_at(arguments)
    if not any(name.value == "arguments" for name, _ in here.value):
        return with_key(text, here, "arguments", f'[{BATCHED_FLAG}, "{tokens}"]')
    _, node = _pair(here, "arguments")
    if not isinstance(node, yaml.SequenceNode) or len(node.value) != len(arguments):
        raise SpecError("arguments: is not written out")
    if at is not None:
        flag, equals, _ = arguments[at].partition("=")
        word = node.value[at if equals else at + 1]
        new = f"{flag}={tokens}" if equals else f'"{tokens}"'
        return text[: word.start_mark.index] + new + text[word.end_mark.index :]
    if not node.value:
        return f'{text[: node.start_mark.index]}[{BATCHED_FLAG}, "{tokens}"]{text[node.end_mark.index :]}'
    last = node.value[-1]
    if node.flow_style:
        more = f', {BATCHED_FLAG}, "{tokens}"'
        return text[: last.end_mark.index] + more + text[last.end_mark.index :]
    indent = "\n" + " " * node.start_mark.column
    end = text.find("\n", last.end_mark.index)
    end = len(text) if end < 0 else end
    return f'{text[:end]}{indent}- {BATCHED_FLAG}{indent}- "{tokens}"{text[end:]}'


def _pair(node: yaml.MappingNode, key: str) -> tuple[yaml.Node, yaml.Node]:
    for name, value in node.value:
        if name.value == key:
            return name, value
    raise SpecError(f"{key}: is not written out in fleet.yaml")
