"""From the lines of an engine's /metrics to figures. Pure.

An engine may be several behind one model name (``engine="0"``, ``engine="1"``: data parallel). What is counted is
summed over them, and so are requests; how full a cache is, is not.

A sum that lacks one of its samples would look like a counter that began anew, and what was counted before would count
twice. So a counter with a sample that is damaged, negative or no number is not known at all this time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample as Line

from fleetctl.engine.runtimes.metrics import Row
from fleetctl.watch.names import PROCESS, rows_of

LONGEST_NAME = 200
LONGEST_LINE = 8192  # characters; that of cache_config_info has 1,100; longer ones are nobody's metrics
MOST_LINES = 5000
LARGEST = 2.0**63  # no engine counts so far


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
    models: frozenset[str] = frozenset()
    """The names of models that its samples carry; llama.cpp's carry none."""

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
        if have and row.figure not in counters and _whole(have):
            counters[row.figure] = _sum(have)
    gauges: dict[str, list[Line]] = {}
    for row in rows_of("gauge"):
        have = [line for line in _first(row, found) if math.isfinite(line.value)]
        if have:
            gauges.setdefault(row.figure, have)
    sizes = _sizes(gauges.get("cache_tokens", []))
    return Reading(
        counters=counters,
        running=_sum(gauges["running"]) if _whole(gauges.get("running", [])) else None,
        waiting=_sum(gauges["waiting"]) if _whole(gauges.get("waiting", [])) else None,
        cache_usage=_usage(gauges.get("cache_usage", []), sizes),
        cache_tokens=sum(sizes.values()) or None,
        prefix_hit_rate=_mean(gauges.get("prefix_hit_rate", [])),
        acceptance=_mean(gauges.get("acceptance", [])),
        process=_process(found.get(PROCESS, [])),
        models=frozenset(line.labels["model_name"] for have in found.values() for line in have if _names_model(line)),
    )


def lines(text: str) -> Iterable[Line]:
    """The samples of a page, one line at a time; one that is damaged is no number (NaN), and spoils no other name."""
    for number, line in enumerate(text.split("\n")):
        if number >= MOST_LINES:
            return
        if not line.strip() or line.startswith("#"):
            continue
        try:
            if len(line) > LONGEST_LINE:
                raise ValueError(line)
            yield from [sample for family in text_string_to_metric_families(line) for sample in family.samples]
        except (ValueError, KeyError, IndexError, AttributeError, TypeError):  # all that the parser answers junk with
            yield Line(line.partition("{")[0].partition(" ")[0][:LONGEST_NAME], {}, math.nan)


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
    have = next((found[name] for name in row.spellings if name in found), [])
    if not row.handlers:
        return have
    return [line for line in have if line.labels.get("handler", "").endswith(row.handlers)]


def _whole(have: list[Line]) -> bool:
    """There are samples, and all of them are numbers that a count can have."""
    return bool(have) and all(0 <= line.value < LARGEST for line in have)


def _names_model(line: Line) -> bool:
    return ":" in line.name and bool(line.labels.get("model_name"))


def _engine(line: Line) -> str:
    """Which of several engines behind one page a sample is about."""
    return line.labels.get("engine") or line.labels.get("dp_rank") or ""


def _each(have: list[Line]) -> dict[str, float]:
    """Engine → its value. The ranks of one engine (SGLang can expose all of them) tell the same thing, and count once.

    Samples that differ in other labels, such as the model's name, are added up; one that is told twice counts once.
    """
    series: dict[tuple[tuple[str, str], ...], Line] = {tuple(sorted(line.labels.items())): line for line in have}
    ranks: dict[tuple[str, str, str], float] = {}
    for line in series.values():
        rank = (_engine(line), line.labels.get("tp_rank", ""), line.labels.get("pp_rank", ""))
        ranks[rank] = ranks.get(rank, 0.0) + line.value
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
        size = _told_size(line.labels) if line.name.endswith("_info") else line.value
        if math.isfinite(size) and size > 0:
            found[_engine(line)] = max(size, found.get(_engine(line), 0.0))
    return found


def _told_size(labels: Mapping[str, str]) -> float:
    """Tokens by the labels of vLLM's cache_config_info; 0: they do not say."""
    try:
        if "kv_cache_size_tokens" in labels:
            return float(labels["kv_cache_size_tokens"])
        return float(labels["block_size"]) * float(labels["num_gpu_blocks"])
    except (KeyError, ValueError):
        return 0.0


def _usage(have: list[Line], sizes: Mapping[str, float]) -> float | None:
    each: dict[str, float] = {}
    for line in have:  # the fullest rank of an engine is the one that it has to wait for
        if line.value >= 0:
            each[_engine(line)] = max(each.get(_engine(line), 0.0), line.value)
    return weighed((usage, sizes.get(engine)) for engine, usage in each.items())


def _process(have: list[Line]) -> str | None:
    return repr(have[0].value) if have and math.isfinite(have[0].value) else None
