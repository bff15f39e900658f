"""``fleetctl batch`` as people and scripts meet it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from batchworker import openai, prepare, working
from natsserver import NatsServer, needs_nats, running

from fleetctl.cli.main import main
from fleetctl.run import batching

pytestmark = needs_nats

Fleetctl = Callable[..., subprocess.CompletedProcess[str]]
PROGRAM = [sys.executable, "-c", "from fleetctl.cli.main import main; main()", "batch"]
ROLES = "authorization { users: [{user: operator, password: right}] }"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with running(tmp_path) as server:
        prepare(server.access)
        yield server


@pytest.fixture
def fleetctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fleetctl:
    """The command in a folder of its own; within this process, for starting one takes longer than most of these."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEETCTL_FLEET", "/nowhere/fleet.yaml")
    monkeypatch.setattr(batching, "FIRST", 2.0)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr("sys.argv", ["fleetctl", "batch", *words])
        capsys.readouterr()
        status: Any = 0
        try:
            main()
        except SystemExit as end:
            status = end.code
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(words, status or 0, out, err)

    return run


def event(ran: subprocess.CompletedProcess[str], kind: str) -> dict[str, Any]:
    found = [told for told in map(json.loads, ran.stdout.splitlines()) if told["type"] == kind]
    assert found, ran.stdout + ran.stderr
    return dict(found[-1])


def test_a_job_from_its_file_to_its_answers(server: NatsServer, tmp_path: Path, fleetctl: Fleetctl) -> None:
    (tmp_path / "in.jsonl").write_bytes(openai(*"abcde"))
    at = ("--nats", server.url)
    with working(server.access):
        ran = fleetctl("run", "in.jsonl", "--price", "1000/2000", *at)
    assert ran.returncode == 0, ran.stderr
    job = ran.stdout.split(":")[0]
    assert ": 5 answers in in.output.jsonl, 25 tokens, cost 0.035" in ran.stdout
    assert f"{job}: 5 lines for m, about " in ran.stderr
    rows = [json.loads(row) for row in (tmp_path / "in.output.jsonl").read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == ["c1", "c2", "c3", "c4", "c5"]
    assert job in (listed := fleetctl("list", *at).stdout) and "finished" in listed
    told = event(fleetctl("status", job, "--price", "1", "--json", *at), "job")
    assert (told["state"], told["answered"], told["prompt_tokens"], told["failed"]) == ("finished", 5, 15, 0)
    fetched = fleetctl("fetch", job, "--out", "again.jsonl", *at)
    assert fetched.stdout == f"{job}: 5 answers in again.jsonl\n"
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "in.output.jsonl").read_bytes()
    assert "is finished: there was nothing to cancel" in fleetctl("cancel", job, *at).stdout
    refused = fleetctl("remove", job, *at)
    assert refused.returncode == 2 and "nobody can be asked here" in refused.stderr
    assert fleetctl("remove", job, "--yes", *at).stdout == f"{job} is removed\n"
    assert fleetctl("list", *at).stdout.startswith("no jobs")


