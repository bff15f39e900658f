"""A file of requests, checked line by line before anything is submitted. Pure.

Two formats. OpenAI's batch format has one object a line: ``custom_id``, ``method``, ``url`` and ``body``. The plain one
has the bodies alone; the path then follows from what a body has, and its line is its name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from fleetctl.errors import SpecError

MOST_LINES = 100_000
"""Requests of one file: what JetStream lists of a stream's subjects in one answer."""
MOST_SAID = 20
"""Problems that are told; a file with more is wrong in kind."""
MOST_NAME = 512
"""Characters of a custom_id."""

PATHS = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/embeddings": "input",
    "/v1/rerank": "documents",
}
"""Path of the API → what a body for it has and bodies for others have not."""

_OPENAI = ("custom_id", "method", "url", "body")


class BatchFileError(SpecError):
    """A file of requests that cannot be submitted; nothing was."""


@dataclass(frozen=True)
class Targets:
    """Where requests may go. ``names``: what clients call a model → its key; empty: any name is a key."""

    names: Mapping[str, str]
    served_as: Mapping[str, str]
    """Key → the name that its engines know it by."""
    chosen: str = ""
    """Key of the model that all lines go to, whatever they say; empty: each says it."""
    adapter: str = ""
    """The LoRA adapter of that model which was chosen; empty: the model itself."""

    def key_of(self, name: str) -> str | None:
        """The key of a model by any of its names; None: there is no such model."""
        return self.names.get(name) if self.names else name

    def name_for(self, key: str) -> str:
        """What to call a model in a body."""
        return self.adapter or self.served_as.get(key, key)


@dataclass(frozen=True, slots=True)
class Line:
    """One request. ``number`` counts the file's lines from 1; its body is read again when it is sent."""

    number: int
    custom_id: str
    model: str
    path: str
    start: int
    end: int


@dataclass(frozen=True)
class BatchFile:
    """A file that is right in every line."""

    name: str
    data: bytes
    lines: tuple[Line, ...]
    plain: bool
    targets: Targets

    def body(self, line: Line) -> dict[str, Any]:
        """The body of a request, with the model's name where the file leaves it out or another one was chosen."""
        found = json.loads(self.data[line.start : line.end])
        body: dict[str, Any] = found if self.plain else found["body"]
        if self.targets.chosen or "model" not in body:
            body["model"] = self.targets.name_for(line.model)
        return body


def read(name: str, data: bytes, targets: Targets) -> BatchFile:
    """The requests of a file. Raises BatchFileError with all that is wrong, each with its line."""
    lines: list[Line] = []
    wrong: list[str] = []
    seen: dict[str, int] = {}
    plain: bool | None = None
    for number, start, end in _pieces(data):
        try:
            found = _object(data[start:end])
            plain = not any(key in found for key in _OPENAI) if plain is None else plain
            custom_id, path, body = _plain(found, number) if plain else _openai(found)
            if custom_id in seen:
                raise ValueError(f"custom_id {_short(custom_id)} is that of line {seen[custom_id]} too")
            lines.append(Line(number, custom_id, _model(body, targets), path, start, end))
            seen[custom_id] = number
        except ValueError as error:
            wrong.append(f"{name}:{number}: {error}")
        if len(lines) > MOST_LINES:
            raise BatchFileError(f"{name} has more than {MOST_LINES} requests", hint="split it into several files")
    if wrong:
        _refuse(name, wrong)
    if not lines:
        raise BatchFileError(
            f"{name} has no request in it", hint="one JSON object a line: docs/batch.md shows both forms"
        )
    return BatchFile(name, data, tuple(lines), bool(plain), targets)


def _pieces(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Number, begin and end of each line that is not blank; a byte order mark at the begin is none of it."""
    start, number = (3 if data.startswith(b"\xef\xbb\xbf") else 0), 0
    while start < len(data):
        number += 1
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        if data[start:end].strip():
            yield number, start, end
        start = end + 1


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_constant=_no_number, object_pairs_hook=_once)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("too many brackets within each other") from None
    if not isinstance(found, dict):
        raise ValueError("a request is a JSON object")
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number in JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [key for key, _ in pairs]
        raise ValueError(f"{_short(next(key for key in names if names.count(key) > 1))} is there twice")
    return found


def _openai(found: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    missing = [key for key in _OPENAI if key not in found]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing; a line of the batch format has {', '.join(_OPENAI)}")
    unknown = [key for key in found if key not in _OPENAI]
    if unknown:
        raise ValueError(f"{', '.join(map(_short, unknown))} is nothing that the batch format has")
    custom_id, method, url, body = (found[key] for key in _OPENAI)
    if not isinstance(custom_id, str) or not custom_id or len(custom_id) > MOST_NAME:
        raise ValueError(f"custom_id has to be text of 1 to {MOST_NAME} characters")
    if method != "POST":
        raise ValueError(f"method is {_short(method)}; it has to be POST")
    if not isinstance(url, str) or url not in PATHS:
        raise ValueError(f"url is {_short(url)}; it has to be one of {', '.join(PATHS)}")
    return custom_id, url, _body(body, PATHS[url])


def _plain(found: dict[str, Any], number: int) -> tuple[str, str, dict[str, Any]]:
    paths = [path for path, mark in PATHS.items() if mark in found]
    if len(paths) != 1:
        marks = ", ".join(PATHS.values())
        raise ValueError(f"a body has one of {marks}, which tells where it goes; here {len(paths)} of them")
    return f"line-{number}", paths[0], _body(found, PATHS[paths[0]])


def _body(body: Any, mark: str) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise ValueError("body has to be a JSON object")
    if mark not in body:
        raise ValueError(f"the body has no {mark}")
    if body.get("stream"):
        raise ValueError("the body asks for a stream; nobody listens to one, so leave `stream` out")
    return body


def _model(body: dict[str, Any], targets: Targets) -> str:
    if targets.chosen:
        return targets.chosen
    name = body.get("model")
    if name is None:
        raise ValueError("the body names no model; name one for all lines with --model")
    key = targets.key_of(name) if isinstance(name, str) and name else None
    if key is None:
        known = f"there is {', '.join(sorted(targets.names))}" if targets.names else "a model is a name"
        raise ValueError(f"no model {_short(name)}; {known}")
    return key


def _refuse(name: str, wrong: list[str]) -> NoReturn:
    more = len(wrong) - MOST_SAID
    told = "\n".join(wrong[:MOST_SAID]) + (f"\n… and {more} more" if more > 0 else "")
    lines = "1 line" if len(wrong) == 1 else f"{len(wrong)} lines"
    raise BatchFileError(told, hint=f"{lines} of {name} cannot be submitted; nothing was")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return repr(text if len(text) <= 60 else text[:57] + "…")
