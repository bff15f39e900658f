"""What `status` says of fleet.yaml, of a move that was cut off, of what is unknown; how its lines fit a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from planned import GIB, box_in, boxes_in, layout, office
from rich.console import Console
from rich.text import Text

from fleetctl.cli.output import hang
from fleetctl.cli.show_status import show_status
from fleetctl.facts.assess import assess
from fleetctl.facts.guards import GuardFacts, told
from fleetctl.remote.boxes import Boxes
from fleetctl.remote.errors import ConnectionLost
from fleetctl.render.layout import render_layout
from fleetctl.run.overview import Memory, Overview, file_notes
from fleetctl.run.subject import Subject
from fleetctl.spec.units import size
from fleetctl.watch.sample import Copy, Counts, Figures, ProxySample, Sample

CUT = {"move": "m", "end": None, "operation": "cutover", "from_layout": "split", "to_layout": "replicas"}
CUT |= {"who": "ann@desk", "started": 1.0}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"models__qwen__weights_size": "70GiB"}, ""),
        ({"layouts__other": {"qwen": {"copies": ["a"]}}}, "would change what is live"),
        ({"models__qwen__arguments": ["--max-num-batched-tokens", "8192"]}, "`fleetctl apply` does it"),
        ({"proxy__hold": "3m"}, "would change what is live"),
        ({"layouts": {"split": {"qwen": {"split": ["a", "b"]}}}}, "has no layout replicas any more"),
        ({"boxes__a__reserve": "120GiB"}, "cannot be brought to the boxes"),
    ],
)
def test_a_file_that_would_change_what_is_live_is_told_and_one_that_would_not_is_not(
    changes: dict[str, Any], said: str
) -> None:
    live = render_layout(office(), "replicas", spec_text="as it was")
    notes = file_notes(Subject(office(**changes), "edited", Boxes({})), boxes_in(live))
    assert (said in notes[0]) if said else notes == []


def test_a_file_whose_text_is_that_of_the_boxes_is_not_rendered_again() -> None:
    live = render_layout(office(), "replicas", spec_text="as it was")
    other = office(proxy__hold="3m")  # would change something: but the text is the same, so nobody looks
    assert file_notes(Subject(other, "as it was", Boxes({})), boxes_in(live)) == []


def test_what_follows_from_a_move_that_was_cut_off_is_no_problem_of_its_own() -> None:
    release = layout("replicas")
    broken = box_in(layout("split"), "b", 1).model_copy(update={"release": release})
    observed = {"a": box_in(release, "a", 1, moves=[CUT]), "b": broken}
    found = assess(observed, "a", "office")
    assert found.unfinished is not None and not found.healthy()
    assert found.problems == [] and found.consequences
    told = shown(Overview(found))
    assert "cut off: cutover split → replicas by ann@desk" in told
    assert f"{len(found.consequences)} things are not as the layout wants until then" in told
    assert all(line in shown(Overview(found), every=True) for line in found.consequences)


def shown(seen: Overview, *, every: bool = False) -> str:
    out = Console(file=io.StringIO(), width=200, highlight=False)
    show_status(seen, out, every=every)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_a_copy_that_cannot_be_read_and_a_box_that_is_off_are_unknown_and_never_zero() -> None:
    release = layout("replicas")
    observed = {"a": box_in(release, "a", 1)}
    found = assess(observed, "a", "office", {"b": ConnectionLost("b", "no answer from 10.0.0.2 port 22")})
    copies = (
        Copy("replicas/qwen@a", "qwen", ("a",), "UP", "active", Figures(2, 1, generation_rate=41.2), Counts()),
        Copy("replicas/qwen@b", "qwen", ("b",), "DOWN", "unknown", Figures(), Counts(), why="b: no answer"),
    )
    sample = Sample(
        0.0, "office", "replicas", 1, copies, Figures(2, 1, generation_rate=41.2), proxy=ProxySample(3, 2, 1.0)
    )
    lines = shown(Overview(found, {"a": Memory(128 * GIB, 20 * GIB, 96 * GIB, 500 << 20)}, sample)).splitlines()
    row = {line.split()[0]: line.split()[1:] for line in lines if line.startswith(("replicas", "total", "a ", "b "))}
    assert row["replicas/qwen@a"][2:5] == ["2", "1", "41"]
    assert row["replicas/qwen@b"] == ["unknown", "up", "?", "?", "?", "?"]
    assert row["total,"][:2] == ["1", "unknown"]
    assert " ".join(row["a"]) == "128.0 GiB 96.0 GiB 20.0 GiB 500 MiB"
    assert row["b"] == ["?"] * 4
    assert "proxy: 2 requests on engines, 3 wait in its queue" in "\n".join(lines)
    assert "\n".join(lines).count("b cannot be reached: no answer from 10.0.0.2 port 22") == 1


def test_a_line_too_long_for_a_terminal_goes_on_below_its_text() -> None:
    out = Console(file=io.StringIO(), width=30, force_terminal=True, color_system=None)
    hang(out, "[red]wrong[/]: box2: this unit would not start", 7)
    hang(out, Text("note: short"), 6)
    assert isinstance(out.file, io.StringIO)
    lines = out.file.getvalue().splitlines()
    assert lines == ["wrong: box2: this unit would", "       not start", "note: short"]


def test_a_line_in_a_pipe_stays_one_line() -> None:
    out = Console(file=io.StringIO(), width=30, soft_wrap=True)
    hang(out, "wrong: box2: this unit would not start after a reboot", 7)
    assert isinstance(out.file, io.StringIO)
    assert out.file.getvalue().splitlines() == ["wrong: box2: this unit would not start after a reboot"]


def test_a_guard_that_acts_below_128_mib_says_so() -> None:
    status = {"since": 0, "act": "restart", "total": GIB, "available": 3 * GIB, "lowest": 2 * GIB}
    unit = {"load": "loaded", "active": "active"}
    facts = GuardFacts.model_validate({"unit": unit, "status": {**status, "marks": [128 << 20, 256 << 20]}})
    assert "3.0 GiB available, lowest 2.0 GiB, acts below 128 MiB" in told(facts)
    assert (size(0), size(GIB - 1), size(GIB)) == ("0 MiB", "1024 MiB", "1.0 GiB")
