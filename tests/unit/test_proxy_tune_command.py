"""``fleetctl proxy tune`` as people and scripts meet it, and what it makes of what boxes tell."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
from planned import layout, office
from rich.console import Console

from fleetctl.cli.show_tune import difference, show_tune
from fleetctl.errors import BoxError, RefusedError
from fleetctl.onbox import journal, kept
from fleetctl.onbox.journalctl import LONGEST_LINE, _read
from fleetctl.onbox.main import Call
from fleetctl.onbox.proxyfigures import proxy_figures
from fleetctl.proxy.tune.figures import BoxTold
from fleetctl.proxy.tune.tune import tune
from fleetctl.remote.boxes import Boxes
from fleetctl.remote.connection import BoxConnection
from fleetctl.run.planning import Subject
from fleetctl.run.tuning import Gathered, gather_figures

ROOT = Path(__file__).resolve().parents[2]
TIMES = {"buckets": [[20, 299], [90, 1]], "longest": 90}
TOLD: dict[str, Any] = {
    "layout": "replicas",
    "generation": 3,
    "layout_engines": [
        {"id": f"replicas/qwen@{box}", "backend": "qwen", "context": 262144, "concurrency": 12} for box in "ab"
    ],
    "settings": {"hold": 1200.0, "drain": 60.0, "port": 8080},
    "proxy": None,
    "engines": {},
    "moves": [],
}
PROXY = {
    "log": {
        "lines": 310,
        "damaged": 2,
        "oldest": 1796034630.0,
        "newest": 1796034652.0,
        "backends": {
            "qwen": {
                **dict.fromkeys(("run", "first_byte", "queue", "connect", "idle"), TIMES),
                "counts": {"requests": 300},
            }
        },
        "complete": False,
        "why": "there was no time for all of it",
    },
    "checks": {"took": {"buckets": [[3, 9]], "longest": 3}, "checked": 2},
}
MOVES = [
    {"gap": 50.0, "loads": {"replicas/qwen@a": 43.0, "gone/qwen": 999.0}, "stops": {"a/x.service": 2.0}},
    {"gap": None, "loads": None, "stops": None},
]


class Box:
    """A box that tells what it is given."""

    def __init__(self, name: str, told: object) -> None:
        self.name = name
        self.told = told
        self.asked: dict[str, Any] = {}

    def call(self, op: str, **args: Any) -> object:
        self.asked = {"op": op, **args}
        return json.loads(json.dumps(self.told))


def gathered(a: object, b: object, **more: Any) -> Gathered:
    boxes = {"a": cast(BoxConnection, Box("a", a)), "b": cast(BoxConnection, Box("b", b))}
    return gather_figures(Subject(office(), "", Boxes(boxes), **more), 3600.0)


def test_what_boxes_tell_is_brought_together_with_what_is_to_be_known() -> None:
    found = gathered({**TOLD, "proxy": PROXY, "moves": MOVES}, {**TOLD, "engines": {"replicas/qwen@b": {}}})
    assert found.layout == "replicas"
    assert found.measured.loads == {"replicas/qwen@a": (43.0,)}
    assert (found.measured.stops, found.measured.copies) == ((2.0,), {"qwen": 2})
    assert found.measured.log.requests == 300
    assert list(found.notes) == [
        "a: the proxy's log was not read as a whole: there was no time for all of it",
        "a: 2 lines of the log are damaged and do not count",
        "no figures of its own from replicas/qwen@a: how long first tokens take is not known there",
        "drain: the proxy does not run with what the file says; `fleetctl apply` sees to it",
    ]


def test_the_logs_of_several_proxies_count_together() -> None:
    """A floating address goes from one to the other, and with it the requests."""
    second = json.loads(json.dumps(PROXY))
    second["log"] |= {"lines": 9, "oldest": 1796034600.0, "complete": True}
    second["log"]["backends"]["qwen"] |= {"run": {"buckets": [[20, 1], [400, 2]], "longest": 390}, "ends": {"CQ": 1}}
    second["checks"] |= {"took": {"buckets": [[8, 2]], "longest": 8}, "failed": 3, "qmax": {"qwen": 5}}
    found = gathered({**TOLD, "proxy": PROXY}, {**TOLD, "proxy": second}).measured
    there = found.log.backends["qwen"]
    assert (found.log.requests, found.log.lines, found.log.oldest) == (600, 319, 1796034600.0)
    assert (there.run.buckets, there.run.longest_s) == (((20, 300), (90, 1), (400, 2)), 0.39)
    assert (there.ends, found.log.complete) == ({"CQ": 1}, False)
    assert found.checks is not None
    assert (found.checks.took.count, found.checks.checked, found.checks.failed, found.checks.qmax) == (
        *(11, 2, 3),
        {"qwen": 5},
    )


def test_a_proxy_that_does_not_run_or_has_no_log_is_told() -> None:
    proxy = {"log": {"lines": 0, "complete": True}, "checks": None}
    notes = gathered({**TOLD, "proxy": proxy, "settings": {}}, TOLD).notes
    assert notes[0] == "a: the proxy does not run, so nothing is known of its health checks"
    assert "the proxy's log has nothing in this time" in notes[1]


def test_without_a_live_layout_there_is_nothing_to_tell() -> None:
    with pytest.raises(RefusedError, match="no layout of fleetctl is live on a, b"):
        gathered({**TOLD, "layout": None}, {**TOLD, "layout": None})
    away = BoxError("c", "no route")
    with pytest.raises(BoxError, match="no route"):
        gathered(TOLD, TOLD, unreachable={"c": away})
    with pytest.raises(BoxError, match="another version"):
        gathered({**TOLD, "proxy": {"log": {"lines": "many"}}}, TOLD)


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal(width: int) -> None:
    found = gathered({**TOLD, "proxy": PROXY, "moves": MOVES}, TOLD)
    out = io.StringIO()
    show_tune(found, tune(found.measured), 7 * 86400, Console(file=out, width=width, highlight=False))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("layout replicas: in the last 7 days 300 requests (the log begins 2026-")
    assert any(line.startswith("timeout_connect") and " 500ms " in line for line in lines), lines
    assert "\N{HORIZONTAL ELLIPSIS}" not in out.getvalue()


def test_a_difference_is_one_of_lines_whatever_their_ends() -> None:
    told = difference("f", "a\r\nb\r\nc", "a\r\nB\r\nc")
    assert told.splitlines()[2:] == ["@@ -1,3 +1,3 @@", " a", "-b", "+B", " c"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-f", "missing.yaml"], "there is no such file"),
        (["--since", "week"], "write like 7d, 12h or 90m"),
        (["--since", "0d"], "nothing to look at"),
        (["--since", "-1d"], "write like 7d"),
    ],
)
def test_wrong_words_are_status_2(words: list[str], said: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", "from fleetctl.cli.main import main; main()", "proxy", "tune", *words]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=120, check=False)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr


# On the box


@pytest.fixture
def kept_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder in which a box keeps what fleetctl keeps there."""
    monkeypatch.setattr(kept, "GENERATIONS", str(tmp_path / "generations"))
    monkeypatch.setattr(kept, "CURRENT", str(tmp_path / "current"))
    monkeypatch.setattr(journal, "MOVES", str(tmp_path / "moves"))
    return tmp_path


