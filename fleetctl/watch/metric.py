"""One metric of the exporter. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


@dataclass(frozen=True)
class Told:
    """Its name (without the ``_total`` that counters get), what it is, and its labels."""

    name: str
    text: str
    labels: tuple[str, ...]
    counter: bool = False

    def family(self, rows: Iterable[tuple[Iterable[str], float | None]]) -> Metric:
        """The metric with a series for each row whose value is known."""
        kind = CounterMetricFamily if self.counter else GaugeMetricFamily
        family: Metric = kind(self.name, self.text, labels=self.labels)
        for labels, value in rows:
            if value is not None:
                family.add_metric(list(labels), float(value))  # type: ignore[attr-defined]
        return family
