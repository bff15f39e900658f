"""What everything but the engines takes of this box's memory at its worst: by the guard's notes, and by a look now."""

import time
from typing import Any, Dict, List

from fleetctl.onbox.days import kept_days
from fleetctl.onbox.kept import VAR
from fleetctl.onbox.services import Services, Use

FOLDER = VAR + "/guard"
NOTES = "services.json"
SHOWN = 20  # services; the rest is in the sum


def look(folder: str = FOLDER) -> Dict[str, Any]:
    """Sizes in bytes. ``measured`` are the seconds that a guard has looked since ``since`` (None: nobody did).

    ``together`` is the most that all services took at one time, ``services`` the most of each, ``foreign`` the engines
    among them that are not fleetctl's, which are not in the sum. ``peak`` is the most that the kernel charged to them
    since they began, page cache included; None: it does not say.
    """
    return merged(kept_days(folder + "/" + NOTES, time.time()), Services().look())


def merged(days: List[Dict[str, Any]], now: Dict[str, Use]) -> Dict[str, Any]:
    """The worst of some days and of now."""
    found: Dict[str, Dict[str, int]] = {"services": {}, "foreign": {}}
    for day in days:
        for kind, sizes in found.items():
            for name, size in day[kind].items():
                sizes[name] = max(sizes.get(name, 0), size)
    for name, use in now.items():
        sizes = found["foreign" if use.engine else "services"]
        sizes[name] = max(sizes.get(name, 0), use.now)
    largest = sorted(found["services"].items(), key=lambda item: -item[1])[:SHOWN]
    peaks = [use.peak for use in now.values() if not use.engine]
    known = [peak for peak in peaks if peak is not None]
    together = [day["together"] for day in days] + [sum(use.now for use in now.values() if not use.engine)]
    return {
        "services": dict(largest),
        "foreign": found["foreign"],
        "together": max(together),
        "total": sum(found["services"].values()),
        "measured": sum(day["measured"] for day in days),
        "since": min((day["began"] for day in days), default=None),
        "lowest": min((day["lowest"] for day in days), default=None),
        "peak": sum(known) if known and len(known) == len(peaks) else None,
    }
