"""The commands behind the keys, as they would be typed. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from fleetctl.watch.sample import Copy, Counts, Figures, Sample


@dataclass(frozen=True)
class Command:
    """A fleetctl command. ``says`` tells in a sentence what it does; ``changes``: it has to be asked for first."""

    words: tuple[str, ...]
    says: str
    changes: bool = True

    def __str__(self) -> str:
        return shlex.join(("fleetctl", *self.words))


def chosen_from(sample: Sample) -> list[Copy]:
    """What can be chosen, from top to bottom: copies, and engines of a pool in their form."""
    pooled = sample.pool.engines if sample.pool is not None else ()
    return [*sample.copies, *(Copy(e.id, e.model, (e.box,), "UP", "active", Figures(), Counts()) for e in pooled)]


def alone(copy: Copy, sample: Sample) -> bool:
    """Nothing else of the layout serves its model: a split, or an only copy."""
    return not any(one.model == copy.model and one.id != copy.id for one in chosen_from(sample))


def command_of(key: str, copy: Copy, options: tuple[str, ...]) -> Command:
    """The command of a key for the selected copy. ``options`` say which fleet (``--fleet`` and so on)."""
    box = copy.boxes[0]
    all_boxes = f"{box} (of {', '.join(copy.boxes)})" if len(copy.boxes) > 1 else box
    if key == "drain":
        says = f"Takes {all_boxes} out of the proxy, and of a pool; running requests finish."
        return Command(("drain", box, "--yes", *options), says)
    if key == "undrain":
        return Command(("undrain", box, "--yes", *options), f"Proves the engines of {all_boxes} and puts them back.")
    if key == "restart":
        says = f"Starts every engine on {all_boxes} anew, each drained before and proved after."
        return Command(("restart", box, "--yes", *options), says)
    return Command(("logs", copy.id, "-f", *options), f"The log of {copy.id}, as it is written.", changes=False)
