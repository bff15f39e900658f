"""Sizes and durations as people write them: ``71GiB``, ``128GB``, ``90s``, ``15m``."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

_SIZE = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _SIZE[f"{_letter}B"] = 1000**_power
    _SIZE[f"{_letter}IB"] = 1024**_power
_SECONDS = {"ms": 0.001, "s": 1, "": 1, "m": 60, "min": 60, "h": 3600}


_HIGHEST = 2**63 - 1
_SIZE_RULE = "a size is a number with a unit, like 71GiB or 128GB"
_DURATION_RULE = "a duration is a number with a unit, like 90s or 15m"


def parse_size(value: Any) -> int:
    """``'71GiB'`` or ``'128 GB'`` or a whole number of bytes, in bytes. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(_SIZE_RULE)
    if isinstance(value, int):
        return int(_in_range(value, "a size"))
    match = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]*)\s*", value)
    if match and match[2].upper() in ("K", "M", "G", "T"):
        raise ValueError(f"{_SIZE_RULE}; did you mean {match[1]}{match[2].upper()}iB?")
    if not match or match[2].upper() not in _SIZE:
        raise ValueError(_SIZE_RULE)
    return int(_in_range(float(match[1]) * _SIZE[match[2].upper()], "a size"))


def parse_duration(value: Any) -> float:
    """``'15m'``, ``'90s'``, ``'250ms'`` or a number of seconds, in seconds. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(_DURATION_RULE)
    if isinstance(value, int | float):
        return float(_in_range(value, "a duration"))
    match = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([a-z]*)\s*", value)
    if not match or match[2] not in _SECONDS:
        raise ValueError(_DURATION_RULE)
    return float(_in_range(float(match[1]) * _SECONDS[match[2]], "a duration"))


def parse_period(text: str) -> float:
    """A stretch of time that may be days, ``'7d'``, or a duration, in seconds. Raises ValueError."""
    days = re.fullmatch(r"\s*([0-9]{1,5})\s*d\s*", text)
    if days:
        return float(days[1]) * 86400
    try:
        return parse_duration(text)
    except ValueError:
        raise ValueError("write like 7d, 12h or 90m") from None


def _in_range(value: float, what: str) -> float:
    if not 0 <= value <= _HIGHEST:  # not-a-number is not in any range
        raise ValueError(f"{what} is not negative" if value < 0 else f"{what} cannot be that large")
    return value


def gib(size: int | float) -> str:
    """Bytes as ``'71.0 GiB'``."""
    return f"{size / 1024**3:.1f} GiB"


def size(value: int | float) -> str:
    """Bytes with the unit that says something: ``'71.0 GiB'``, ``'128 MiB'``."""
    return gib(value) if value >= 1024**3 else f"{value / 1024**2:.0f} MiB"


def seconds(value: float) -> str:
    """Seconds as a person says them: ``'0.4 s'``, ``'41 s'``, ``'15 min'``."""
    if value < 10:
        return f"{value:.1f} s"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min"


Size = Annotated[
    int,
    BeforeValidator(
        parse_size,
        json_schema_input_type=Annotated[int, Field(ge=0)]
        | Annotated[str, Field(pattern=r"^\s*[0-9]+(\.[0-9]+)?\s*([KMGTkmgt][Ii]?[Bb]|[Bb])?\s*$")],
    ),
    Field(description="bytes, or a number with a unit: 71GiB, 128GB"),
]
Duration = Annotated[
    float,
    BeforeValidator(
        parse_duration,
        json_schema_input_type=Annotated[float, Field(ge=0)]
        | Annotated[str, Field(pattern=r"^\s*[0-9]+(\.[0-9]+)?\s*(ms|s|m|min|h)?\s*$")],
    ),
    Field(description="seconds, or a number with a unit: 250ms, 90s, 15m, 1h"),
]
