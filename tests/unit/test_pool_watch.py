"""Engines of a pool are watched while they are loaded, and not missed when they are not."""

from __future__ import annotations

from typing import Any

from pooled import pooled
from test_watch_watcher import Box, watching

RELEASE = pooled()


class PoolBox(Box):
    """A box of the pool on which one of its models is loaded."""

    loaded = "fleetctl-pool-minilm.service"

    def call_with(self, op: str, args: dict[str, Any], *, timeout: float | None = None) -> Any:
        told = super().call_with(op, args, timeout=timeout)
        assert self.release is not None
        for engine, rank in self.release.lodgers_on(self.name):
            there = rank.unit == self.loaded
            told["units"][rank.unit] = {"active": "active" if there else "inactive"}
            page = {"lines": f"vllm:prompt_tokens_total {self.tokens}", "run": "r", "at": self.now}
            told["engines"][engine.id] = page if there else {"why": "connection refused"}
        return told


def test_what_is_loaded_is_watched_and_nothing_else_is_missed() -> None:
    boxes = [PoolBox(name, RELEASE) for name in ("a", "b")]
    with watching(*boxes) as watcher:
        sample = watcher.sample()
        assert [copy.id for copy in sample.copies] == ["pool/minilm@a", "pool/minilm@b"]
        assert sample.unknown == () and {copy.server for copy in sample.copies} == {"UP"}
        boxes[1].loaded = "fleetctl-pool-small.service"
        assert [copy.id for copy in watcher.sample().copies] == ["pool/minilm@a", "pool/small@b"]
