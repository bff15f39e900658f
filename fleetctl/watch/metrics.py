"""A sample of the fleet as Prometheus metrics. What is not known has no series: it is not zero. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import InfoMetricFamily, Metric

from fleetctl.watch.metric import Told
from fleetctl.watch.pool_metrics import POOL_METRICS, pool_families
from fleetctl.watch.sample import Copy, Counts, Sample

OF_COPY = ("fleet", "layout", "model", "copy", "box")
OF_MODEL = ("fleet", "model")
OF_BOX = ("fleet", "box")
OF_FLEET = ("fleet",)


# Field of Counts → its metric, of a copy and (without copy_) of a model.
_COUNTED = {
    "prompt_tokens": ("prompt_tokens", "Prompt tokens read."),
    "generation_tokens": ("generation_tokens", "Tokens generated."),
    "requests": ("requests", "Requests that ended."),
    "first_tokens": ("first_tokens", "First tokens of answers."),
    "first_token_seconds": ("first_token_seconds", "Seconds until first tokens, all of them together."),
    "prefix_queries": ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    "prefix_hits": ("prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    "draft_tokens": ("draft_tokens", "Tokens drafted by speculative decoding."),
    "accepted_tokens": ("accepted_tokens", "Drafted tokens that were accepted."),
    "preemptions": ("preemptions", "Requests put back because the cache was full."),
}
_STEADY = "It goes on through restarts of the engine, and begins at what the engine had counted when it was first read."
COPY_COUNTERS = {
    field: Told(f"fleetctl_copy_{name}", f"{text} {_STEADY}", OF_COPY, True) for field, (name, text) in _COUNTED.items()
}
MODEL_COUNTERS = {
    field: Told(
        f"fleetctl_{name}",
        f"{text} All copies of the model together, those of earlier layouts included. Missing until each copy of the "
        "layout was read once; of a copy that is not known now the last value is in it.",
        OF_MODEL,
        True,
    )
    for field, (name, text) in _COUNTED.items()
}
COPY_UP = Told("fleetctl_copy_up", "1: the engine's own /metrics could be read. 0: nothing is known of it.", OF_COPY)
COPY_IN_ROTATION = Told(
    "fleetctl_copy_in_rotation", "1: every proxy that answers gives it requests. Missing: no proxy answers.", OF_COPY
)
COPY_ACTIVE = Told("fleetctl_copy_unit_active", "1: the units of all its ranks are active.", OF_COPY)
COPY_LOADING = Told(
    "fleetctl_copy_unit_loading", "1: a unit of one of its ranks is starting: the engine loads.", OF_COPY
)
COPY_RUNNING = Told("fleetctl_copy_requests_running", "Requests that the engine works on.", OF_COPY)
COPY_WAITING = Told("fleetctl_copy_requests_waiting", "Requests that wait in the engine's own queue.", OF_COPY)
COPY_CACHE = Told("fleetctl_copy_cache_usage_ratio", "How full its KV cache is, of 1.", OF_COPY)
COPY_RESTARTS = Told(
    "fleetctl_copy_restarts", "How often its counters began anew since the exporter started.", OF_COPY, True
)
COPIES = Told("fleetctl_copies", "Copies of a model in the live layout.", OF_MODEL)
COPIES_KNOWN = Told("fleetctl_copies_known", "Those of them that could be read.", OF_MODEL)
BOX_UP = Told("fleetctl_box_up", "1: the box answered.", OF_BOX)
BOX_DRAINED = Told("fleetctl_box_drained", "1: an operator took the box out of the proxy.", OF_BOX)
BOX_MEMORY = Told("fleetctl_box_memory_bytes", "Memory of the box, in bytes.", OF_BOX)
BOX_AVAILABLE = Told("fleetctl_box_memory_available_bytes", "Memory that is available, in bytes.", OF_BOX)
BOX_LOW = Told(
    "fleetctl_box_memory_low_bytes", "Available memory below which a guard acts, or would, in bytes.", OF_BOX
)
BOX_SWAP = Told("fleetctl_box_swap_used_bytes", "Swap that is used, in bytes.", OF_BOX)
BOX_PRESSURE = Told(
    "fleetctl_box_memory_pressure_ratio",
    "Part of the last 10 s in which something waited for memory (PSI, some), of 1.",
    OF_BOX,
)
PROXY_UP = Told("fleetctl_proxy_up", "1: a proxy of the fleet answered.", OF_FLEET)
PROXY_WAITING = Told(
    "fleetctl_proxy_requests_waiting", "Requests in the queue that all engines of a model share.", OF_FLEET
)
PROXY_HELD = Told(
    "fleetctl_proxy_requests_held",
    "Requests that are held: their model has no engine that takes them.",
    OF_FLEET,
)
PROXY_RUNNING = Told("fleetctl_proxy_requests_running", "Requests that the proxies have given to engines.", OF_FLEET)
GENERATION = Told("fleetctl_generation", "Number of the generation that is live.", OF_FLEET)
CHANGED = Told(
    "fleetctl_last_change_timestamp_seconds",
    "When the layout or its settings were last changed, in seconds since 1970, by the clock of a box.",
    OF_FLEET,
)
TOOK = Told("fleetctl_sample_duration_seconds", "Seconds that reading the fleet took.", OF_FLEET)
LAYOUT = ("fleetctl_layout", "The layout that is live.")

METRICS = (
    *MODEL_COUNTERS.values(), *COPY_COUNTERS.values(), COPY_UP, COPY_IN_ROTATION, COPY_ACTIVE, COPY_LOADING,
    COPY_RUNNING, COPY_WAITING, COPY_CACHE, COPY_RESTARTS, COPIES, COPIES_KNOWN, BOX_UP, BOX_DRAINED, BOX_MEMORY,
    BOX_AVAILABLE, BOX_LOW, BOX_SWAP, BOX_PRESSURE, PROXY_UP, PROXY_WAITING, PROXY_HELD, PROXY_RUNNING, GENERATION,
    CHANGED, TOOK, *POOL_METRICS,
)  # fmt: skip


def families(sample: Sample, low: Mapping[str, int], took: float) -> Iterator[Metric]:
    """All metrics of a sample that was read in ``took`` seconds.

    ``low`` has the memory in bytes below which guards act, by box.
    """
    fleet = sample.fleet
    yield from _of_fleet(sample, took)
    models = {copy.model: [one for one in sample.copies if one.model == copy.model] for copy in sample.copies}
    yield COPIES.family(((fleet, model), len(copies)) for model, copies in models.items())
    yield COPIES_KNOWN.family(((fleet, model), sum(copy.known for copy in copies)) for model, copies in models.items())
    for field, told in MODEL_COUNTERS.items():
        # A copy that is read for the first time brings all that it ever counted: no growth of the sum.
        yield told.family(
            ((fleet, model), getattr(counts, field))
            for model, counts in sample.models.items()
            if all(copy.counts != Counts() for copy in models.get(model, ()))
        )
    yield from _of_copies(sample)
    yield from _of_boxes(sample, low)
    if sample.pool is not None:
        yield from pool_families(sample.fleet, sample.layout or "", sample.pool)


def _of_fleet(sample: Sample, took: float) -> Iterator[Metric]:
    labels = (sample.fleet,)
    if sample.layout is not None:
        info = InfoMetricFamily(*LAYOUT, labels=["fleet"])
        info.add_metric(list(labels), {"layout": sample.layout})
        yield info
    yield GENERATION.family([(labels, sample.generation)])
    yield CHANGED.family([(labels, sample.changed)])
    yield TOOK.family([(labels, took)])
    yield PROXY_UP.family([(labels, sample.proxy.waiting is not None)])
    yield PROXY_WAITING.family([(labels, sample.proxy.waiting)])
    yield PROXY_HELD.family([(labels, sample.proxy.held)])
    yield PROXY_RUNNING.family([(labels, sample.proxy.running)])


def _of_copies(sample: Sample) -> Iterator[Metric]:
    def labels(copy: Copy) -> tuple[str, ...]:
        return (sample.fleet, sample.layout or "", copy.model, copy.id, copy.boxes[0])

    known = [copy for copy in sample.copies if copy.known]
    yield COPY_UP.family((labels(copy), copy.known) for copy in sample.copies)
    rotation = [(copy, None if copy.server == "unknown" else copy.server == "UP") for copy in sample.copies]
    yield COPY_IN_ROTATION.family((labels(copy), into) for copy, into in rotation)
    units = [copy for copy in sample.copies if not copy.unit.startswith("unknown")]
    yield COPY_ACTIVE.family((labels(copy), copy.unit == "active") for copy in units)
    yield COPY_LOADING.family((labels(copy), copy.unit.startswith("activating")) for copy in units)
    yield COPY_RUNNING.family((labels(copy), copy.figures.running) for copy in known)
    yield COPY_WAITING.family((labels(copy), copy.figures.waiting) for copy in known)
    yield COPY_CACHE.family((labels(copy), copy.figures.cache_usage) for copy in known)
    yield COPY_RESTARTS.family((labels(copy), copy.restarts) for copy in known)
    for field, told in COPY_COUNTERS.items():
        yield told.family((labels(copy), getattr(copy.counts, field)) for copy in known)


def _of_boxes(sample: Sample, low: Mapping[str, int]) -> Iterator[Metric]:
    boxes = [((sample.fleet, name), box) for name, box in sample.boxes.items()]
    yield BOX_UP.family((labels, box.why is None) for labels, box in boxes)
    yield BOX_DRAINED.family((labels, box.drained) for labels, box in boxes)
    yield BOX_MEMORY.family((labels, box.memory) for labels, box in boxes)
    yield BOX_AVAILABLE.family((labels, box.available) for labels, box in boxes)
    yield BOX_LOW.family(((sample.fleet, name), size) for name, size in low.items())
    yield BOX_SWAP.family((labels, box.swap_used) for labels, box in boxes)
    yield BOX_PRESSURE.family((labels, None if box.pressure is None else box.pressure / 100) for labels, box in boxes)
