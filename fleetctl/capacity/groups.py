"""Which layers share a table of blocks, as vLLM groups them. Blocks are drawn from one pool by all groups.

Source (vLLM 0.32.0): ``v1/core/kv_cache_utils.py``: ``get_kv_cache_groups``, ``_get_packed_kv_cache_groups``,
``unify_kv_cache_spec_page_size``, ``_get_kv_cache_groups_uniform_page_size``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleetctl.capacity.attention import Kind, Spec
from fleetctl.capacity.shape import Compressed, Latent, State, Window
from fleetctl.errors import SpecError


@dataclass(frozen=True)
class Member:
    """One cache of one layer."""

    layer: int
    spec: Spec


@dataclass(frozen=True)
class Group:
    """Caches that use the same blocks, each its own page of them."""

    members: tuple[Member, ...]

    @property
    def blocks(self) -> int:
        """Blocks that one request holds in this group."""
        return max(member.spec.blocks for member in self.members)


def group_caches(members: Sequence[Member], context: int, packed: bool) -> list[Group]:
    """Groups of all caches of a model. ``packed``: pages of several sizes stand side by side in a block.

    ``context`` is the longest request in tokens. Raises SpecError where vLLM could not page them together.
    """
    if not members:
        return []
    if _alike(members):  # equal, or so much alike that they always need the same blocks
        return [Group(tuple(members))]
    if packed and len({member.spec.page for member in members}) > 1:
        return _packed(members)
    try:
        unified = _unify_pages(members, context)
    except SpecError:
        if not _mixes_latent_and_window(members):
            raise
        # The engine then keeps the whole context for the windows too.
        return [Group(tuple(_as_full(member, context) for member in members))]
    return _same_page_groups(unified)


def _alike(members: Sequence[Member]) -> bool:
    """Whether all need the same number of token slots, so that one table does for all."""
    first = members[0].spec
    if any(member.spec.kind is not first.kind or member.spec.block != first.block for member in members):
        return False
    if first.kind is Kind.WINDOW:
        return len({_window(member.spec) for member in members}) == 1
    if first.kind is Kind.STATE:
        return len({(member.spec.page, member.spec.blocks, _replicated(member.spec)) for member in members}) == 1
    return True


def _window(spec: Spec) -> int:
    return spec.cache.window if isinstance(spec.cache, Window) else 0


def _replicated(spec: Spec) -> bool:
    return isinstance(spec.cache, State) and spec.cache.replicated


def _unify_pages(members: Sequence[Member], context: int) -> list[Member]:
    """Give all the largest page: more tokens to a block where that divides, padding where it does not."""
    largest = max(member.spec.page for member in members)
    return [Member(member.layer, _enlarge(member.spec, largest, context)) for member in members]


def _enlarge(spec: Spec, largest: int, context: int) -> Spec:
    if spec.page == largest:
        return spec
    if spec.kind is Kind.STATE:
        return replace(spec, page=largest)
    if largest % spec.page == 0:
        block = spec.block * (largest // spec.page)
        extra = 1 if spec.kind is Kind.WINDOW else 0
        if spec.kind is Kind.RING:
            return replace(spec, block=block, page=largest)
        # A window holds what it held, in larger blocks.
        held = context if spec.kind is Kind.FULL else (spec.blocks - extra) * spec.block
        return replace(spec, block=block, page=largest, blocks=-(-held // block) + extra)
    if spec.movable:
        return replace(spec, page=largest)
    raise SpecError(
        f"pages of {spec.page:,} and {largest:,} bytes cannot be paged together",
        hint="vLLM refuses this model with these settings; try another KV dtype",
    )


def _mixes_latent_and_window(members: Sequence[Member]) -> bool:
    return any(isinstance(member.spec.cache, Latent | Compressed) for member in members) and any(
        member.spec.kind is Kind.WINDOW for member in members
    )


def _as_full(member: Member, context: int) -> Member:
    spec = member.spec
    if spec.kind is not Kind.WINDOW:
        return member
    return Member(member.layer, replace(spec, kind=Kind.FULL, blocks=-(-context // spec.block)))


def _same_page_groups(members: Sequence[Member]) -> list[Group]:
    """Groups with the same number of layers: that of the rarest kind, or of the commonest where they are close."""
    buckets: dict[Spec, list[Member]] = {}
    for member in members:
        buckets.setdefault(member.spec, []).append(member)
    counts = [len(bucket) for bucket in buckets.values()]
    size = max(counts) if max(counts) < min(counts) * 1.5 else min(counts)
    groups = []
    for bucket in buckets.values():
        number = -(-len(bucket) // size)
        # Every n-th layer, so that the stages of a pipeline get some of each group.
        groups += [Group(tuple(bucket[place::number])) for place in range(number)]
    return groups


@dataclass
class _Bucket:
    members: list[Member]

    @property
    def pages(self) -> dict[int, list[Member]]:
        by_page: dict[int, list[Member]] = {}
        for member in self.members:
            by_page.setdefault(member.spec.page, []).append(member)
        return by_page

    @property
    def balanced(self) -> bool:
        """Whether it has as many layers of each page size."""
        return len({len(names) for names in self.pages.values()}) == 1

    @property
    def repeats(self) -> int:
        return Counter(member.spec.page for member in self.members).most_common(1)[0][1]

    def is_state(self, unsplit_windows: bool) -> bool:
        kind = self.members[0].spec.kind
        return kind in (Kind.STATE, Kind.RING) or (unsplit_windows and kind is Kind.WINDOW)


def _packed(members: Sequence[Member]) -> list[Group]:
    """Groups whose blocks hold pages of several sizes; states are split to fit into the block that attention needs."""
    buckets: list[_Bucket] = []
    for member in members:
        for bucket in buckets:
            if _alike([*bucket.members, member]):
                bucket.members.append(member)
                break
        else:
            buckets.append(_Bucket([member]))
    floor = max((b.repeats for b in buckets if b.balanced and len(b.pages) > 1), default=0)
    repeats = _least_padding([b.repeats for b in buckets if b.balanced], floor) if floor else None

    def number_of(bucket: _Bucket) -> int:
        return -(-bucket.repeats // repeats) if bucket.balanced and repeats else 1

    anchor = max(
        sum(
            -(-len(names) // (len(b.members) if b.is_state(repeats is None) else number_of(b))) * page
            for page, names in b.pages.items()
        )
        for b in buckets
    )
    groups: list[Group] = []
    for bucket in buckets:
        number = number_of(bucket)
        if bucket.is_state(repeats is None):
            fitting = max(anchor // bucket.members[0].spec.page, 1)
            number = max(number, -(-len(bucket.members) // fitting))
        if number == 1:
            groups.append(Group(tuple(bucket.members)))
            continue
        rows = list(zip(*bucket.pages.values(), strict=False))
        groups += [Group(tuple(member for row in rows[place::number] for member in row)) for place in range(number)]
    return groups


def _least_padding(counts: Sequence[int], floor: int) -> int:
    """The group size of at least ``floor`` that pads ``counts`` least; the larger of equals."""
    sizes = range(max(floor, 1), max(counts) + 1)
    return min(sizes, key=lambda size: (sum(-count % size for count in counts), -size), default=max(floor, 1))
