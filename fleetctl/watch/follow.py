"""One engine from sample to sample: its sums, and what happened since the sample before. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleetctl.watch.reading import Reading, read
from fleetctl.watch.sample import Figures
from fleetctl.watch.summing import Step, figures_of
from fleetctl.watch.told import PageTold
from fleetctl.watch.totals import Totals


class Followed:
    """An engine. ``totals`` stays what it was while the engine cannot be read; ``step`` is the last one."""

    def __init__(self, model: str, served_as: Sequence[str] = ()) -> None:
        self.model = model
        self.served_as = served_as
        self.totals = Totals()
        self.step = Step(Reading())
        self.figures = Figures()
        self._before: tuple[str, float, Mapping[str, float]] | None = None

    def take(self, page: PageTold, boot: str) -> str | None:
        """Take in a page of the engine, read on its box since that ``boot``; why it cannot be, if so.

        Rates are over the time by the steady clock of the box. It begins anew when the box boots, and there is no rate
        then.
        """
        if page.why is not None:
            self.missed()
            return page.why
        reading = read(page.lines)
        if reading.empty:
            self.missed()
            return "its /metrics has nothing that is known here (vLLM: --disable-log-stats? SGLang: --enable-metrics)"
        if self.served_as and reading.models and not reading.models & set(self.served_as):
            self.missed()  # somebody else's, at its port: it would count for this one for ever
            return f"what answers at its port serves {sorted(reading.models)[0][:80]!r}, not {self.served_as[0]}"
        self.totals.read(reading.counters, reading.process, page.run)
        sums = self.totals.sums
        seconds, more = None, {}
        if self._before is not None and self._before[0] == boot and page.at > self._before[1]:
            seconds = page.at - self._before[1]
            earlier = self._before[2]
            more = {counter: max(0.0, value - earlier.get(counter, 0.0)) for counter, value in sums.items()}
        self._before = (boot, page.at, sums)
        self.step = Step(reading, seconds, more)
        self.figures = figures_of(self.step)
        return None

    def missed(self) -> None:
        """It could not be read: nothing is known of now."""
        self.step = Step(Reading())
        self.figures = Figures()
