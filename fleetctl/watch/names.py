"""What engines call the figures that are watched, over kinds and versions: what their adapters say. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.engine.runtimes.known import RUNTIMES
from fleetctl.engine.runtimes.metrics import Kind, Row

ROWS: tuple[Row, ...] = tuple(row for runtime in RUNTIMES.values() for row in runtime.metrics)

PROCESS = "process_start_time_seconds"
"""When the process that counts began (the Prometheus client's own): another value is another process.

Missing where several processes count together (PROMETHEUS_MULTIPROC_DIR: vLLM with several API servers, SGLang), in
llama.cpp and in text-embeddings-inference.
"""


def wanted() -> list[str]:
    """Names of all samples that are read, for the box to choose the lines by."""
    return sorted({PROCESS}.union(*(row.spellings for row in ROWS)))


def rows_of(kind: Kind) -> Iterator[Row]:
    """Rows of counters, or of gauges."""
    return (row for row in ROWS if row.kind == kind)
