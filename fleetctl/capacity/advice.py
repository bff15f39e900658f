"""Which division over boxes to take: a copy per box where model and cache fit one box, a split only where not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from fleetctl.capacity.estimate import Estimate


class Verdict(Enum):
    COPY = "copy"
    """A copy on each box, behind the proxy."""
    SPLIT = "split"
    """One engine over several boxes."""
    NONE = "none"
    """None of the divisions that were looked at holds it."""


@dataclass(frozen=True)
class Advice:
    """What to do, and why."""

    verdict: Verdict
    boxes: int
    """Boxes of one engine; 0 for NONE."""
    text: str
    sure: bool
    """Whether it holds for the most overhead that is likely too."""


def advise(estimates: Sequence[Estimate], requests: float = 1) -> Advice:
    """The division with the fewest boxes that starts and holds ``requests`` of full context.

    A divided model gives way to copies: those serve more, and one can be restarted while the other works.
    """
    wanted = f"{requests:g} request{'' if requests == 1 else 's'} of full context"
    fitting = [one for one in estimates if one.outcome.starts and one.outcome.requests >= requests]
    if not fitting:
        most = max(estimates, key=lambda one: one.outcome.requests, default=None)
        held = f"the most is {most.outcome.requests:.2f} on {_boxes(most.boxes)}" if most else "nothing was looked at"
        text = f"no division here holds {wanted}: {held}. Raise --share, shorten --context, use --kv fp8 or more boxes."
        if any(not one.exact and (one.high is None or one.high.requests >= requests) for one in estimates):
            text += " It may hold it all the same: not all of its caches are known. Start it once, and use --log."
        return Advice(Verdict.NONE, 0, text, sure=False)
    best = min(fitting, key=lambda one: (one.boxes, one.launch.pp))
    sure = best.low.starts and best.low.requests >= requests
    doubt = "" if sure else " It is close: with the most overhead that is likely it does not. Calibrate with --log."
    if best.boxes == 1:
        text = f"a copy on each box: model and {wanted} fit one box.{doubt}"
        return Advice(Verdict.COPY, 1, text, sure)
    smaller = max((one for one in estimates if one.boxes < best.boxes), key=lambda one: one.boxes, default=None)
    why = _short(smaller, requests) if smaller else "fewer boxes were not looked at"
    text = f"split over {_boxes(best.boxes)} (tp {best.launch.tp}, pp {best.launch.pp}): {why}.{doubt}"
    return Advice(Verdict.SPLIT, best.boxes, text, sure)


def _boxes(count: int) -> str:
    return f"{count} box" if count == 1 else f"{count} boxes"


def _short(one: Estimate, requests: float) -> str:
    """What a division lacks."""
    verb = "has" if one.boxes == 1 else "have"
    if one.outcome.available <= 0:
        return f"{_boxes(one.boxes)} {verb} no room for the model and a cache"
    held, wanted = f"{one.outcome.requests:.2f}", f"{requests:g}"
    return f"{_boxes(one.boxes)} {verb} room for {held} of the {wanted} requests of full context"
