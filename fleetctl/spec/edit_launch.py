"""Changing what a model is launched from in the text of a fleet.yaml, and nothing else in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import TypeAdapter

from fleetctl.errors import SpecError
from fleetctl.spec.edit import by_hand, mapping_in, replaced, with_key
from fleetctl.spec.fleet_model import Build, Start
from fleetctl.spec.load import parse_fleet
from fleetctl.spec.syntax import compose

_LAUNCH: TypeAdapter[Start | Build] = TypeAdapter(Start | Build)
_PLAIN = re.compile(r"[A-Za-z0-9/][A-Za-z0-9_./@+-]*(:[A-Za-z0-9_./@+-]+)*")


def with_launch(text: str, model: str, launch: Mapping[str, Any], source: str = "fleet.yaml") -> str:
    """The text with ``launch`` of a model, such as ``{"build": "v33"}``; comments, order and form stay.

    Raises SpecError when the file is not one that is understood, or cannot be edited without changing something else.
    """
    before = parse_fleet(text, source)
    wanted = before.models[model].model_copy(update={"launch": _LAUNCH.validate_python(dict(launch))})
    name = f"models: {model}"
    try:
        edited = _edited(text, model, launch)
        after = parse_fleet(edited, source)
    except SpecError as error:
        raise by_hand({"launch": _flow(launch)}, source, name) from error
    if after != before.model_copy(update={"models": {**before.models, model: wanted}}):
        raise by_hand({"launch": _flow(launch)}, source, name)
    return edited


def _edited(text: str, model: str, launch: Mapping[str, Any]) -> str:
    here = mapping_in(mapping_in(compose(text, "fleet.yaml"), "models"), model)
    pair = next(((name, value) for name, value in here.value if name.value == "launch"), None)
    if pair is None:  # it comes by <<, for other models too: this one gets its own
        return with_key(text, here, "launch", _flow(launch))
    name, value = pair
    colon = text.index(":", name.end_mark.index)
    written_here = text[colon + 1 :].lstrip(" \t")[:1] != "*"  # an alias has its marks where its anchor is
    if isinstance(value, yaml.MappingNode) and written_here:
        keys = [key.value for key, _ in value.value]
        same = [key for key in launch if key in keys and len(launch) == len(keys) == 1]
        if same:  # only the word changes, and a comment behind it stays
            return with_key(text, value, same[0], _word(launch[same[0]]))
        if not value.flow_style and value.value:
            end = _last(value).end_mark.index
            return f"{text[: colon + 1]} {_flow(launch)}{text[end:]}"
    return replaced(text, name, value, _flow(launch))


def _last(node: yaml.Node) -> yaml.Node:
    """The last word of a node in the text."""
    while isinstance(node, yaml.MappingNode | yaml.SequenceNode) and not node.flow_style and node.value:
        node = node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1]
    return node


def _flow(launch: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {_word(value)}" for key, value in launch.items()) + "}"


def _word(value: Any) -> str:
    """A value as YAML has it in one line: bare where that reads as the same text."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and yaml.safe_load(value) == value:
        return value
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_word(item) for item in value) + "]"
    return json.dumps(value)
