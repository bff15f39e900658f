"""What two families see is told once, by the one that knows more; what is not the same is told by both."""

from __future__ import annotations

import pytest

from fleetctl.doctor.families import kinds
from fleetctl.doctor.finding import Finding
from fleetctl.doctor.once import COVERED, once
from fleetctl.doctor.proxy.settings import CONFIG, LENGTHENS
from fleetctl.doctor.units.kinds import DRIFT

UNIT = "fleetctl-split-qwen.service"


def finding(code: str, box: str = "a", where: str = UNIT, says: str = "it is so") -> Finding:
    return kinds()[code].found(box, where, says, fix="do it")


TAKEN = finding("E06", says="port 29500, where the ranks meet, is taken on a")


@pytest.mark.parametrize(
    ("one", "other", "left"),
    [
        # "EADDRINUSE in the log, and a process that listens there"
        (TAKEN, finding("P04", where="port 29500"), ["P04"]),
        (TAKEN, finding("P04", where="port 2950"), ["E06", "P04"]),
        (TAKEN, finding("P04", box="b", where="port 29500"), ["E06", "P04"]),
        # "Found ulimit of 1024 and failed to automatically increase, with a drop-in that lowers it"
        (finding("E14"), finding("B05"), ["B05"]),
        (finding("E14"), finding("B05", where="fleetctl-split-tiny.service"), ["E14", "B05"]),
        # "No available shared memory broadcast block, with requests that wait"
        (finding("E08"), finding("E04"), ["E04"]),
        (finding("E08"), finding("E04", box="b"), ["E08", "E04"]),
        (finding("U04"), finding("U03"), ["U04", "U03"]),
    ],
)
def test_what_two_families_see_is_told_once(one: Finding, other: Finding, left: list[str]) -> None:
    assert [f.code for f in once([one, other])] == left
    assert [f.code for f in once([other, one])] == left[::-1]
    assert once([one]) == [one]


def test_what_covers_something_is_covered_by_nothing() -> None:
    assert set(COVERED) | set(COVERED.values()) <= set(kinds())
    assert not set(COVERED) & set(COVERED.values())


def test_an_edited_file_whose_harm_is_told_line_by_line_is_not_told_again_as_edited() -> None:
    def edited(box: str, path: str) -> Finding:
        return DRIFT.found(box, path, "it was edited", fix="fleetctl apply")

    harm = LENGTHENS.found("a", f"{CONFIG}:93", "retries go to the same dead server", fix="fleetctl apply")
    of_the_file = LENGTHENS.found(None, "proxy: retries", "0", fix="take it out")
    others = [edited("b", CONFIG), edited("a", "/etc/fleetctl/bin/ready.py"), of_the_file]
    assert once([edited("a", CONFIG), harm, *others]) == [harm, *others]
    assert once([edited("a", CONFIG), *others]) == [edited("a", CONFIG), *others]
