"""Whether an answer is right, and if not, why. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import jsonschema

from fleetctl.engine.exchange import Exchange
from fleetctl.evals.scenario import Scenario, Suite

# What models write around a call; in the text of an answer it means that the engine's parser does not fit the model.
_MARKS = re.compile(
    r"<tool_call>|</tool_call>|\[TOOL_CALLS\]|<\|python_tag\|>|<function[=_]|<\|tool_call|<\uff5ctool\u2581call|<invoke\b|"
    r"^\s*(?:```(?:json)?\s*)?[\[{]\s*[\[{]?\s*\"(?:name|function|tool)\"\s*:",
    re.MULTILINE,
)
LONGEST = 400  # characters of what is wrong with an answer
_BLANK = re.compile(r"\s+")


@dataclass(frozen=True)
class Called:
    """A call as it came: ``arguments`` are text that has to be JSON."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """An answer. ``wrong`` says why there is none (a status, a broken stream); ``seconds`` to its end.

    ``prompt_tokens`` and ``tokens`` (of the answer) are as the engine counts them; 0: it did not say. ``exchange`` is
    the request and the answer as they went over the wire.
    """

    text: str = ""
    calls: tuple[Called, ...] = ()
    finish_reason: str = ""
    wrong: str = ""
    seconds: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0
    exchange: Exchange | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Verdict:
    """``why`` is empty when the answer is right."""

    scenario: Scenario
    reply: Reply
    why: str

    @property
    def right(self) -> bool:
        """The answer is what it has to be."""
        return not self.why


def judge(suite: Suite, scenario: Scenario, reply: Reply) -> Verdict:
    """The verdict on an answer to a scenario."""
    try:
        return Verdict(scenario, reply, _wrong(suite, scenario, reply)[:LONGEST])
    except RecursionError:
        return Verdict(scenario, reply, "the arguments are nested too deeply")


def _wrong(suite: Suite, scenario: Scenario, reply: Reply) -> str:
    if reply.wrong:
        return reply.wrong
    if reply.finish_reason == "length":
        return "the answer was cut off at its token limit"
    if (mark := _MARKS.search(reply.text)) and not _asked_for(mark[0], scenario):
        return f"a call came as text ({mark[0].strip()[:40]}): the engine's tool-call parser does not fit the model"
    if not scenario.calls:
        return _wrong_words(scenario, reply)
    if not reply.calls:
        return f"no call, but text: {reply.text[:80]!r}" if reply.text else "neither a call nor text"
    made = []
    for call in reply.calls:
        arguments, why = _arguments(suite, scenario, call)
        if why:
            return why
        made.append((call.name, arguments))
    return _wrong_calls(scenario, made)


def _asked_for(mark: str, scenario: Scenario) -> bool:
    return mark.strip() in (scenario.user or "")


def _wrong_words(scenario: Scenario, reply: Reply) -> str:
    if reply.calls:
        return f"a call where none was due: {', '.join(call.name for call in reply.calls)}"
    if not reply.text.strip():
        return "neither a call nor text"
    if scenario.says and not any(re.search(one, reply.text, re.IGNORECASE) for one in scenario.says):
        return f"the answer says nothing of what it has to say: {reply.text[:80]!r}"
    return ""


def _arguments(suite: Suite, scenario: Scenario, call: Called) -> tuple[dict[str, Any], str]:
    """The arguments of a call, or what is wrong with them as such."""
    try:
        arguments = json.loads(call.arguments)
    except ValueError as error:
        return {}, f"the arguments of {call.name} are not JSON: {error}"
    if not isinstance(arguments, dict):
        return {}, f"the arguments of {call.name} are not an object"
    if call.name not in scenario.tools:
        return {}, f"it called {call.name}, which {'was not the right tool' if scenario.decoys else 'does not exist'}"
    try:
        jsonschema.validate(arguments, suite.catalogue[call.name].arguments())
    except jsonschema.ValidationError as error:
        place = ".".join(str(part) for part in error.absolute_path)
        return {}, f"{call.name}{f' {place}' if place else ''}: {error.message[:120]}"
    return arguments, ""


def _wrong_calls(scenario: Scenario, made: list[tuple[str, dict[str, Any]]]) -> str:
    """What separates the calls that were made from those that have to be, in any order."""
    wanted = [pair for call in scenario.calls for pair in call.items()]
    left = list(made)
    for name, arguments in wanted:
        fitting = [call for call in left if call[0] == name and not _unlike(arguments, call[1], name)]
        if fitting:
            left.remove(fitting[0])
            continue
        near = [_unlike(arguments, call[1], name) for call in left if call[0] == name]
        return near[0] if near else f"it did not call {name}"
    return f"a call too many: {left[0][0]}" if left else ""


def _unlike(wanted: Any, got: Any, place: str) -> str:
    """Where a value differs from the one that is wanted; empty when it does not."""
    if isinstance(wanted, dict) and set(wanted) == {"one_of"}:
        return "" if any(not _unlike(one, got, place) for one in wanted["one_of"]) else f"{place} is {got!r}"
    if isinstance(wanted, dict):
        if not isinstance(got, dict):
            return f"{place} is {got!r}"
        for key, value in wanted.items():
            if key not in got:
                return f"{place} lacks {key}"
            if why := _unlike(value, got[key], f"{place}.{key}"):
                return why
        return ""
    if isinstance(wanted, list):
        if not isinstance(got, list) or len(got) != len(wanted):
            return f"{place} is {got!r}"
        pairs = zip(wanted, got, strict=True)
        return next((why for number, (w, g) in enumerate(pairs) if (why := _unlike(w, g, f"{place}[{number}]"))), "")
    return "" if _same(wanted, got) else f"{place} is {got!r}"


def _same(wanted: Any, got: Any) -> bool:
    if isinstance(wanted, bool) or isinstance(got, bool):
        return wanted is got
    if isinstance(wanted, str):
        if not isinstance(got, str):
            return False
        if wanted.startswith("~"):
            return re.search(wanted[1:], got, re.IGNORECASE | re.DOTALL) is not None
        return _plain(wanted) == _plain(got)
    if isinstance(wanted, (int, float)) and isinstance(got, (int, float)):
        return abs(wanted - got) <= 1e-9 * max(1.0, abs(wanted))
    return bool(wanted == got)


def _plain(text: str) -> str:
    return _BLANK.sub(" ", text).strip().rstrip(".").casefold()
