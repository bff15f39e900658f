"""What the figures that are watched are called in an engine's /metrics: the rows that each adapter has. Pure.

Counters may end in ``_total`` or not: the Prometheus client adds it when it exposes a counter, Ray's does not, and vLLM
has declared some of them with it and later without. Of several names for one thing an engine has one; where a page has
two, the first that is listed counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge"]


@dataclass(frozen=True)
class Row:
    """One figure, as ``watch`` names it, and the names of the samples that have it; ``source`` says where from.

    ``cache_tokens`` is the size of the cache, by which usage is weighed. Where ``handlers`` are given only samples with
    one of these endings of their label ``handler`` count.
    """

    figure: str
    names: tuple[str, ...]
    kind: Kind
    source: str
    handlers: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every name that a sample of it may have."""
        if self.kind == "gauge" or self.names[0].endswith(("_sum", "_count")):
            return self.names
        return tuple(name + end for name in self.names for end in ("_total", ""))


def counter(figure: str, *names: str, source: str, handlers: tuple[str, ...] = ()) -> Row:
    """A row of what only grows."""
    return Row(figure, names, "counter", source, handlers)


def gauge(figure: str, *names: str, source: str) -> Row:
    """A row of what is so now."""
    return Row(figure, names, "gauge", source)
