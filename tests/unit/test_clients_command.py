"""``fleetctl clients`` as people and scripts meet it, where no box is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from planned import OFFICE, layout, office
from pooled import pooled
from rich.console import Console

from fleetctl.cli.show_clients import Table, _grid, event
from fleetctl.errors import RefusedError
from fleetctl.facts.clients import Client
from fleetctl.facts.direct import Caller, Requests
from fleetctl.run import direct
from fleetctl.run.subject import Subject


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(OFFICE, sort_keys=False))
    return path


def fleetctl(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [str(Path(sys.executable).parent / "fleetctl"), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def test_a_folder_of_this_machine_is_searched_without_a_box(file: Path, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    assert fleetctl("clients", "--search", str(jobs), "-f", str(file)).returncode == 0
    (jobs / "batch.env").write_text(
        "KEY=sk-secret\nBASE_URL=http://sk-secret@10.0.0.2:8000/v1\nGOOD=http://10.0.0.1:8080\n"
    )
    ran = fleetctl("clients", "--search", str(jobs), "-f", str(file))
    assert (ran.returncode, "sk-secret" in ran.stdout + ran.stderr) == (9, False), ran
    lines = ran.stdout.splitlines()
    assert lines[0].startswith(f"{jobs}/batch.env:2: 10.0.0.2:8000 is an engine (replicas/qwen@b)")
    assert lines[-1] == "write 10.0.0.1:8080, the proxy, instead"
    ran = fleetctl("clients", "--search", str(jobs), "-f", str(file), "--json")
    events = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [(e["type"], e.get("line")) for e in events] == [("setting", 2), ("searched", None)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["5"], "SECONDS says how long to watch"),
        (["--watch", "0"], "--watch 0 is too short"),
        (["--watch", "soon"], "--watch soon is no stretch of time"),
        (["--search", "/nowhere/at/all"], "there is no such file or folder here"),
        (["--search", "spark9:/etc"], "there is no box spark9\n  boxes: a, b"),
        (["--search", "a:etc"], "is written from the root"),
        (["--watch", "--search", "/etc"], "one at a time"),
    ],
)
def test_bad_input_is_told_and_never_a_traceback(words: list[str], said: str, file: Path) -> None:
    ran = fleetctl("clients", *words, "-f", str(file))
    assert (ran.returncode, "Traceback" in ran.stderr) == (2, False), ran
    assert said in ran.stderr, ran.stderr


def test_what_is_not_known_is_shown_as_unknown_and_not_as_zero() -> None:
    process = Caller(pid=41, comm="python3", unit="batch.service", command="python3 /opt/batch.py")
    seen = [
        Client("192.0.2.7", None, None, ("replicas/qwen@b",), 1.0, 2.0, 1, 3, 297, 520, Requests(work=7, worked=2.0)),
        Client("10.0.0.1", "a", process, ("replicas/qwen@b",), 1.0, 2.0, 1, 3),
    ]
    out = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    out.print(_grid(seen))
    first, second = out.export_text().splitlines()[1:3]
    assert "297 B" in first and "520 B" in first and "7 for work" in first
    assert "python3 /opt/batch.py (pid 41, batch.service)" in second and second.count("unknown") == 2
    assert [event(client)["direct"] for client in seen] == [True, True]
    json.dumps([event(client) for client in seen])


def test_a_watch_in_a_pipe_says_what_it_watches_and_that_nobody_came(capsys: pytest.CaptureFixture[str]) -> None:
    told: Any = SimpleNamespace(live=layout("replicas"), refused={}, away={})
    Table(told).end()
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("watching replicas/qwen@a, replicas/qwen@b") and last.startswith(
        "nobody talked to an engine"
    )


def test_where_all_models_are_in_the_pool_there_is_nobody_to_find(monkeypatch: pytest.MonkeyPatch) -> None:
    release = pooled()
    live = release.model_copy(update={"engines": ()})
    monkeypatch.setattr(direct, "gather_some", lambda *_: ({"a": None}, {}))
    monkeypatch.setattr(direct, "questions", lambda _: {})
    monkeypatch.setattr(direct, "_live", lambda *_: live)
    with pytest.raises(RefusedError, match="all models of pool are in the pool"):
        direct.Direct(Subject(office(), "", cast(Any, None)))
