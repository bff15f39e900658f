"""What a profile says for a first fleet.yaml: values, each with a comment that says where it is from. Pure."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from fleetctl.profiles.kinds import ModelSeen
from fleetctl.profiles.match import Kept, Match, best
from fleetctl.profiles.profile import BoxKind, Profile

_WIDE = 104  # columns of a comment


@dataclass(frozen=True)
class Advised:
    """A value as it stands in the file (None: only told of), and the lines of comment above it."""

    value: str | None
    comment: tuple[str, ...]


@dataclass(frozen=True)
class Advice:
    """What to write of one layout, by key; ``why`` says why the profile fits."""

    profile: str
    why: tuple[str, ...]
    values: dict[str, Advised]


@dataclass(frozen=True)
class Starting:
    """For the layouts of a first file: what to write, and where nothing fits, what was looked for."""

    copies: Advice | None
    split: Advice | None
    told: str


def starting(
    known: Sequence[Kept], model: ModelSeen, boxes: Sequence[BoxKind], usable: float, mix: str | None
) -> Starting:
    """Profiles for a copy on each of the boxes, and for one engine over all; one counts when it fits every box.

    ``usable`` is the part of the memory that the box with the least room leaves to engines.
    """
    copies = _of_all(known, model, boxes, 1)
    split = _of_all(known, model, boxes, len(boxes)) if len(boxes) > 1 else None
    kinds = ", ".join(dict.fromkeys(kind.gpu or f"no GPU, {kind.machine}" for kind in boxes))
    looked = f"{model.name}{f' ({model.quantization})' if model.quantization else ''} on {kinds}"
    found = [
        f"{where}: profile {match.profile.profile} of {match.profile.date}, since {'; '.join(match.why)}"
        for where, match in (("copies", copies), ("split", split))
        if match is not None
    ]
    told = "; ".join(found) or f"no profile fits {looked}: what is written is fleetctl's own default"
    first, second = (None if one is None else advice(one, usable, mix) for one in (copies, split))
    return Starting(first, second, told)


def _of_all(known: Sequence[Kept], model: ModelSeen, boxes: Sequence[BoxKind], over: int) -> Match | None:
    found = [best(known, model, kind, over) for kind in boxes]
    first = found[0] if found else None
    same = first is not None and all(one is not None and one.profile == first.profile for one in found)
    return first if same else None


def advice(match: Match, usable: float, mix: str | None) -> Advice:
    """The values of a profile as fleet.yaml has them."""
    profile, given = match.profile, match.profile.settings
    values: dict[str, Advised] = {}
    chosen = profile.concurrency_for(mix)
    if chosen is not None:
        key, number = chosen
        values["concurrency"] = Advised(str(number), comment(profile, f"concurrency.{key}", f"for the mix {key}"))
    share = given.gpu_memory_utilization
    if share is not None:
        fits = share <= usable
        note = "" if fits else f"{share:g}, which the reserve has no room for: not set"
        said = comment(profile, "gpu_memory_utilization", note)
        values["gpu_memory_utilization"] = Advised(f"{share:g}" if fits else None, said)
    if given.kv_cache_dtype is not None:
        values["kv_cache_dtype"] = Advised(given.kv_cache_dtype, comment(profile, "kv_cache_dtype"))
    if given.speculative is not None:
        words = given.speculative.model_dump(mode="json", exclude_none=True)
        text = "{" + ", ".join(f"{_key(key)}: {json.dumps(value)}" for key, value in words.items()) + "}"
        note = "" if profile.model.exact else f"{text}, if the model has it: not set"
        said = comment(profile, "speculative", note)
        values["speculative"] = Advised(text if profile.model.exact else None, said)
    if given.batched_tokens is not None:
        value = f'[--max-num-batched-tokens, "{given.batched_tokens}"]'
        values["arguments"] = Advised(value, comment(profile, "batched_tokens"))
    return Advice(profile.profile, match.why, values)


def _key(name: str) -> str:
    """A key of a mapping, in quotes where it is no plain word."""
    return name if re.fullmatch(r"[a-z][a-z0-9_]*", name) else json.dumps(name)


def comment(profile: Profile, key: str, note: str = "") -> tuple[str, ...]:
    """Lines of comment: the profile, its date, the note, and the evidence."""
    one = profile.evidence_of(key)
    head = f"profile {profile.profile}, {profile.date}{f', {note}' if note else ''} ({one.how}): "
    return tuple(f"# {line}" for line in textwrap.wrap(in_comment(head + one.told), _WIDE))


def in_comment(text: str) -> str:
    """A text as a comment can have it: what ends a line in YAML, or is none of its characters, is a blank."""
    return " ".join("".join(mark if mark.isprintable() else " " for mark in text).split())
