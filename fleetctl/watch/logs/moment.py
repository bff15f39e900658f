"""Moments as people write them: ``10 min ago``, ``14:30``, ``2026-11-30 14:30``. Pure.

They are understood here and not on the boxes: there the time zone may be another, and so may the version of systemd.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_UNIT = r"(?:s|sec|secs|seconds?|m|min|mins|minutes?|h|hr|hrs|hours?|d|days?|w|weeks?)"
_SPAN = re.compile(rf"(\d{{1,9}}(?:\.\d{{1,9}})?)\s*({_UNIT})", re.IGNORECASE)
_WHOLE = re.compile(rf"(-)?\s*((?:\d{{1,9}}(?:\.\d{{1,9}})?\s*{_UNIT}\s*)+)(ago)?", re.IGNORECASE)
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(\.\d{1,6})?)?")
EXAMPLES = "'10 min ago', 2h, 14:30, today, '2026-11-30 14:30' or @1796034652"


def parse_moment(text: str, now: float) -> float:
    """Epoch seconds. Times of day are of this machine's zone; a span alone is one before now. Raises ValueError."""
    words = " ".join(text.split())
    here = datetime.fromtimestamp(now)
    midnight = here.replace(hour=0, minute=0, second=0, microsecond=0)
    named = {"now": here, "today": midnight, "yesterday": midnight - timedelta(days=1)}
    try:
        if words.lower() in named:
            return named[words.lower()].timestamp()
        if re.fullmatch(r"@\d{1,12}(\.\d{1,9})?", words):
            return float(words[1:])
        if span := _WHOLE.fullmatch(words):
            return now - sum(float(n) * _SECONDS[unit[0].lower()] for n, unit in _SPAN.findall(span[2]))
        if clock := _CLOCK.fullmatch(words):
            seconds = timedelta(seconds=int(clock[3] or 0) + float(clock[4] or 0))
            return (midnight.replace(hour=int(clock[1]), minute=int(clock[2])) + seconds).timestamp()
        return datetime.fromisoformat(words).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text} is no time: write like {EXAMPLES}") from None
