"""How good an answer to a task is: 0 to 1, and in words why it is not right. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import jsonschema
from referencing.exceptions import Unresolvable

from fleetctl.evals.tasks import Choice, Exact, Numeric, Regex, Rule, Schema, Similar

_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\w)")

Points = tuple[float, str]
"""0 to 1, and why it is less than 1 (empty otherwise)."""


def points(rule: Rule, answer: str, cosine: float | None = None) -> Points:
    """Score an answer. ``cosine`` is the similarity that was measured for a rule ``similar``."""
    if isinstance(rule, Similar):
        return _similar(rule, cosine)
    if isinstance(rule, Exact):
        one, other = (text.strip() if rule.case else text.strip().casefold() for text in (rule.expected, answer))
        return _all_or_nothing(one == other, f"it said {answer.strip()[:60]!r}")
    if isinstance(rule, Regex):
        return _all_or_nothing(re.search(rule.expected, answer) is not None, f"not found in {answer.strip()[:60]!r}")
    if isinstance(rule, Numeric):
        return _numeric(rule, answer)
    if isinstance(rule, Choice):
        return _choice(rule, answer)
    return _schema(rule, answer)


def _all_or_nothing(right: bool, why: str) -> Points:
    return (1.0, "") if right else (0.0, why)


def _similar(rule: Similar, cosine: float | None) -> Points:
    if cosine is None or math.isnan(cosine):
        return 0.0, "no similarity was measured"
    if rule.at_least is not None:
        return _all_or_nothing(cosine >= rule.at_least, f"similarity {cosine:.3f}")
    return max(0.0, min(1.0, cosine)), f"similarity {cosine:.3f}"


def _numeric(rule: Numeric, answer: str) -> Points:
    found = _NUMBER.findall(answer)
    if not found:
        return 0.0, "no number in it"
    last = float(found[-1].replace(",", ""))
    room = max(rule.tolerance, rule.relative * abs(rule.expected), 1e-9 * abs(rule.expected))
    return _all_or_nothing(abs(last - rule.expected) <= room, f"it said {found[-1]}")


def _choice(rule: Choice, answer: str) -> Points:
    """The last option that stands alone as a word; letters count as written, words in any case."""
    found: list[tuple[int, str]] = []
    for option in rule.options:
        flags = re.IGNORECASE if len(option) > 1 else 0
        found += [(m.start(), option) for m in re.finditer(rf"(?<!\w){re.escape(option)}(?!\w)", answer, flags)]
    if not found:
        return 0.0, "it named no option"
    last = max(found)[1]
    return _all_or_nothing(last.casefold() == rule.expected.casefold(), f"it chose {last}")


def _schema(rule: Schema, answer: str) -> Points:
    fenced = _FENCE.search(answer)
    try:
        value = json.loads(fenced[1] if fenced else answer)
    except (ValueError, RecursionError) as error:
        return 0.0, f"not JSON: {error}"
    try:
        rule.validator().validate(value)
    except jsonschema.ValidationError as error:
        return 0.0, f"does not fit the schema: {error.message[:80]}"
    except (RecursionError, Unresolvable) as error:
        return 0.0, f"it cannot be held against the schema: {str(error)[:80] or type(error).__name__}"
    if rule.expected is not None and not _has(value, rule.expected):
        return 0.0, f"other values: {json.dumps(value)[:80]}"
    return 1.0, ""


def _has(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(key in value and _has(value[key], one) for key, one in wanted.items())
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Cosine of two vectors of the same length; NaN for a vector of zeros."""
    lengths = math.hypot(*one) * math.hypot(*other)
    return sum(a * b for a, b in zip(one, other, strict=True)) / lengths if lengths else math.nan
