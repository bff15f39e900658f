"""The worst that the services of the box took of its memory, day by day: what a reserve has to be measured by."""

import json
import os
import sys
import time
from typing import Any, Dict, List, Mapping

from fleetctl.onbox.days import DAYS, kept_days
from fleetctl.onbox.services import Use

MOST = 40  # services of a day that are kept, those that took the most
SAVE_EVERY = 60.0  # seconds


class Uses:
    """Keeps, for each day: the most of every service, the most of all at one time, and the least available memory."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._saved = 0.0
        self._seen = 0.0
        self._days: List[Dict[str, Any]] = kept_days(path, time.time())

    def see(self, uses: Mapping[str, Use], available: int, at: float, spent: float) -> None:
        """One look at ``at`` (epoch seconds), which stands for ``spent`` seconds. Sizes are bytes."""
        day = self._day(at)
        day["measured"] = round(day["measured"] + spent, 1)
        day["lowest"] = min(day["lowest"], available)
        for name, use in uses.items():
            kind = "foreign" if use.engine else "services"
            day[kind][name] = max(day[kind].get(name, 0), use.now)
        together = sum(use.now for use in uses.values() if not use.engine)
        if together >= day["together"]:
            day["together"], day["at"] = together, round(at)
        for kind in ("services", "foreign"):
            if len(day[kind]) > MOST:
                day[kind] = dict(sorted(day[kind].items(), key=lambda item: -item[1])[:MOST])
        if at - self._saved >= SAVE_EVERY or at < self._saved:
            self.save(at)

    def save(self, at: float) -> None:
        """Onto the disk. A full one must not keep the guard from its work."""
        self._saved = at
        try:
            descriptor = os.open(self._path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "w", encoding="utf-8") as stream:
                json.dump({"days": self._days}, stream, sort_keys=True)
            os.replace(self._path + ".new", self._path)
        except OSError as error:
            sys.stderr.write("cannot write %s: %s\n" % (self._path, error))

    def _day(self, at: float) -> Dict[str, Any]:
        name = time.strftime("%Y-%m-%d", time.gmtime(at))
        if not self._days or self._days[-1]["day"] != name:
            fresh = {"day": name, "began": round(at), "measured": 0, "lowest": 2**62, "together": 0, "at": round(at)}
            self._days = [*self._days[-(DAYS - 1) :], dict(fresh, services={}, foreign={})]
        return self._days[-1]
