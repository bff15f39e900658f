"""From the lines of an engine's /metrics to figures. Pure.

An engine may be several behind one model name (``engine="0"``, ``engine="1"``: data parallel). What is counted is
summed over them, and so are requests; how full a cache is, is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample as Line

from fleetctl.watch.names import PROCESS, Row, rows_of

LONGEST_LINE = 4096  # characters; longer ones are nobody's metrics
MOST_LINES = 5000


@dataclass(frozen=True)
class Reading:
    """One engine at one moment.

    ``counters`` has what it counted since its process began, by the names of :class:`~fleetctl.watch.sample.Counts`;
    ``process`` says which process that is, None where the page does not. The others as in
    :class:`~fleetctl.watch.sample.Figures`; ``cache_tokens`` is the size of the cache.
    """

    counters: Mapping[str, float] = field(default_factory=dict)
    running: float | None = None
    waiting: float | None = None
    cache_usage: float | None = None
    cache_tokens: float | None = None
    prefix_hit_rate: float | None = None
    acceptance: float | None = None
    process: str | None = None

    @property
    def empty(self) -> bool:
        """The page had nothing that is known here: it is no engine's, or its metrics are switched off."""
        return not self.counters and self.running is None


def read(text: str) -> Reading:
    """The figures in the lines of a page. What is not understood is passed over."""
    found: dict[str, list[Line]] = {}
    for line in lines(text):
        found.setdefault(line.name, []).append(line)
    counters = {}
    for row in rows_of("counter"):
        have = _first(row, found)
        if have and row.figure not in counters:
            counters[row.figure] = _sum(have)
    gauges: dict[str, list[Line]] = {}
    for row in rows_of("gauge"):
        have = _first(row, found)
        if have:
            gauges.setdefault(row.figure, have)
    sizes = _sizes(gauges.get("cache_tokens", []))
    return Reading(
        counters=counters,
        running=_sum(gauges["running"]) if "running" in gauges else None,
        waiting=_sum(gauges["waiting"]) if "waiting" in gauges else None,
        cache_usage=_usage(gauges.get("cache_usage", []), sizes),
        cache_tokens=sum(sizes.values()) or None,
        prefix_hit_rate=_mean(gauges.get("prefix_hit_rate", [])),
        acceptance=_mean(gauges.get("acceptance", [])),
        process=_process(found.get(PROCESS, [])),
    )


def lines(text: str) -> Iterable[Line]:
    """The samples of a page, one line at a time, so that one that is damaged spoils no other."""
    for number, line in enumerate(text.split("\n")):
        if number >= MOST_LINES:
            return
        if not line.strip() or line.startswith("#") or len(line) > LONGEST_LINE:
            continue
        try:
            samples = [sample for family in text_string_to_metric_families(line) for sample in family.samples]
        except (ValueError, KeyError, IndexError, AttributeError, TypeError):  # all that the parser answers junk with
            continue
        yield from (sample for sample in samples if math.isfinite(sample.value))


def weighed(usages: Iterable[tuple[float, float | None]]) -> float | None:
    """The usage of several caches together: by their sizes where all are known, otherwise their mean."""
    known = list(usages)
    if not known:
        return None
    sizes = [size for _, size in known if size]
    if len(sizes) == len(known):
        return sum(usage * (size or 0.0) for usage, size in known) / sum(sizes)
    return sum(usage for usage, _ in known) / len(known)


def _first(row: Row, found: Mapping[str, list[Line]]) -> list[Line]:
    """The samples under the first of the names that the page has."""
    return next((found[name] for name in row.spellings if name in found), [])


def _engine(line: Line) -> str:
    """Which of several engines behind one page a sample is about."""
    return line.labels.get("engine") or line.labels.get("dp_rank") or ""


def _each(have: list[Line]) -> dict[str, float]:
    """Engine → its value. The ranks of one engine (SGLang can expose all of them) tell the same thing, and count once.

    Samples that differ in other labels, such as the model's name, are added up.
    """
    ranks: dict[tuple[str, str, str], float] = {}
    for line in have:
        rank = (_engine(line), line.labels.get("tp_rank", ""), line.labels.get("pp_rank", ""))
        ranks[rank] = ranks.get(rank, 0.0) + max(0.0, line.value)
    each: dict[str, float] = {}
    for (engine, _, _), value in ranks.items():
        each[engine] = max(each.get(engine, 0.0), value)
    return each


def _sum(have: list[Line]) -> float:
    return sum(_each(have).values())


def _mean(have: list[Line]) -> float | None:
    """Of shares; vLLM says -1 for a rate of which it knows nothing."""
    known = [line.value for line in have if 0.0 <= line.value <= 1.0]
    return sum(known) / len(known) if known else None


def _sizes(have: list[Line]) -> dict[str, float]:
    """Engine → tokens that fit its cache."""
    found: dict[str, float] = {}
    for line in have:
        if line.name.endswith("_info"):
            try:
                size = float(line.labels["block_size"]) * float(line.labels["num_gpu_blocks"])
            except (KeyError, ValueError):
                continue
        else:
            size = line.value
        if math.isfinite(size) and size > 0:
            found[_engine(line)] = max(size, found.get(_engine(line), 0.0))
    return found


def _usage(have: list[Line], sizes: Mapping[str, float]) -> float | None:
    each: dict[str, float] = {}
    for line in have:  # the fullest rank of an engine is the one that it has to wait for
        if line.value >= 0:
            each[_engine(line)] = max(each.get(_engine(line), 0.0), line.value)
    return weighed((usage, sizes.get(engine)) for engine, usage in each.items())


def _process(have: list[Line]) -> str | None:
    return repr(have[0].value) if have else None
