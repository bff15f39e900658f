"""What is wrong with the value of an option, in plain words instead of those of the library that reads options."""

from __future__ import annotations

from typing import Any

import typer

_PREFIX = "Value error, "
_LIMITS = {"ge": "less than {}", "gt": "not more than {}", "le": "more than {}", "lt": "not less than {}"}


def plainly(error: typer.BadParameter) -> None:
    """Say it again in plain words, in place, where the words are pydantic's; others are left as they are."""
    cause = error.__cause__
    told: list[dict[str, Any]] = getattr(cause, "errors", list)()
    if not told:
        return
    first = told[0]
    words = _words(first["type"], first.get("ctx") or {})
    if words is not None:
        error.message = f"{str(first['input'])!r} is {words}"
    elif first["msg"].startswith(_PREFIX):
        error.message = first["msg"].removeprefix(_PREFIX)


def _words(kind: str, limits: dict[str, Any]) -> str | None:
    if kind.startswith("int_"):
        return "no whole number"
    if kind.startswith("float_") or kind == "finite_number":
        return "no number"
    return next((words.format(limits[name]) for name, words in _LIMITS.items() if name in limits), None)