def test_ctrl_c_leaves_the_job_running_and_says_how_to_come_back(
    server: NatsServer, tmp_path: Path, fleetctl: Fleetctl
) -> None:
    (tmp_path / "in.jsonl").write_bytes(openai(*"abc"))
    words = [*PROGRAM, "run", "in.jsonl", "--json", "--nats", server.url]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        assert command.stdout and command.stderr
        job = json.loads(command.stdout.readline())["job"]
        while fleetctl("list", "--json", "--nats", server.url).stdout.count('"waiting": 3') == 0:
            pass
        command.send_signal(signal.SIGINT)
        told = command.stderr.read()
        assert command.wait(20) == 130
    assert (
        told.split()
        == (
            f"{job} goes on without this command: all lines are accepted and will be answered. "
            f"`fleetctl batch status {job}` looks at it; the same command comes back to it."
        ).split()
    )
    with working(server.access):
        again = fleetctl("run", "in.jsonl", "--json", "--nats", server.url)
    assert event(again, "written")["answered"] == 3
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_without_waiting_it_ends_when_all_is_accepted(server: NatsServer, tmp_path: Path, fleetctl: Fleetctl) -> None:
    (tmp_path / "in.jsonl").write_bytes(openai(*"abc"))
    at = ("--nats", server.url)
    ran = fleetctl("run", "in.jsonl", "--no-wait", "--json", *at)
    job = event(ran, "submitted")["job"]
    early = fleetctl("fetch", job, *at)
    assert early.returncode == 5 and f"0 of 3 lines of {job} are answered" in early.stderr
    cancelled = fleetctl("cancel", job, *at)
    assert cancelled.stdout.startswith(f"{job}: 3 lines were removed; 0 of 3 are answered")
    fetched = fleetctl("fetch", job, *at)
    assert fetched.returncode == 9 and "3 errors in in.errors.jsonl" in fetched.stdout
    assert "batch_cancelled" in (tmp_path / "in.errors.jsonl").read_text()


def test_errors_of_lines_are_in_the_exit_status(server: NatsServer, tmp_path: Path, fleetctl: Fleetctl) -> None:
    (tmp_path / "in.jsonl").write_bytes(openai(*"ab"))
    with working(server.access, status=400):
        ran = fleetctl("run", "in.jsonl", "--nats", server.url)
    assert ran.returncode == 9 and "2 errors in in.errors.jsonl" in ran.stdout


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["run", "bad.jsonl", "--nats", "nats://127.0.0.1:1"], 2, "bad.jsonl:2: no JSON"),
        (["run", "none.jsonl", "--nats", "nats://127.0.0.1:1"], 2, "none.jsonl: No such file"),
        (["run", "bad.jsonl", "--price", "dear"], 2, "--price dear: it is what a million tokens cost"),
        (["run", "bad.jsonl", "--out", "no/where.jsonl"], 2, "no is no folder to write where.jsonl in"),
        (["run", "bad.jsonl"], 2, "/nowhere/fleet.yaml"),
        (["list", "--nats", "http://x"], 2, "--nats is like nats://USER@HOST:4222"),
        (["list", "--nats", "nats://u:secret@x"], 2, "without a password"),
        (["list", "--nats", "nats://u@x"], 1, "names the user u and nothing its password"),
        (["list", "--nats", "nats://u@x", "--password-env", "UNSET"], 2, "environment variable UNSET is not set"),
        (["list", "--password-env", "UNSET"], 2, "--password-env goes with --nats"),
    ],
)
def test_what_is_wrong_is_said_in_one_message(
    tmp_path: Path, fleetctl: Fleetctl, words: list[str], status: int, said: str
) -> None:
    (tmp_path / "bad.jsonl").write_bytes(openai("a") + b"{\n")
    ran = fleetctl(*words)
    assert ran.returncode == status and said in ran.stderr, ran.stderr
    assert "secret" not in ran.stderr


def test_a_job_that_is_not_there_is_said_to_be_none(server: NatsServer, tmp_path: Path, fleetctl: Fleetctl) -> None:
    for name, said in (("b-0123456789abcdef", "there is no job b-"), ("../x", "'../x' is no name of a job")):
        ran = fleetctl("status", name, "--nats", server.url)
        assert ran.returncode == 2 and said in ran.stderr


def test_the_password_comes_from_the_environment_and_is_never_shown(
    tmp_path: Path, fleetctl: Fleetctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, ROLES) as server:
        at = ("--nats", server.url.replace("//", "//operator@"), "--password-env", "WORD")
        monkeypatch.setenv("WORD", "wrong-secret")
        wrong = fleetctl("list", *at)
        monkeypatch.setenv("WORD", "right")
        right = fleetctl("list", *at)
    assert wrong.returncode == 1 and "refuses user 'operator'" in wrong.stderr and "wrong-secret" not in wrong.stderr
    assert "NATS has no stream BATCH" in right.stderr
