"""The program on a box, as the launcher starts it: source on standard input, then JSON lines."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetctl.remote import program


class Program:
    """The program at the end of two pipes."""

    def __init__(self, python: str = sys.executable) -> None:
        argv = [python, "-IBS", "-X", "utf8", "-c", program._BOOTSTRAP, "nonce"]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.stdin.write(program.bundle())
        self.stdin.flush()
        assert self.stdout.readline() == b"\n"
        assert self.stdout.readline().startswith(b"ecnon 3 ")

    def send(self, **message: Any) -> None:
        self.stdin.write(json.dumps(message).encode() + b"\n")
        self.stdin.flush()

    def line(self) -> dict[str, Any]:
        line = self.stdout.readline()
        assert line, self.process.stderr.read() if self.process.stderr else ""
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, number: int, op: str, **args: Any) -> dict[str, Any]:
        self.send(id=number, op=op, args=args)
        return self.line()


@pytest.fixture
def box() -> Iterator[Program]:
    running = Program()
    yield running
    running.process.kill()
    running.process.wait(10)


def test_an_op_is_answered_under_its_number(box: Program) -> None:
    assert box.ask(7, "ping") == {"id": 7, "result": {}}
    assert box.ask(8, "run", argv=["echo", "ü"])["result"]["out"] == "ü\n"


def test_every_op_of_the_folder_is_found_and_its_module_loads(box: Program) -> None:
    assert {"ping", "run", "write", "read", "digest", "remove"} <= set(program.ops())
    for number, name in enumerate(program.ops()):
        error = box.ask(number, name, no_such_argument=1)["error"]
        assert "no_such_argument" in error["message"], name


def test_an_expected_failure_is_one_sentence(box: Program) -> None:
    error = box.ask(1, "run", argv=["nosuchprogram"])["error"]
    assert error == {"kind": "OpError", "message": "no program nosuchprogram here", "detail": None}
    assert box.ask(2, "nosuchop")["error"]["message"] == "this version has no op 'nosuchop'"


def test_an_unexpected_one_brings_its_traceback_with_source_lines(box: Program) -> None:
    error = box.ask(1, "run", argv=["true"], timeout="not a number")["error"]
    assert error["kind"] == "TypeError"
    assert 'File "fleetctl/onbox/process.py"' in error["detail"]
    assert "began + timeout" in error["detail"]
    assert box.ask(2, "ping")["result"] == {}


def test_a_long_op_does_not_hold_up_others(box: Program) -> None:
    box.send(id=1, op="run", args={"argv": ["sleep", "60"]})
    assert box.ask(2, "ping") == {"id": 2, "result": {}}
    box.send(beat=3)
    assert box.line() == {"beat": 3}
    box.send(cancel=1)
    assert box.line() == {"id": 1, "error": {"kind": "Cancelled", "message": "cancelled", "detail": None}}


def test_the_end_of_input_cancels_what_runs_and_ends_the_program(box: Program) -> None:
    box.send(id=1, op="run", args={"argv": ["sleep", "600"]})
    box.stdin.close()
    assert box.process.wait(60) == 0
    assert json.loads(box.stdout.readline())["error"]["kind"] == "Cancelled"


def test_commands_cannot_disturb_the_conversation(box: Program) -> None:
    done = box.ask(1, "run", argv=["sh", "-c", "cat; ls -l /proc/self/fd; echo >/proc/$PPID/fd/1"])
    assert "pipe" in done["result"]["out"]
    assert box.ask(2, "ping") == {"id": 2, "result": {}}


def test_the_oldest_python_that_is_promised_can_run_it() -> None:
    places = ["/usr/bin", "/usr/local/bin", *Path.home().glob(".pyenv/versions/3.8.*/bin")]
    python = shutil.which("python3.8", path=":".join(map(str, places)))
    if python is None:
        pytest.skip("no python3.8 here")
    old = Program(python)
    assert old.ask(1, "run", argv=["echo", "x"])["result"]["out"] == "x\n"
    assert old.ask(2, "digest", paths=["/nonexistent"])["result"] == {"/nonexistent": None}
    old.stdin.close()
    assert old.process.wait(60) == 0
