"""Commands on a box: argv lists, time limits, whole process groups."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from fleetctl.onbox import process
from fleetctl.onbox.main import Call, CancelledError, OpError
from fleetctl.onbox.process import run


@pytest.fixture
def call() -> Call:
    return Call(1, lambda message: None)


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def eventually_gone(pid: int) -> bool:
    for _ in range(200):
        if not running(pid):
            return True
        time.sleep(0.05)
    return False


def test_a_command_gives_its_status_and_both_outputs(call: Call) -> None:
    done = run(call, ["sh", "-c", "cat; echo out; echo err >&2; exit 3"], stdin="in ü\n")
    assert (done["rc"], done["out"], done["err"]) == (3, "in ü\nout\n", "err\n")
    assert done["s"] >= 0


def test_a_signal_is_a_negative_status(call: Call) -> None:
    assert run(call, ["sh", "-c", "kill -9 $$"])["rc"] == -9


def test_the_environment_is_the_same_everywhere(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/home/somebody/lib")
    told = run(call, ["env"], env={"MORE": "a b\nc"})["out"]
    assert "LD_LIBRARY_PATH" not in told
    assert "LC_ALL=C" in told
    assert "MORE=a b\nc" in told
    assert "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n" in told


def test_words_go_through_unharmed(call: Call) -> None:
    words = ["a b", "'\"`", "$HOME", "%s %%", "new\nline", "ü€😀", "", "\\", "*", "~"]
    done = run(call, ["python3", "-c", "import json,sys; print(json.dumps(sys.argv[1:]))", *words])
    import json

    assert json.loads(done["out"]) == words


def test_a_program_that_is_not_there_is_named(call: Call) -> None:
    with pytest.raises(OpError, match="no program nosuchprogram here"):
        run(call, ["nosuchprogram", "--version"])
    with pytest.raises(OpError, match="cannot start /etc/passwd: Permission denied"):
        run(call, ["/etc/passwd"])


def test_a_command_out_of_time_is_killed_with_its_children(call: Call, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"trap '' TERM; sleep 1000 & echo $! > {pid_file}; wait; wait"
    with pytest.raises(OpError, match=r"sh did not end within 0\.5 s and was killed"):
        run(call, ["sh", "-c", script], timeout=0.5)
    assert eventually_gone(int(pid_file.read_text()))


def test_a_cancelled_command_is_killed(call: Call, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    threading.Timer(0.3, call.cancelled.set).start()
    with pytest.raises(CancelledError):
        run(call, ["sh", "-c", f"echo $$ > {pid_file}; exec sleep 1000"])
    assert eventually_gone(int(pid_file.read_text()))


def test_a_child_left_behind_does_not_hold_the_answer_up(call: Call) -> None:
    done = run(call, ["sh", "-c", "sleep 30 & echo $!"], timeout=20)
    assert done["rc"] == 0
    assert done["s"] < 15
    psutil.Process(int(done["out"])).kill()


def test_a_command_may_close_its_outputs_and_go_on(call: Call) -> None:
    assert run(call, ["sh", "-c", "exec >&- 2>&-; sleep 0.2; exit 4"])["rc"] == 4


def test_much_input_that_nobody_reads_and_much_output_are_no_deadlock(call: Call) -> None:
    assert run(call, ["true"], stdin="x" * 3_000_000)["rc"] == 0
    done = run(call, ["cat"], stdin="y" * 3_000_000)
    assert len(done["out"]) == 3_000_000


def test_endless_output_is_stopped(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "OUTPUT_LIMIT", 100_000)
    with pytest.raises(OpError, match="yes wrote more than 100000 bytes"):
        run(call, ["yes"])


def test_output_that_is_no_text_is_made_text(call: Call) -> None:
    assert run(call, [sys.executable, "-c", r"import os; os.write(1, b'\xff ok')"])["out"] == "� ok"
