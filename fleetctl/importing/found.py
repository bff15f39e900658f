"""What a file of somebody else's says, as far as fleet.yaml has a place for it, and what was not understood."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import yaml

from fleetctl.errors import SpecError
from fleetctl.importing.secrecy import holds_secret, looks_secret
from fleetctl.proxy.lint.findings import Place

Value = str | int | float | bool | list[Any] | dict[str, Any]

MOST_ENGINES = 100
_REFERENCE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)(?::?-([^}]*)|:?\?[^}]*)?\}?")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Word:
    """One word of a command line, and where it stands."""

    text: str
    place: Place


@dataclass(frozen=True, order=True)
class Note:
    """Something that was not understood, or is to be looked at: what, where and why."""

    place: Place
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


@dataclass
class Setting:
    """One value of an entry. ``remark`` stands behind it as a comment; ``assumed``: the file does not say it."""

    value: Value
    remark: str = ""
    assumed: bool = False


@dataclass
class FoundModel:
    """One engine: the entry of its model, and what belongs to a placement of it.

    ``ranks`` is over how many boxes it runs; ``boxes`` are names of those that are known. ``share`` and ``cache`` are
    gpu_memory_utilization and bytes of the KV cache (None: not said).
    """

    place: Place
    name: str
    runtime: str = "vllm"
    settings: dict[str, Setting] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, Setting] = field(default_factory=dict)
    ranks: int = 1
    pipeline: bool = False
    share: float | None = None
    cache: int | None = None
    concurrency: int | None = None
    port: int | None = None
    master_port: int | None = None
    boxes: list[str] = field(default_factory=list)


@dataclass
class FoundBox:
    """A server of a proxy: a box with an engine on a port. ``concurrency``: requests that it got at once."""

    place: Place
    name: str
    address: str
    port: int | None = None
    concurrency: int | None = None


@dataclass
class Found:
    """All that a file says. ``proxy`` has settings of the proxy in fleet.yaml's words, each with where it stood."""

    kind: str
    models: list[FoundModel] = field(default_factory=list)
    boxes: list[FoundBox] = field(default_factory=list)
    proxy: dict[str, Setting] = field(default_factory=dict)
    superseded: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    _said: set[Note] = field(default_factory=set)

    def note(self, place: Place, text: str) -> None:
        """Remember something that was not understood, or is to be looked at; the same thing is said once."""
        note = Note(place, text)
        if note not in self._said:
            self._said.add(note)
            self.notes.append(note)

    def add(self, model: FoundModel) -> None:
        """Take an engine. Raises SpecError when there are more than any fleet has."""
        if len(self.models) == MOST_ENGINES:
            raise SpecError(f"{model.place}: more than {MOST_ENGINES} engines are started: that is not read")
        self.models.append(model)

    @property
    def empty(self) -> bool:
        """There is nothing in it for fleet.yaml."""
        return not (self.models or self.boxes)


def as_name(text: str, fallback: str = "model") -> str:
    """A key of fleet.yaml made from a name of somebody else's."""
    last = text.rstrip("/").rsplit("/", 1)[-1]
    name = re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-")[:31].strip("-") or fallback
    # YAML takes 123, on, null and 2026-01-01 for something else than a name.
    node = yaml.compose(name)
    plain = node is not None and node.tag == "tag:yaml.org,2002:str"
    return name if plain else f"{fallback}-{name}"[:31].strip("-")


def unlike(name: str, taken: Iterable[str]) -> str:
    """The name, with a number behind it where others have it already."""
    known = set(taken)
    found, count = name, 1
    while found in known:
        count += 1
        found = f"{name[: 30 - len(str(count))]}-{count}"
    return found


def is_secret(name: str, value: str) -> bool:
    """A variable has a secret, going by its name or by the form of its value."""
    return bool(value) and (looks_secret(name) or holds_secret(value))


def without_secrets(words: list[Word]) -> str:
    """Words of a command as a note may repeat them: what may be a secret is left out."""
    told = []
    for word in words:
        name, equals, _ = word.text.partition("=")
        secret = holds_secret(word.text) or (equals and looks_secret(name.lstrip("-")))
        told.append(f"{name}=…" if secret and equals else "…" if secret else word.text)
    return " ".join(told)


def program(words: list[Word]) -> str:
    """What a command starts, as a note may name it. The words behind it may be a password, and are never repeated."""
    first = next((word for word in words if not _ASSIGNMENT.match(word.text)), words[0])
    told = without_secrets([first])
    return told if len(told) <= 60 else told[:59] + "…"


def set_environment(found: Found, model: FoundModel, name: str, value: str | None, place: Place) -> None:
    """Take a variable of an engine's environment; a secret becomes a reference, whatever its value was."""
    if not _VARIABLE.fullmatch(name):
        found.note(place, "a variable whose name is no letters, digits and _ was left out")
        return
    if name in ("PATH", "HOME", "USER", "PWD", "VIRTUAL_ENV"):
        found.note(place, f"{name} is left out: the unit of an engine has its own")
        return
    if value is None:
        model.environment[name] = Setting({"env": name}, "passed on from the environment that started it")
        return
    reference = _REFERENCE.fullmatch(value)
    if is_secret(name, value):
        where = reference[1] if reference else name
        remark = "" if reference else f"its value stands in {place}: export it as {where}, or write {{file: PATH}}"
        model.environment[name] = Setting({"env": where}, remark)
        if not reference:
            found.note(
                place, f"{name} is a secret, of which fleet.yaml says where it is and never what: {{env: {where}}}"
            )
        return
    if reference and reference[2] is not None:
        model.environment[name] = Setting(reference[2], f"unless {reference[1]} says something else there")
        return
    if reference:
        model.environment[name] = Setting({"env": reference[1]}, "from a variable of whoever starts it")
        return
    if "$" in value:
        found.note(place, f"{name} has a $variable in it, which nothing replaces in fleet.yaml: write the value")
    model.environment[name] = Setting(value)
