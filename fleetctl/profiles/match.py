"""Which profile fits a model on a box, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleetctl.profiles.kinds import ModelSeen, plain
from fleetctl.profiles.profile import BoxKind, ModelKind, Profile
from fleetctl.spec.units import gib

WEIGHTS = 0.05
MEMORY = 0.10
"""How far sizes may be apart: builds of one model differ a little, and firmware keeps some of a box's memory."""


@dataclass(frozen=True)
class Kept:
    """A profile and the file that it is in; ``own`` is one of the operator's."""

    profile: Profile
    file: str
    own: bool = False


@dataclass(frozen=True)
class Match:
    """A profile that fits, and what was compared."""

    kept: Kept
    why: tuple[str, ...]

    @property
    def profile(self) -> Profile:
        """The profile."""
        return self.kept.profile


def best(known: Sequence[Kept], model: ModelSeen, box: BoxKind, over: int = 1) -> Match | None:
    """The profile that fits best: the operator's own before those that ship, then the one that compared most, then the
    newest; None where none fits."""
    found = [match for one in known if (match := fits(one, model, box, over)) is not None]
    return max(found, key=lambda one: (one.kept.own, len(one.why), one.profile.date), default=None)


def fits(kept: Kept, model: ModelSeen, box: BoxKind, over: int = 1) -> Match | None:
    """Whether a profile fits; what it asks for and is not known of the model does not fit."""
    if kept.profile.over != over:
        return None
    reasons: list[str] = []
    for reason in (*_model(kept.profile.model, model), *_box(kept.profile.box, box)):
        if reason is None:
            return None
        reasons.append(reason)
    return Match(kept, tuple(reasons))


def _model(wanted: ModelKind, seen: ModelSeen) -> Iterable[str | None]:
    if wanted.names:
        own = seen.name.rstrip("/").rpartition("/")[2]
        named = next((name for name in wanted.names if own.lower().startswith(name.lower())), None)
        yield None if named is None else f"the model's name begins with {named}"
    if wanted.config:
        alike = all(seen.config.get(key) == value for key, value in wanted.config.items())
        values = ", ".join(f"{key} {value}" for key, value in wanted.config.items())
        yield f"its config.json has {values}" if alike else None
    if wanted.quantization is not None:
        word = wanted.quantization.lower()
        there = word in seen.quantization or (not seen.config and word in seen.name.lower())
        yield f"its quantization is {wanted.quantization}" if there else None
    if wanted.weights is not None:
        near = seen.size is not None and abs(seen.size / wanted.weights - 1) <= WEIGHTS
        yield f"its weights are {gib(seen.size or 0)}, of {gib(wanted.weights)} there" if near else None


def _box(wanted: BoxKind, seen: BoxKind) -> Iterable[str | None]:
    if wanted.gpu is None:
        alike = seen.gpu is None and wanted.machine == seen.machine
        yield f"the box has no GPU ({seen.machine})" if alike else None
    else:
        same = seen.gpu is not None and plain(seen.gpu).lower() == plain(wanted.gpu).lower()
        same = same and seen.gpus >= wanted.gpus
        yield f"the box has {'a' if wanted.gpus == 1 else wanted.gpus} {wanted.gpu}" if same else None
    near = abs(seen.memory / wanted.memory - 1) <= MEMORY
    yield f"{gib(seen.memory)} of memory, {gib(wanted.memory)} there" if near else None