def told_by(box: str) -> dict[str, Any]:
    told: dict[str, Any] = proxy_figures(Call(1, lambda message: None), box, 60.0, 10.0)
    return told


def test_a_box_without_fleetctl_tells_nothing(kept_at: Path) -> None:
    found = gathered_from(told_by("a"))
    assert (found.layout, found.proxy, found.engines, found.moves) == (None, None, {}, ())


def test_a_box_with_an_engine_and_a_proxy_that_do_not_run_tells_the_rest(kept_at: Path) -> None:
    release = layout("replicas").model_copy(update={"files": {}})
    loopback = [engine.model_copy(update={"address": "127.0.0.1", "port": 9}) for engine in release.engines]
    folder = kept_at / "generations" / "1"
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text('{"paths": []}')
    (folder / "release.json").write_text(release.model_copy(update={"engines": tuple(loopback)}).model_dump_json())
    (kept_at / "current").symlink_to("generations/1")
    move = kept_at / "moves" / "m"
    move.mkdir(parents=True)
    (move / "meta.json").write_text("{}")
    (move / "journal.jsonl").write_text('{"type": "end", "gap": 1.5, "loads": {"replicas/qwen@a": 4.5}, "stops": {}}\n')
    found = gathered_from(told_by("a"))
    assert (found.layout, found.generation, [*found.engines]) == ("replicas", 1, ["replicas/qwen@a"])
    assert found.proxy is not None and found.proxy.checks is None and [*found.proxy.log.backends] == ["qwen"]
    assert (found.settings["hold"], found.settings["retries"], found.moves[0].gap) == (1200.0, 3, 1.5)
    assert gathered_from(told_by("b")).proxy is None


def gathered_from(told: object) -> BoxTold:
    return BoxTold.model_validate(json.loads(json.dumps(told)))


# Reading the journal


def read(script: str, *, most: int = 100_000, limit: float = 60.0) -> tuple[str | None, list[bytes]]:
    """What is read of the output of a program in place of journalctl, and why not all of it."""
    lines: list[bytes] = []
    argv = [sys.executable, "-c", script]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        why = _read(Call(1, lambda message: None), process, lines.append, most, time.monotonic() + limit)
        process.kill()
    return why, lines


def test_a_journal_is_read_line_by_line_and_one_without_end_is_left() -> None:
    assert read("print('x\\n' * 9 + 'y', end='')") == (None, [b"x"] * 9 + [b"y"])
    why, lines = read("while True: print('x' * 99)", most=5000)
    assert (why, len(lines)) == ("only the newest 5000 lines were read", 5000)
    why, lines = read("import time; print('x', flush=True); time.sleep(600)", limit=1.0)
    assert why == "there was no time for all of it"
    why, lines = read("print('x' * 10**6); print('y')")
    assert why is None and lines[-1] == b"y" and max(map(len, lines)) <= LONGEST_LINE + (1 << 18)


def test_what_journalctl_complains_about_is_told() -> None:
    assert read("import sys; sys.exit('No journal files were found.')")[0] == "journalctl: No journal files were found."
    assert read("raise SystemExit(3)")[0] == "journalctl: status 3"
