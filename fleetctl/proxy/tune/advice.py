"""What is said about one setting, and how values are chosen: round ones, and no change without a reason."""

from __future__ import annotations

from dataclasses import dataclass

from fleetctl.spec.units import parse_duration
from fleetctl.spec.units import seconds as spoken

_STEPS = (
    *("50ms", "100ms", "150ms", "200ms", "250ms", "300ms", "400ms", "500ms", "600ms", "750ms"),
    *("1s", "1500ms", "2s", "3s", "4s", "5s", "7s", "10s", "15s", "20s", "30s", "45s"),
    *("1m", "90s", "2m", "3m", "4m", "5m", "7m", "10m", "15m", "20m", "30m", "45m"),
    *("1h", "90m", "2h", "3h", "4h", "6h", "8h", "12h", "24h"),
)
STEPS = tuple((parse_duration(step), step) for step in _STEPS)
"""The durations that are advised: seconds, and how they are written."""


@dataclass(frozen=True)
class Advice:
    """One setting: what it is, what it should be and why, and what that does in an outage.

    ``now`` and ``advised`` are written as in fleet.yaml; ``advised`` None: too little is known, ``missing`` says of
    what. ``samples`` is how many measurements it rests on.
    """

    setting: str
    now: str
    advised: str | None
    why: str
    outage: str
    samples: int
    missing: str | None = None

    @property
    def changes(self) -> bool:
        """Something else than now is advised."""
        return self.advised is not None and self.advised != self.now


def written(seconds: float) -> str:
    """A duration as people write it in fleet.yaml: ``500ms``, ``90s``, ``20m``, ``1h``."""
    for steps, step in STEPS:
        if seconds == steps:
            return step
    for unit, length in (("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    milliseconds = round(seconds * 1000, 6)
    return f"{milliseconds:.0f}ms" if milliseconds.is_integer() and seconds < 10 else f"{seconds:.10g}s"


def said(seconds: float) -> str:
    """A duration as a person says it in a sentence, short ones in milliseconds."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else spoken(seconds)


def rounded_up(seconds: float) -> float:
    """The next duration that people write."""
    return next((step for step, _ in STEPS if step >= seconds), seconds)


def fitted(now: float, least: float, target: float, most: float) -> float:
    """The setting of now while it is within bounds, else the round value that fits best: what is advised, stays.

    The next above the target, if that is within bounds; then the nearest below ``most``.
    """
    if least <= now <= most:
        return now
    above = rounded_up(max(target, least))
    if above <= most:
        return above
    below = [seconds for seconds, _ in STEPS if least <= seconds <= most]
    return below[-1] if below else most
