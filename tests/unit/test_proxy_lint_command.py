"""``fleetctl proxy lint`` as people and scripts meet it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = Path(__file__).parent / "lint"


def fleetctl(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    program = [sys.executable, "-c", "from fleetctl.cli.main import main; main()", *words]
    return subprocess.run(program, input=stdin, capture_output=True, cwd=ROOT, timeout=120, check=False)


def test_findings_are_told_with_file_and_line_and_exit_9() -> None:
    file = str(SAMPLES / "office-nginx.conf")
    done = fleetctl("proxy", "lint", file)
    assert done.returncode == 9, done.stderr
    told = done.stdout.decode()
    assert f"{file}:26: warning N01" in told
    assert "after 3 failures the server gets nothing for 30 s although it is back" in told
    assert told.rstrip().splitlines()[-1].startswith(f"{file} (nginx): ")


def test_json_is_one_event_a_line() -> None:
    done = fleetctl("proxy", "lint", "--json", str(SAMPLES / "office-haproxy.cfg"))
    assert done.returncode == 9, done.stderr
    *findings, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert {event["type"] for event in findings} == {"finding"}
    keys = {"code", "severity", "file", "line", "also", "where", "setting", "outage", "write", "why", "source", "title"}
    assert all(set(event) - {"type"} == keys for event in findings)
    assert summary["type"] == "summary"
    assert summary["program"] == "haproxy"
    assert summary["error"] == sum(event["severity"] == "error" for event in findings)


def test_standard_input_and_notes_only_are_status_0() -> None:
    done = fleetctl("proxy", "lint", "-", stdin=(SAMPLES / "good-nginx.conf").read_bytes())
    assert done.returncode == 0, done.stdout + done.stderr
    assert b"standard input (nginx): 0 errors, 0 warnings, 1 note" in done.stdout


def test_what_render_writes_lints_clean(tmp_path: Path) -> None:
    rendered = fleetctl("render", "-f", str(ROOT / "templates" / "example.yaml"), "--out", str(tmp_path))
    assert rendered.returncode == 0, rendered.stderr
    files = sorted(tmp_path.rglob("haproxy.cfg"))
    assert files
    for file in files:
        done = fleetctl("proxy", "lint", "--json", str(file))
        assert done.returncode == 0, done.stdout
        assert [json.loads(line)["type"] for line in done.stdout.splitlines()] == ["summary"]


@pytest.mark.parametrize(
    ("content", "words", "said"),
    [
        (None, [], "cannot read"),
        (b"hello\n", [], "neither an HAProxy nor an nginx"),
        (b"\x7fELF\0\0", [], "is not text"),
        (b"http {\n", [], "never closed"),
        (b"hello\n", ["--kind", "haproxy"], "no section"),
        (b"backend e\n    server a b:80\n", ["--kind", "nginx"], "not ended by a ;"),
        (b"", ["--kind", "nginx"], "no directive"),
    ],
)
def test_a_file_that_is_neither_is_status_2(content: bytes | None, words: list[str], said: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    done = fleetctl("proxy", "lint", str(file), *words)
    assert done.returncode == 2
    assert said in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_a_folder_is_status_2(tmp_path: Path) -> None:
    assert fleetctl("proxy", "lint", str(tmp_path)).returncode == 2
