"""What the annotations of the models want, in words: shared by the messages and the reference."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from fleetctl.spec.problems import listed
from fleetctl.spec.secret import Secret
from fleetctl.spec.units import parse_duration, parse_size

SECRET_FORMS = "{env: NAME}, {file: PATH} or {command: [argv]}"


def peeled(want: Any) -> tuple[Any, list[Any]]:
    """An annotation without its ``Annotated``, and the metadata it had, a ``Field`` taken apart."""
    rules: list[Any] = []
    while get_origin(want) is Annotated:
        want, *metadata = get_args(want)
        for rule in metadata:
            rules += rule.metadata if isinstance(rule, FieldInfo) else [rule]
    return want, rules


def required(part: type[BaseModel]) -> list[str]:
    """The keys that a part must have, in the order of the model."""
    return [name for name, field in part.model_fields.items() if field.is_required()]


def outline(part: type[BaseModel]) -> str:
    """The shortest form of a part: ``{address: …, memory: …, reserve: …}``."""
    if part is Secret:
        return f"a secret by reference: {SECRET_FORMS}"
    certain = required(part) or list(getattr(part, "SHORTEST", ()))
    keys = certain or list(part.model_fields)[:3]
    more = ", …" if len(keys) < len(part.model_fields) and not certain else ""
    return "{" + ", ".join(f"{key}: …" for key in keys) + more + "}"


def described(want: Any) -> str:
    """What to write where an annotation stands, in a few words."""
    want, rules = peeled(want)
    for rule in rules:
        if isinstance(rule, BeforeValidator) and rule.func in (parse_size, parse_duration):
            return "a size, like 71GiB" if rule.func is parse_size else "a duration, like 90s or 15m"
        if isinstance(rule, BeforeValidator) and get_origin(rule.json_schema_input_type) is not None:
            return described(rule.json_schema_input_type)
    if get_origin(want) in (Union, UnionType):
        options = [described(option) for option in get_args(want) if option is not NoneType]
        return listed(dict.fromkeys(options), "or")
    if isinstance(want, type) and issubclass(want, BaseModel):
        return outline(want)
    if get_origin(want) is dict:
        below = described(get_args(want)[1])
        return f"a mapping of names to {below}"
    if get_origin(want) in (tuple, list):
        return f"a list of {described(get_args(want)[0])}"
    if get_origin(want) is Literal:
        return listed((str(choice) for choice in get_args(want)), "or")
    names = {bool: "true or false", str: "text", int: "a whole number", float: "a number"}
    return f"{names.get(want, 'a value')}{in_range(rules)}"


def in_range(rules: list[Any]) -> str:
    """`` from 1 to 65535`` for the limits in the metadata of an annotation; empty without limits."""
    least = next((rule.ge for rule in rules if isinstance(rule, annotated_types.Ge)), None)
    above = next((rule.gt for rule in rules if isinstance(rule, annotated_types.Gt)), None)
    most = next((rule.le for rule in rules if isinstance(rule, annotated_types.Le)), None)
    if least is not None:
        return f" from {least} {'up' if most is None else f'to {most}'}"
    if above is not None:
        return f" above {above}{'' if most is None else f' and up to {most}'}"
    return "" if most is None else f" up to {most}"
