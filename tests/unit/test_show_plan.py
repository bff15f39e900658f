"""A plan as people read it."""

from __future__ import annotations

import io

from planned import BEFORE, boxes_in, layout, plan
from rich.console import Console

from fleetctl.cli.show_plan import show_plan


def shown(*, diffs: bool) -> str:
    out = Console(file=io.StringIO(), width=200)
    show_plan(plan(BEFORE, layout("replicas"), boxes_in(BEFORE, None), generation=1), out, diffs=diffs)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_many_files_of_one_folder_are_told_together_and_one_by_one_with_their_differences() -> None:
    short, long = shown(diffs=False), shown(diffs=True)
    assert "a:/etc/fleetctl/proxy/ (" in short and "a:/etc/fleetctl/proxy/haproxy.cfg" not in short
    assert "a:/etc/fleetctl/proxy/haproxy.cfg" in long and "/proxy/ (" not in long
    assert "b:/etc/systemd/system/fleetctl-replicas-qwen.service" in short
