"""The guard beside a split of real vLLM: a rank that hangs, where nothing has ended that ``rank.py`` could see."""

from __future__ import annotations

import time

from guarded import assert_kept, at, counts, guarded, said, stop
from test_real_moves import SPLIT, Table, answers, assert_serves, epoch, states, traffic_to, until
from test_real_silence import running

from fleetctl.lab.lab import Lab


def test_a_follower_that_hangs_has_both_sides_of_the_split_started_again(lab: Lab, table: Table) -> None:
    with guarded(lab, "split"):
        until(lambda: answers(lab), lab)
        before = epoch(lab)
        with traffic_to(lab) as traffic:
            until(lambda: running(lab, "box1") > 0, lab)
            hung = stop(lab, "box2", "VLLM::Worker")
            until(lambda: at(lab, "box1", "kill_and_restart", hung), lab)
            until(lambda: at(lab, "box1", "back in the proxy", hung), lab)
            came = time.time()
        assert states(lab, SPLIT) == ["active", "active"]
        assert epoch(lab) != before, "both ranks are new"
        out = at(lab, "box1", "no counter has moved", hung)
        assert out is not None, said(lab)
        assert_kept(lab, traffic, out)
        assert at(lab, "box2", "kill_and_restart", hung) is None, "the guard of the head does it"
        assert_serves(lab, "split")
        figures = (f"{came - hung:.1f}", f"{out - hung:.1f}")
        table.append(("guard: a follower hangs", *figures, "", "", "", *counts(traffic), ""))
