"""The guard's notes on what services took, one record a day: how they are read. They land with the guard too."""

import json
from typing import Any, Dict, List

DAYS = 14  # what is older is forgotten: services come and go


def kept_days(path: str, now: float) -> List[Dict[str, Any]]:
    """Days that were written down, oldest first; none where there is no such file, or a damaged one.

    Of a day: ``began`` and ``at`` (epoch seconds: its first look, and when most was taken), ``measured`` (seconds that
    were looked at), ``together`` (the most at one time), ``lowest`` (available memory), and the most of each of the
    ``services`` and of ``foreign`` engines, in bytes.
    """
    try:
        with open(path, encoding="utf-8") as source:
            days = [_checked(day) for day in json.load(source)["days"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return [day for day in days if day["began"] > now - DAYS * 86400][-DAYS:]


def _checked(day: Dict[str, Any]) -> Dict[str, Any]:
    numbers = {key: int(day[key]) for key in ("began", "measured", "lowest", "together", "at")}
    sizes = {kind: {str(name): int(size) for name, size in day[kind].items()} for kind in ("services", "foreign")}
    return dict(numbers, day=str(day["day"]), **sizes)
