"""Counters of one engine made steady: they go on through restarts of the process that counts. Pure.

An engine counts from 0 whenever its process starts. Here the last value of every process stays in the sum, so that the
sum never goes backwards and counts nothing twice, whatever is read when, however often reads fail, and even when pages
of different processes come in turn, as they do through a proxy.

**The limit**: what a process counted between the last time it was read and its end is nowhere any more. The sum is
below the truth by exactly that.
"""

from __future__ import annotations

from collections.abc import Mapping

KEPT = 64  # processes that are told apart; what older ones counted is added up
ROUNDING = 1e-9  # a part of the value: sums of the same floats in another order are not lower than before


class Totals:
    """The sums of one engine. ``restarts`` is how often its counters began anew."""

    def __init__(self) -> None:
        self.restarts = 0
        self._past: dict[str, float] = {}
        self._processes: dict[str, dict[str, float]] = {}
        self._now: str | None = None
        self._run: str | None = None
        self._of_run: dict[str, str] = {}
        self._unnamed = 0

    def read(self, counters: Mapping[str, float], process: str | None = None, run: str | None = None) -> None:
        """Take in what was read.

        ``process`` is the name of the process by the page itself, ``run`` that by its unit (systemd's InvocationID),
        for pages that do not say. Without either, and within one run, counters that are lower than before are those of
        a new process.
        """
        name = self._same_as_before(counters, run) if process is None else self._named(process, counters, run)
        if name not in self._processes:
            self.restarts += 1 if self._processes else 0
            self._processes[name] = {}
            self._forget_oldest()
        self._now, self._run = name, run or self._run
        if self._run is not None:
            self._of_run[self._run] = name
        self.restarts += self._take(name, counters)

    @property
    def sums(self) -> dict[str, float]:
        """Counter → all that was counted. What no page ever had is missing."""
        found = dict(self._past)
        for counters in self._processes.values():
            for counter, value in counters.items():
                found[counter] = found.get(counter, 0.0) + value
        return found

    def _named(self, process: str, counters: Mapping[str, float], run: str | None) -> str:
        """The process that says its name. It may be the one that did not, so far."""
        unnamed = self._now is not None and self._now.startswith("?") and run in (None, self._run)
        if unnamed and process not in self._processes and not self._lower(self._now, counters):
            self._processes[process] = self._processes.pop(self._now or "")
        return process

    def _same_as_before(self, counters: Mapping[str, float], run: str | None) -> str:
        """Of a process that says no name: that of its run, unless it counts anew."""
        same = self._now if run in (None, self._run) or self._run is None else self._of_run.get(run or "")
        if same is not None and same in self._processes and not self._lower(same, counters):
            return same
        self._unnamed += 1
        return f"?{self._unnamed}"

    def _take(self, name: str, counters: Mapping[str, float]) -> bool:
        """Take the values of a process; whether one of its counters began anew in it."""
        last = self._processes[name]
        anew = False
        for counter, value in counters.items():
            before = last.get(counter, 0.0)
            if _is_lower(value, before):
                self._past[counter] = self._past.get(counter, 0.0) + before
                last[counter] = value
                anew = True
            else:
                last[counter] = max(value, before)
        return anew

    def _lower(self, process: str | None, counters: Mapping[str, float]) -> bool:
        last = self._processes.get(process or "", {})
        return any(_is_lower(value, last.get(counter, 0.0)) for counter, value in counters.items())

    def _forget_oldest(self) -> None:
        while len(self._processes) > KEPT:
            oldest = next(iter(self._processes))
            for counter, value in self._processes.pop(oldest).items():
                self._past[counter] = self._past.get(counter, 0.0) + value
            self._of_run = {run: name for run, name in self._of_run.items() if name in self._processes}


def _is_lower(value: float, before: float) -> bool:
    return value < before * (1 - ROUNDING)
