"""The guard beside real vLLM: a copy whose core hangs is told by its own counters, and only that is started again."""

from __future__ import annotations

from guarded import CORE, assert_kept, at, back, counts, guarded, pids, said, stop, tokens
from test_real_moves import BOXES, COPY, SPLIT, Table, ask, states, traffic_to, until
from test_real_silence import running, usable

from fleetctl.lab.lab import Lab


def test_a_core_that_hangs_is_started_again_and_the_other_copy_answers(lab: Lab, table: Table) -> None:
    with guarded(lab, "replicas"):
        until(lambda: usable(lab) == 2, lab)
        before = pids(lab, COPY)

        # With requests on it: its counters stand still.
        with traffic_to(lab) as traffic:
            until(lambda: running(lab, "box2") > 0, lab)
            hung = stop(lab, "box2", CORE)
            until(lambda: at(lab, "box2", "kill_and_restart", hung), lab)
            came = back(lab, "box2", hung)
        out = at(lab, "box2", "no counter has moved", hung)
        assert out is not None, said(lab)
        assert_kept(lab, traffic, out)
        now = pids(lab, COPY)
        assert now[0] == before[0] and now[1] != before[1], "only the copy that hangs is started again"
        assert states(lab, SPLIT) == ["inactive", "inactive"]
        figures = (f"{came - hung:.1f}", f"{out - hung:.1f}")
        table.append(("guard: a core hangs at work", *figures, "", "", "", *counts(traffic), ""))

        # With nothing to do: it says nothing of itself, so it is asked.
        asked = [tokens(lab, box) for box in BOXES]
        until(lambda: all(tokens(lab, box) > before for box, before in zip(BOXES, asked, strict=True)), lab)
        assert pids(lab, COPY) == now, said(lab)
        hung = stop(lab, "box1", CORE)
        until(lambda: at(lab, "box1", "kill_and_restart", hung), lab)
        assert "no answer to a completion within 5 s" in said(lab)
        assert ask(lab, tokens=4).status_code == 200
        out = at(lab, "box1", "out of the proxy", hung)
        assert out is not None and pids(lab, COPY)[1] == now[1]
        table.append(("guard: an idle core hangs", "", f"{out - hung:.1f}", *[""] * 6))
