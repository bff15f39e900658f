"""Why a fleet.yaml does not fit the models of :mod:`fleetctl.spec.fleet`, in words of the file.

pydantic decides whether a file is accepted; this walks the same annotations beside the tree to say what is wrong. Keys,
ranges, patterns and validators are read from the models, so there is one place that knows them.
"""

from __future__ import annotations

import re
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic.fields import FieldInfo

from fleetctl.spec.fleet import Fleet
from fleetctl.spec.part import Rule
from fleetctl.spec.problems import (
    Path,
    Problem,
    did_you_mean,
    holds_secret,
    listed,
    looks_secret,
    nearest,
    shown,
)
from fleetctl.spec.tree import Tree
from fleetctl.spec.units import parse_duration, parse_size
from fleetctl.spec.wants import SECRET_FORMS, described, in_range, outline, peeled, required


def explain(tree: Tree) -> list[Problem]:
    """Every place where the tree does not fit :class:`Fleet`."""
    walk = _Walk(tree)
    walk.check(Fleet, tree.data, ())
    return walk.problems


_UNITS = (parse_size, parse_duration)


class _Walk:
    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.problems: list[Problem] = []

    def say(self, path: Path, message: str, *, key: bool = False) -> None:
        self.problems.append(self.tree.problem(path, message, key=key))

    def check(self, want: Any, value: Any, path: Path) -> None:
        """Say what is wrong with a value that should be what an annotation wants."""
        if path in self.tree.suspect:
            return  # what the tree says about it is what there is to say
        self._peeled(*peeled(want), value, path)

    def _peeled(self, want: Any, rules: list[Any], value: Any, path: Path) -> None:
        for rule in rules:
            if isinstance(rule, BeforeValidator):
                self._validated(want, rule, rules, value, path)
                return
        if get_origin(want) in (Union, UnionType):
            self._either(want, value, path)
        elif isinstance(want, type) and issubclass(want, BaseModel):
            self._part(want, value, path)
        elif get_origin(want) is dict:
            self._mapping(want, rules, value, path)
        elif get_origin(want) in (tuple, list):
            self._list(want, rules, value, path)
        elif get_origin(want) is Literal:
            self._literal(want, value, path)
        elif want is str:
            self._text(rules, value, path)
        elif want in (int, float):
            self._number(want, rules, value, path)
        elif want is bool and not isinstance(value, bool):
            quoted = isinstance(value, str) and value.lower() in ("true", "false", "yes", "no", "on", "off")
            self.say(path, f"{self._is(value, path)} and must be true or false{', without quotes' if quoted else ''}")

    def _validated(self, want: Any, rule: BeforeValidator, rules: list[Any], value: Any, path: Path) -> None:
        try:
            changed: Any = rule.func(value)  # type: ignore[call-arg]
        except ValueError as error:
            quoted = f"{shown(value, path)} is not right: " if rule.func in _UNITS and value is not None else ""
            self.say(path, f"{quoted}{error}")
            return
        if changed is not value and type(changed) is not type(value) and not isinstance(changed, dict):
            return  # a size or a duration: now a number, and in range
        self._peeled(want, [other for other in rules if other is not rule], changed, path)

    def _part(self, want: type[BaseModel], value: Any, path: Path) -> None:
        if not isinstance(value, dict):
            dispensable = not required(want) and not getattr(want, "SHORTEST", ())
            out = "take the key out, or " if value is None and path and dispensable else ""
            self.say(path, f"{self._is(value, path)}; {out}write {outline(want)}")
            return
        fields = want.model_fields
        found_before = len(self.problems)
        meant = set()
        for name, below in value.items():
            if name in fields:
                self._field(fields[name], below, (*path, name))
            elif want.model_config.get("extra") != "allow":
                near = nearest(name, (key for key in fields if key not in value))
                meant.add(near)
                self.say((*path, name), f"there is no such key here; {did_you_mean(name, fields)}", key=True)
        missing = [name for name in required(want) if name not in value and name not in meant]
        if missing:
            noun = "the key" if len(missing) == 1 else "the keys"
            self.say(path, f"{noun} {listed(missing)} must be here; write {outline(want)}", key=True)
        if len(self.problems) == found_before and want is not Fleet:
            self._whole(want, value, path)

    def _field(self, field: FieldInfo, value: Any, path: Path) -> None:
        if path in self.tree.suspect:
            return
        want, rules = peeled(field.annotation)
        self._peeled(want, rules + field.metadata, value, path)

    def _whole(self, want: type[BaseModel], value: Any, path: Path) -> None:
        """Rules about a part as a whole, once its keys are right by themselves."""
        try:
            want.model_validate(value)
        except ValidationError as error:
            for found in error.errors(include_url=False, include_input=False):
                if found["type"] == "value_error" and not found["loc"]:
                    self.say(path, str(found["ctx"]["error"]))

    def _mapping(self, want: Any, rules: list[Any], value: Any, path: Path) -> None:
        key_want, value_want = get_args(want)
        if not isinstance(value, dict):
            self.say(path, f"{self._is(value, path)}; write {described(want)}")
            return
        if not value and any(isinstance(rule, annotated_types.MinLen) for rule in rules):
            self.say(path, "this is empty and needs at least one entry")
        for name, below in value.items():
            self._name(key_want, name, (*path, name))
            self.check(value_want, below, (*path, name))

    def _name(self, want: Any, name: str, path: Path) -> None:
        rule = _broken_pattern(peeled(want)[1], name)
        if rule:
            plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:31]
            hint = f"; did you mean {plain}?" if plain and not holds_secret(name) else ""
            self.say(path, f"{rule}{hint}", key=True)

    def _list(self, want: Any, rules: list[Any], value: Any, path: Path) -> None:
        if not isinstance(value, list):
            hint = f"write [{value}]" if isinstance(value, str) and _one_word(value) else "write [a, b]"
            hint = "write {env: NAME} where the secret is" if shown(value, path) == "this value" else hint
            self.say(path, f"{self._is(value, path)} and must be a list; {hint}")
            return
        if not value and any(isinstance(rule, annotated_types.MinLen) for rule in rules):
            self.say(path, "this list is empty and needs at least one entry")
        for index, item in enumerate(value):
            self.check(get_args(want)[0], item, (*path, index))

    def _either(self, want: Any, value: Any, path: Path) -> None:
        options = [option for option in get_args(want) if option is not NoneType]
        if value is None and NoneType in get_args(want):
            return
        fitting = [option for option in options if _fits(option, value)]
        if len(options) == 1 or len(fitting) == 1:
            self.check((fitting or options)[0], value, path)
        elif len(fitting) > 1:
            self._one_of(fitting, value, path)
        elif str in options and isinstance(value, bool | int | float):
            self._text([], value, path)
        else:
            choices = listed((described(option) for option in options), "or")
            self.say(path, f"{self._is(value, path)}; write {choices}")

    def _one_of(self, parts: list[type[BaseModel]], value: dict[str, Any], path: Path) -> None:
        """One of several kinds of part, told apart by the keys that each must have."""
        by_key = {key: part for part in parts for key in required(part)}
        given = [key for key in by_key if key in value]
        if len(given) == 1:
            self.check(by_key[given[0]], value, path)
            return
        choices = listed((outline(part) for part in parts), "or")
        if given:
            self.say(path, f"{listed(given)} cannot both be here; write {choices}")
            return
        near = {nearest(name, by_key): name for name in value}
        meant = next((key for key in near if key is not None), None)
        if meant is not None:
            self.check(by_key[meant], value, path)
            return
        self.say(path, f"write {choices}", key=True)

    def _literal(self, want: Any, value: Any, path: Path) -> None:
        choices = [str(choice) for choice in get_args(want)]
        if value not in get_args(want):
            hint = did_you_mean(str(value), choices) if isinstance(value, str) else ""
            self.say(path, f"{self._is(value, path)}; {hint or 'write ' + listed(choices, 'or')}")

    def _text(self, rules: list[Any], value: Any, path: Path) -> None:
        if isinstance(value, str):
            rule = _broken_pattern(rules, value)
            if rule:
                self.say(path, f"{shown(value, path)} is not right: {rule}")
            return
        written = self.tree.words.get(path, "")
        if isinstance(value, bool | int | float):
            what = f"yes or no ({str(value).lower()})" if isinstance(value, bool) else "a number"
            if any(isinstance(part, str) and looks_secret(part) for part in path):
                self.say(path, f"a secret does not belong in this file: write {SECRET_FORMS}")
                return
            self.say(path, f'{written} is read by YAML as {what}; for text write "{written}" in quotes')
        elif value is None:
            self.say(path, "there is no value; write text, or take the key out")
        else:
            self.say(path, f"{self._is(value, path)} and must be text")

    def _number(self, want: Any, rules: list[Any], value: Any, path: Path) -> None:
        kind = f"{'a whole number' if want is int else 'a number'}{in_range(rules)}"
        if isinstance(value, bool) or not isinstance(value, int if want is int else int | float):
            plain = re.sub(r"[\s,_']", "", value) if isinstance(value, str) else ""
            if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", plain):
                self.say(path, f"{shown(value, path)} is text; write {plain} without quotes")
            else:
                self.say(path, f"{self._is(value, path)} and must be {kind}")
            return
        for rule in rules:
            low = isinstance(rule, annotated_types.Ge) and value < rule.ge  # type: ignore[operator]
            low = low or (isinstance(rule, annotated_types.Gt) and value <= rule.gt)  # type: ignore[operator]
            if low or (isinstance(rule, annotated_types.Le) and value > rule.le):  # type: ignore[operator]
                self.say(path, f"{value} is out of range; write {kind}")
                return

    def _is(self, value: Any, path: Path) -> str:
        """``this is empty``, ``"x" is text``, ``this is a list``."""
        if value is None:
            return "this is empty"
        if isinstance(value, dict | list):
            return f"this is {shown(value)}"
        if isinstance(value, bool):
            return f"{self.tree.words.get(path, 'this')} is yes or no"
        return f"{shown(value, path)} is {'text' if isinstance(value, str) else 'a number'}"


def _fits(option: Any, value: Any) -> bool:
    want, _ = peeled(option)
    if (isinstance(want, type) and issubclass(want, BaseModel)) or get_origin(want) is dict:
        return isinstance(value, dict)
    if get_origin(want) in (tuple, list):
        return isinstance(value, list)
    return isinstance(want, type) and isinstance(value, want) and not isinstance(value, bool)


def _broken_pattern(rules: list[Any], value: str) -> str | None:
    """The rule, in words, of a pattern that the value does not have."""
    words = next((str(rule) for rule in rules if isinstance(rule, Rule)), None)
    for rule in rules:
        pattern = getattr(rule, "pattern", None)
        if isinstance(pattern, str) and not re.search(pattern.removesuffix("$") + r"\Z", value):
            return words or f"it must look like {pattern}"
    return None


def _one_word(value: str) -> bool:
    return re.fullmatch(r"[\w./@-]{1,40}", value) is not None
