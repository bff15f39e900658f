"""A file of tasks: prompts, and what a right answer is. Pure but for reading the file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from referencing.exceptions import Unresolvable

from fleetctl.errors import SpecError

MOST = 64 * 1024**2  # bytes of a file


class _Value(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Exact(_Value):
    """The answer is this text; white space around it, and with ``case: false`` the case, do not count."""

    score: Literal["exact"]
    expected: str
    case: bool = False


class Regex(_Value):
    """A regular expression is found in the answer."""

    score: Literal["regex"]
    expected: str


class Schema(_Value):
    """The answer is JSON that fits a JSON Schema, and where ``expected`` is given has its members with these values."""

    score: Literal["json_schema"]
    json_schema: dict[str, Any]
    expected: dict[str, Any] | None = None

    def validator(self) -> Any:
        """What holds a value against the schema. A reference leads into the schema: nothing is fetched for it."""
        kind = jsonschema.validators.validator_for(self.json_schema)
        return kind(self.json_schema, registry=REGISTRY)


class Numeric(_Value):
    """The last number of the answer is ``expected``, give or take ``tolerance`` (absolute) or ``relative`` (a part)."""

    score: Literal["numeric"]
    expected: float
    tolerance: float = Field(0.0, ge=0)
    relative: float = Field(0.0, ge=0)


class Choice(_Value):
    """The answer names one of the ``options`` and no other; where it names several, the last counts."""

    score: Literal["choice"]
    expected: str
    options: tuple[str, ...] = Field(min_length=2)


class Similar(_Value):
    """Cosine of the embeddings of the answer and of ``expected``: 1 from ``at_least`` up where that is given."""

    score: Literal["similar"]
    expected: str
    at_least: float | None = Field(None, ge=-1, le=1)


Rule = Annotated[Exact | Regex | Schema | Numeric | Choice | Similar, Field(discriminator="score")]


class Task(_Value):
    """One question: a ``prompt`` or ``messages``, and the rule by which its answer is scored."""

    id: str = ""
    prompt: str | None = None
    system: str | None = None
    messages: tuple[dict[str, Any], ...] = ()
    max_tokens: int = Field(1024, ge=1)
    rule: Rule

    @model_validator(mode="after")
    def _asks(self) -> Task:
        if (self.prompt is None) == (not self.messages):
            raise ValueError("write either prompt or messages")
        return self

    def request(self, model: str, seed: int) -> dict[str, Any]:
        """Body of the chat completion."""
        messages = list(self.messages) or [{"role": "user", "content": self.prompt}]
        if self.system is not None:
            messages = [{"role": "system", "content": self.system}, *messages]
        return {"model": model, "messages": messages, "max_tokens": self.max_tokens, "temperature": 0, "seed": seed}


_OF_TASK = ("id", "prompt", "system", "messages", "max_tokens")


def read_tasks(path: Path, most: int = MOST) -> str:
    """The text of a file of tasks. Raises SpecError when it cannot be read or has more than ``most`` bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            size = f"{most // 1024**2} MiB" if most >= 1024**2 else f"{most // 1024} KiB"
            raise SpecError(f"{path} is larger than {size}")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not UTF-8 text") from error


def load_tasks(path: Path) -> tuple[Task, ...]:
    """The tasks of a JSONL file. Raises SpecError naming the line for one that is wrong, or without any task."""
    return parse_tasks(read_tasks(path), str(path))


def parse_tasks(text: str, source: str) -> tuple[Task, ...]:
    """The tasks of a JSONL text; a task without an id is called by its line. Raises SpecError as `load_tasks` does."""
    tasks: list[Task] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            tasks.append(_task(line, f"{source}:{number}", f"line {number}"))
    if not tasks:
        raise SpecError(
            f"{source} has no task in it", hint='a line is like {"prompt": "2+2?", "score": "numeric", "expected": 4}'
        )
    names = [task.id for task in tasks]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SpecError(f"{source}: several tasks have the id {twice[0]}")
    return tuple(tasks)


def _task(line: str, where: str, name: str) -> Task:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise SpecError(
            f"{where} is not JSON: {error}",
            hint="a file of tasks is JSON Lines: one object a line, like "
            '{"prompt": "2+2?", "score": "numeric", "expected": 4} (docs/eval.md)',
        ) from error
    except RecursionError:
        raise SpecError(f"{where} is nested too deeply") from None
    if not isinstance(value, dict):
        raise SpecError(f"{where} is no JSON object")
    mine = {key: value[key] for key in _OF_TASK if key in value}
    rule = {key: told for key, told in value.items() if key not in _OF_TASK}
    try:
        task = Task.model_validate({"id": name, **mine, "rule": rule})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "rule")
        raise SpecError(
            f"{where}: {place + ': ' if place else ''}{first['msg'].removeprefix('Value error, ')}"
        ) from None
    _checked(task.rule, where)
    return task


def _checked(rule: Rule, where: str) -> None:
    """Raises SpecError for a rule that no answer could be held against."""
    try:
        if isinstance(rule, Regex):
            re.compile(rule.expected)
        elif isinstance(rule, Schema):
            jsonschema.validators.validator_for(rule.json_schema).check_schema(rule.json_schema)
            several: tuple[Any, ...] = ({}, [], "", 0)
            for value in several:
                rule.validator().is_valid(value)
    except re.error as error:
        raise SpecError(f"{where}: expected is no regular expression: {error}") from error
    except jsonschema.SchemaError as error:
        raise SpecError(f"{where}: json_schema is no JSON Schema: {error.message}") from error
    except (Unresolvable, RecursionError) as error:
        why = "it refers to itself without end" if isinstance(error, RecursionError) else str(error)
        raise SpecError(f"{where}: json_schema cannot be used: {why}") from None
    if isinstance(rule, Choice) and rule.expected.casefold() not in [option.casefold() for option in rule.options]:
        raise SpecError(f"{where}: expected ({rule.expected}) is not among the options")
