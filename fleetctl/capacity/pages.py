"""From memory for the cache to blocks, and from blocks to tokens and requests, as vLLM counts them.

A request of full context holds Q blocks: the sum over the groups of caches. The rank with the fewest blocks decides.
Then concurrency = blocks / Q, and the size that the engine logs is int(concurrency * max_model_len): for models with
states it is no rate per token, and depends on the context.

Source (vLLM 0.32.0): ``get_kv_cache_configs`` and ``get_kv_cache_capacity`` in ``v1/core/kv_cache_utils.py``,
``get_pp_indices`` in ``distributed/utils.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fleetctl.capacity.attention import Launch, block_size, specs, state_bytes, token_bytes
from fleetctl.capacity.groups import Group, Member, group_caches
from fleetctl.capacity.shape import Layer, ModelShape, State
from fleetctl.errors import SpecError


@dataclass(frozen=True)
class Paging:
    """How a model's cache is paged with given settings."""

    launch: Launch
    block: int
    """Tokens in a block of the attention layers."""
    groups: tuple[Group, ...]
    per_request: int
    """Q: blocks that a request of full context holds."""
    stage_bytes: tuple[int, ...]
    """Bytes of one block on a rank of each pipeline stage."""
    per_token: float
    """Bytes that one more token costs on the rank of the stage where it costs most, without states and rounding."""
    per_state: int
    """Bytes of one request's states on a rank of that stage, before they are padded to pages."""

    def blocks(self, available: Sequence[int]) -> int:
        """Blocks that fit; ``available`` are the bytes for the cache, one number for each stage or one for all."""
        if len(available) not in (1, len(self.stage_bytes)):
            raise SpecError(f"memory of {len(available)} ranks for {len(self.stage_bytes)} stages")
        each = list(available) * (len(self.stage_bytes) if len(available) == 1 else 1)
        counts = [max(0, memory) // size for memory, size in zip(each, self.stage_bytes, strict=True) if size]
        return min(counts, default=0)

    def concurrency(self, available: Sequence[int]) -> float:
        """Requests of full context that fit at once."""
        return self.blocks(available) / self.per_request if self.per_request else 0.0

    def tokens(self, available: Sequence[int]) -> int:
        """The engine's ``KV cache size`` in tokens."""
        # In this order, as the engine does it: the result is rounded down.
        return int(self.concurrency(available) * self.launch.context)

    def tokens_of_old(self, available: Sequence[int]) -> int:
        """What versions up to spring 2026 logged: blocks // groups * block."""
        return self.blocks(available) // len(self.groups) * self.block if self.groups else 0

    def starts(self, available: Sequence[int]) -> bool:
        """Whether the engine starts: one request must fit, with the block that is never used."""
        return self.per_request <= self.blocks(available) - 1

    def needed(self, requests: float = 1) -> tuple[int, ...]:
        """Bytes for the cache, for each stage, that hold ``requests`` of full context and let the engine start."""
        blocks = max(math.ceil(requests * self.per_request), self.per_request + 1)
        return tuple(blocks * size for size in self.stage_bytes)


def page_model(shape: ModelShape, launch: Launch, layers: Sequence[Layer] | None = None) -> Paging:
    """Page the caches of a model. ``layers`` stands for the model's own where it has several readings.

    Raises SpecError where vLLM would refuse the settings.
    """
    own = tuple(layers if layers is not None else shape.layers)
    stages = stage_of_layers(len(own), launch.pp)
    if launch.spec_tokens:
        own += shape.draft
        stages += [launch.pp - 1] * len(shape.draft)
    paged = specs(shape, launch, own)
    members = [Member(place, spec) for place, layer in enumerate(paged) for spec in layer]
    groups = group_caches(members, launch.context, shape.block_outermost)
    stage_bytes = tuple(
        max((sum(m.spec.page for m in group.members if stages[m.layer] == stage) for group in groups), default=0)
        for stage in range(launch.pp)
    )
    held: list[list[Layer]] = [[] for _ in range(launch.pp)]
    for layer, stage in zip(own, stages, strict=True):
        held[stage].append(layer)
    return Paging(
        launch=launch,
        block=block_size(shape, launch),
        groups=tuple(groups),
        per_request=sum(group.blocks for group in groups),
        stage_bytes=stage_bytes,
        per_token=max(sum(token_bytes(c, shape, launch) for one in part for c in one.caches) for part in held),
        per_state=max(
            sum(state_bytes(c, launch) for one in part for c in one.caches if isinstance(c, State)) for part in held
        ),
    )


def stage_of_layers(count: int, pp: int) -> list[int]:
    """The pipeline stage of each layer; layers over go to the stages before the last. SpecError for too few layers."""
    if count < pp:
        raise SpecError(f"{count} layers cannot be divided over {pp} pipeline stages")
    sizes = [count // pp] * pp
    for place in range(2, count % pp + 2):
        sizes[-place] += 1
    return [stage for stage, size in enumerate(sizes) for _ in range(size)]
