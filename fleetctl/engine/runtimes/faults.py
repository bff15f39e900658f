"""What several kinds of engine have no place for, told in the words of fleet.yaml. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.engine.runtimes.runtime import Ask, Fault


def one_name(ask: Ask, title: str) -> Iterable[Fault]:
    """Of an engine that serves under one name."""
    if len(ask.served_as) > 1:
        yield Fault(
            f"{title} serves a model under one name, and served_as: has {', '.join(ask.served_as)}",
            "keep one name in served_as:",
        )


def no_cache_size(ask: Ask, title: str, instead: str) -> Iterable[Fault]:
    """Of an engine whose cache cannot be given in bytes; ``instead`` says what to do."""
    if ask.cache is not None:
        yield Fault(f"{title} cannot be given its cache in bytes (kv_cache_memory:)", instead)


def no_cache(ask: Ask, title: str) -> Iterable[Fault]:
    """Of a server of encoders, which has no KV cache and drafts nothing."""
    given = {
        "kv_cache_memory": ask.cache,
        "kv_cache_dtype": ask.model.kv_cache_dtype,
        "speculative": ask.model.speculative,
    }
    for key, value in given.items():
        if value is not None:
            yield Fault(f"{title} serves encoders, which have no use for {key}:", f"take {key}: out")
