"""Clocks: how far they are apart, and whether anything keeps them right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fleetctl.doctor.box.told import BoxTold
from fleetctl.doctor.finding import Finding, Kind, Severity
from fleetctl.doctor.scene import Scene

BETWEEN = 2.0
"""Seconds between two boxes that are too many: logs of several boxes are read in the order of their times."""
OPERATOR = 30.0
"""Seconds between the boxes and the operator's machine."""

SKEW = Kind(
    "B01",
    Severity.WARNING,
    "clocks differ",
    "clocks of two boxes that are more than two seconds apart, by more than the way to them can explain; of all boxes "
    "and the operator's machine more than thirty (a note)",
    "Logs, journals of moves and the guard's notes of several boxes are put in order by their times, certificates "
    "and keys are valid by them, and a worker of a pool drops what is late by the gateway's clock.",
    "chrony or systemd-timesyncd on every box",
    "the time that each box told, held against when it was asked and answered",
)
UNSYNCED = Kind(
    "B02",
    Severity.WARNING,
    "nothing keeps the clock right",
    "a box whose clock is not synchronised, as timedatectl says (NTPSynchronized=no)",
    "It drifts by seconds a day, and after a dead battery it begins in another year.",
    "timedatectl set-ntp true, or chrony",
    "timedatectl(1)",
)
KINDS = (SKEW, UNSYNCED)


@dataclass(frozen=True)
class Offset:
    """How much later a box's clock is than the operator's, in seconds, give or take ``doubt``."""

    by: float
    doubt: float


def offset_of(told: BoxTold) -> Offset | None:
    """As NTP reckons it, from the two times on either side; None where one of them is not known."""
    if not (told.asked_at and told.answered_at and told.began and told.ended):
        return None
    way = (told.answered_at - told.asked_at) - (told.ended - told.began)
    by = ((told.began - told.asked_at) + (told.ended - told.answered_at)) / 2
    return Offset(by, abs(way) / 2)


def find(scene: Scene, seen: Mapping[str, BoxTold]) -> Iterator[Finding]:
    """Findings of all boxes."""
    known = {box: offset for box, told in seen.items() if (offset := offset_of(told)) is not None}
    yield from _between(known)
    yield from _operator(known)
    for box, told in seen.items():
        rows = dict(line.split("=", 1) for line in (told.timedatectl or "").splitlines() if "=" in line)
        if rows.get("NTPSynchronized") == "no" and not told.container:
            can = rows.get("CanNTP") != "no"
            yield UNSYNCED.found(
                box,
                "timedatectl",
                f"the clock of {box} is not synchronised" + (", and NTP is off" if rows.get("NTP") == "no" else ""),
                *(f"{key}={rows[key]}" for key in ("CanNTP", "NTP", "NTPSynchronized") if key in rows),
                fix=f"on {box}: "
                + ("timedatectl set-ntp true" if can else "apt-get install systemd-timesyncd")
                + "; `timedatectl timesync-status` or `chronyc tracking` says whether it reaches a server",
            )


def _between(known: Mapping[str, Offset]) -> Iterator[Finding]:
    """The boxes of which the clock is not that of most; of two, the one that is further from the operator's."""
    if len(known) < 2:
        return
    order = sorted(known, key=lambda box: known[box].by)
    base = order[len(order) // 2] if len(order) > 2 else min(order, key=lambda box: abs(known[box].by))
    middle = known[base].by
    for box, offset in known.items():
        apart, doubt = offset.by - middle, offset.doubt + known[base].doubt
        if box != base and abs(apart) > BETWEEN + doubt:
            yield SKEW.found(
                box,
                "clock",
                f"the clock of {box} is {abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} that of {base}",
                *(f"{name}: {one.by:+.1f} s from here, give or take {one.doubt:.1f} s" for name, one in known.items()),
                fix=f"on {box} and {base}: timedatectl set-ntp true; timedatectl says which of them is right",
            )


def _operator(known: Mapping[str, Offset]) -> Iterator[Finding]:
    """All boxes agree with each other, and not with this machine."""
    if known and all(abs(offset.by) > OPERATOR + offset.doubt for offset in known.values()):
        first = next(iter(known.values())).by
        if max(offset.by for offset in known.values()) - min(offset.by for offset in known.values()) > BETWEEN + sum(
            offset.doubt for offset in known.values()
        ):
            return
        yield SKEW.found(
            None,
            "clock",
            f"the boxes' clocks are {abs(first):.0f} s {'ahead of' if first > 0 else 'behind'} this machine's",
            *(f"{name}: {one.by:+.1f} s from here, give or take {one.doubt:.1f} s" for name, one in known.items()),
            fix="on this machine: timedatectl set-ntp true, or set its clock",
            severity=Severity.NOTE,
        )
