"""What would keep an engine from starting for want of memory, or the box from outliving that start."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleetctl.doctor.finding import Finding, Kind, Severity
from fleetctl.doctor.memory.told import MemoryTold, held_by, of_unit, strangers
from fleetctl.doctor.scene import Scene
from fleetctl.plan.others import taken_on
from fleetctl.render.batched import batched_tokens
from fleetctl.render.release import Budget, Engine, Rank
from fleetctl.spec.units import gib

PAGE_CACHE = Kind(
    "M05",
    Severity.NOTE,
    "the page cache is in the way of the next start",
    "a box whose GPU shares its memory, where an engine that starts would find less free than its share, although "
    "the page cache could be given back",
    "CUDA counts what the page cache holds as taken. vLLM reckons with it on such GPUs, older versions and other "
    "engines do not: `Free memory on device … on startup is less than desired GPU memory utilization`.",
    "`page_cache: drop` under the box in fleet.yaml: the cache is dropped before a start that needs it",
    "cudaMemGetInfo on GPUs with shared memory",
)
START_PEAK = Kind(
    "M06",
    Severity.WARNING,
    "a start would pass the memory of the box",
    "weights and what was measured beyond them (`measured:`), more than the box has beside other engines and services",
    "The share is no ceiling while an engine starts: its trial run takes what it takes, before anything is compared "
    "with the share. A share of 83 GiB was seen to reach 112 GiB, and the box froze.",
    "lower --max-num-batched-tokens or context:, or run the model on more boxes",
    "reports of GB10 boxes that froze during the profiling run",
)
REFUSED_START = Kind(
    "M07",
    Severity.ERROR,
    "an engine finds too little free memory to start",
    "starts of the last day that an engine gave up with `Free memory on device … on startup is less than desired GPU "
    "memory utilization`",
    "systemd starts it again and again, each time with the same end; one box was lost to SSH after 35 of them.",
    "free what holds the memory, then `fleetctl apply`",
    "vLLM's request_memory",
)
KINDS = (PAGE_CACHE, START_PEAK, REFUSED_START)
_SIZES = re.compile(r"\(([0-9.]{1,9})/([0-9.]{1,9}) GiB\).{0,80}\(([0-9.]{1,9}), ([0-9.]{1,9}) GiB\)")
GIB = 2**30
SPARE = 10
"""An engine that runs holds a little less than its share: only more than a tenth of the memory is worth a word."""


def find(scene: Scene, box: str, told: MemoryTold) -> Iterator[Finding]:
    """Findings of one box."""
    budget = next((budget for budget in scene.live.budgets if budget.box == box), None)
    ranks = scene.live.ranks_on(box)
    if budget is None or not ranks:
        return
    refused = list(_refused(scene, box, told))
    yield from refused
    if not refused:
        yield from _page_cache(scene, budget, told)
    for engine, rank in ranks:
        yield from _peak(scene, budget, engine, rank)


def _page_cache(scene: Scene, budget: Budget, told: MemoryTold) -> Iterator[Finding]:
    box, ranks = budget.box, scene.live.ranks_on(budget.box)
    free, available = told.meminfo.get("MemFree"), told.meminfo.get("MemAvailable")
    if not told.unified or budget.drop_page_cache or free is None or available is None:
        return
    _, rank = max(ranks, key=lambda pair: pair[1].share)
    need = int(rank.share * budget.memory)
    held = held_by(told, rank.unit)
    own = held.total if held is not None else 0
    if any(of_unit(process, rank.unit) for process in told.processes) and held is None:
        return  # what it would give back is not known
    if not (free + own + budget.memory // SPARE < need <= available + own):
        return
    yield PAGE_CACHE.found(
        box,
        rank.unit,
        f"{rank.unit} asks for {gib(need)} when it starts and would find {gib(free + own)} free, because the page "
        f"cache holds {gib(available - free)}",
        f"/proc/meminfo: MemFree {gib(free)}, MemAvailable {gib(available)}",
        f"{rank.unit} holds {gib(own)}",
        fix=f"write page_cache: drop under {box} in fleet.yaml, then `fleetctl apply`; once, by hand on {box}: "
        "sync; echo 1 > /proc/sys/vm/drop_caches",
    )


def _peak(scene: Scene, budget: Budget, engine: Engine, rank: Rank) -> Iterator[Finding]:
    box, facts = budget.box, scene.observed[budget.box]
    model = scene.fleet.models.get(engine.model)
    measured = model.measured.get(box) if model is not None else None
    if measured is None or measured.ranks != len(engine.ranks):
        return
    now = batched_tokens(scene.live, box, rank)
    # What grows with the batch are the activations; the rest of the overhead does not shrink with it.
    more = max(0, (measured.peak or 0) * now // measured.batched_tokens - (measured.peak or 0))
    peak = measured.weights + measured.overhead + more
    beside = int(sum(other.share for _, other in scene.live.ranks_on(box) if other.unit != rank.unit) * budget.memory)
    others = taken_on(scene.live, box, facts.superseded, facts.others).together if facts.others is not None else 0
    total = facts.memory["total"]
    if peak + beside + others <= total:
        return
    lower = f"write --max-num-batched-tokens={measured.batched_tokens} in arguments: of {engine.model}"
    yield START_PEAK.found(
        box,
        rank.unit,
        f"{engine.id} takes {gib(peak)} while it starts, beside {gib(beside + others)} of others: more than the "
        f"{gib(total)} of {box}",
        f"measured on {measured.at}: weights {gib(measured.weights)}, beyond them {gib(measured.overhead)} with "
        f"--max-num-batched-tokens {measured.batched_tokens}; it starts with {now}",
        f"other engines' shares {gib(beside)}, other services at their worst {gib(others)}",
        fix=f"{lower if now > measured.batched_tokens else f'lower context: of {engine.model}, or split it'}; then "
        "`fleetctl apply`",
    )


def _refused(scene: Scene, box: str, told: MemoryTold) -> Iterator[Finding]:
    for unit, lines in told.refused.items():
        if not lines.count:
            continue
        state = scene.observed[box].units.get(unit)
        runs = state is not None and state.active == "active"
        newest = lines.lines[0].text if lines.lines else ""
        sizes = _SIZES.search(newest)
        found = f": it found {sizes[1]} GiB free and asks for {sizes[4]} GiB" if sizes else ""
        times = f"{lines.count} time{'' if lines.count == 1 else 's'} within a day"
        holders = [f"{app.name or owner.comm} (pid {app.pid})" for app, owner in strangers(told) if app.used]
        yield REFUSED_START.found(
            box,
            unit,
            f"{unit} gave up starting {times}{found}" + ("; it runs now" if runs else ""),
            newest,
            *(f"{row} is {gib(told.meminfo[row])} now" for row in ("MemAvailable", "MemFree") if row in told.meminfo),
            fix=_way_out(box, unit, told, float(sizes[4]) if sizes else None, holders, runs),
            severity=Severity.NOTE if runs else None,
        )


def _way_out(box: str, unit: str, told: MemoryTold, wanted: float | None, holders: list[str], runs: bool) -> str:
    if runs:
        return f"nothing now; if it comes again: write page_cache: drop under {box} in fleet.yaml, or a larger reserve:"
    stop = f"on {box}: systemctl stop {unit}, so that it is not started again and again; "
    free, available = told.meminfo.get("MemFree", 0) / GIB, told.meminfo.get("MemAvailable", 0) / GIB
    if holders:
        return f"{stop}end {', '.join(holders[:3])}, which hold memory of the GPU; then `fleetctl apply`"
    if wanted is not None and told.unified and free < wanted <= available:
        return f"{stop}write page_cache: drop under {box} in fleet.yaml; then `fleetctl apply`"
    if wanted is not None and available >= wanted:
        return f"{stop}there is room for it now: `fleetctl apply`"
    return (
        f"{stop}see who holds the memory (ps -eo pid,rss,comm --sort -rss, nvidia-smi), end it; then `fleetctl apply`"
    )
