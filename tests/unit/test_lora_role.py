"""The files of a user who may bring adapters and do nothing else, and the program in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleetctl.errors import SpecError
from fleetctl.onbox import loras_only
from fleetctl.onbox.loras_only import NotAllowedError, check
from fleetctl.remote import program
from fleetctl.run.role import write_role

NONCE = "0123456789abcdef01234567"
ASKED = f"/bin/sh -c 'whatever the client runs' 'and its source' {NONCE} {'0' * 24}"


def talk(file: Path, asked: str, *lines: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run the program as sudo would, with lines on its standard input."""
    env = {"SSH_ORIGINAL_COMMAND": asked, "PATH": os.environ["PATH"]}
    argv = [sys.executable, "-IBS", str(file)]
    return subprocess.run(argv, input=b"".join(lines), env=env, capture_output=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("role")
    write_role("loras", folder)
    return folder


def request(number: int, op: str, **args: Any) -> bytes:
    return json.dumps({"id": number, "op": op, "args": args}).encode() + b"\n"


def test_it_answers_as_the_whole_program_does_and_runs_no_source_that_it_is_sent(role: Path, tmp_path: Path) -> None:
    evil = program.bundle()
    ran = talk(
        role / "fleetctl-loras", ASKED, evil, request(1, "ping"), request(2, "run", argv=["touch", str(tmp_path / "x")])
    )
    blank, hello, *answers = ran.stdout.split(b"\n")
    assert (blank, hello.split()[0]) == (b"", NONCE[::-1].encode())
    told = {one["id"]: one for one in map(json.loads, filter(None, answers))}
    assert told[1] == {"id": 1, "result": {}}
    assert "nothing else: no op run" in told[2]["error"]["message"]
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("asked", ["", "id", "sh -c 'id'", f"x {NONCE} {NONCE}", f"' {NONCE}", "' ../../ab 00"])
def test_what_no_fleetctl_asked_for_is_answered_with_one_sentence(role: Path, asked: str) -> None:
    ran = talk(role / "fleetctl-loras", asked, b"id\n")
    assert (ran.returncode, ran.stdout) == (1, b"")
    assert b"can only `fleetctl lora push`" in ran.stderr


def test_the_files_name_the_user_and_no_argument_is_free(role: Path) -> None:
    sudoers, sshd = (role / "sudoers").read_text(), (role / "sshd.conf").read_text()
    assert 'loras ALL=(root) NOPASSWD: /usr/local/sbin/fleetctl-loras ""' in sudoers and "@" not in sudoers
    assert "Match User loras\n" in sshd and "ForceCommand sudo -n /usr/local/sbin/fleetctl-loras\n" in sshd
    assert (role / "fleetctl-loras").stat().st_mode & 0o777 == 0o755
    for name in ("root", "a b", "../x", "", "x;id", "Ü"):
        with pytest.raises(SpecError, match="login name"):
            write_role(name, role)


def test_every_op_that_is_allowed_is_there_and_none_that_runs_or_reads_what_is_named() -> None:
    assert set(loras_only.OPS) <= set(program.ops())
    assert not {"run", "read", "write", "remedy", "install", "logs", "unit_stop", "generation_read"} & set(
        loras_only.OPS
    )


PUSH = {"operation": "lora push", "move": "20260101T000000Z-abcd", "steps": [], "questions": {}}
META = {"operation": "lora push"}


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("run", {"argv": ["id"]}),
        ("facts", {"socket_path": "/run/other.sock"}),
        ("facts", {"socket_path": loras_only.SOCKET, "paths": ["/etc/shadow"]}),
        ("facts", {"socket_path": loras_only.SOCKET, "secrets": {"/etc/shadow": {}}}),
        ("facts", {"socket_path": loras_only.SOCKET, "units": ["x; id"]}),
        ("facts", {"socket_path": loras_only.SOCKET, "images": [["/bin/sh", "x"]]}),
        ("facts", {"socket_path": loras_only.SOCKET, "units": ["-H"]}),
        ("checkpoint_files", {"path": "/etc"}),
        ("move_begin", {"move": PUSH["move"], "operation": "cutover"}),
        ("move_begin", {"move": "../../x", "operation": "lora push"}),
        ("moves_prune", {"keep": 0}),
        ("adapters_load", {"unit": "ssh.service", "address": "127.0.0.1", "port": 22, "model": "m"}),
        ("adapters_look", {"engines": [{"unit": "x", "address": "169.254.169.254", "port": 80}]}),
        ("adapters_tell", {"path": "/run/docker.sock"}),
        ("journal_append", {"move": "../../etc", "record": {}}),
        ("journal_open", {"move": PUSH["move"], "plan": {**PUSH, "operation": "doctor"}, "meta": META}),
        ("journal_open", {"move": PUSH["move"], "plan": {**PUSH, "steps": [{"kind": "mend"}]}, "meta": META}),
        ("journal_open", {"move": PUSH["move"], "plan": {**PUSH, "move": "other"}, "meta": META}),
        (
            "journal_open",
            {"move": PUSH["move"], "plan": {**PUSH, "questions": {"a": {"paths": ["/etc/shadow"]}}}, "meta": META},
        ),
        (
            "journal_open",
            {
                "move": PUSH["move"],
                "plan": {**PUSH, "steps": [{"kind": "drop_adapters", "params": {"items": [{"model": ".."}]}}]},
                "meta": META,
            },
        ),
        ("journal_open", {"move": PUSH["move"], "plan": 7, "meta": META}),
        ("lock_release", {"token": "a" * 16}),
        ("lock_take", {"holder": {}}),
        ("lock_take", {"holder": {"token": "x y"}}),
    ],
)
def test_arguments_that_lead_elsewhere_are_refused(op: str, args: dict[str, Any]) -> None:
    with pytest.raises(Exception) as told:
        check(op, args)
    assert type(told.value).__name__ in ("NotAllowedError", "OpError"), told.value


def test_the_release_in_a_journal_is_the_one_of_the_box_and_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loras_only, "_live", lambda: {"mine": True})
    plan = {**PUSH, "release": {"evil": True}, "source": {"evil": True}, "diffs": [1]}
    check("journal_open", {"move": PUSH["move"], "plan": plan, "meta": META})
    assert (plan["release"], plan["source"], plan["diffs"]) == ({"mine": True}, {"mine": True}, [])
    assert issubclass(NotAllowedError, Exception)


@pytest.mark.parametrize("op", loras_only.GROWING)
def test_the_disk_is_not_filled_to_its_end(op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loras_only.kept, "VAR", str(tmp_path))
    monkeypatch.setattr(loras_only, "SPARE", 1 << 62)
    with pytest.raises(NotAllowedError, match="nearly full"):
        check(op, {"move": "20260101T000000Z-abcd"})
