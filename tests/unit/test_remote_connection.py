"""One box over a real sshd on loopback."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from remote_sshd import Sshd, alias_config, free_port, make_key, needs_sshd

from fleetctl.errors import BoxError
from fleetctl.remote import session
from fleetctl.remote.connection import BoxConnection, ConnectionLost, OpFailed, connect

pytestmark = needs_sshd


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("sshd"))
    yield server
    server.stop()


@pytest.fixture
def box(sshd: Sshd) -> Iterator[BoxConnection]:
    with sshd.connect() as connection:
        yield connection


# Calls


def test_words_reach_a_command_unharmed(box: BoxConnection) -> None:
    words = [
        "a b",
        "'\"`",
        "$HOME $(id)",
        "%s %% %i",
        "new\nline",
        "ü€😀",
        "",
        "\\n",
        "*",
        "~",
        "!!",
        "; exit 7",
    ]
    done = box.run(
        "python3",
        "-c",
        "import json, sys; print(json.dumps([sys.argv[1:], sys.stdin.read()]))",
        *words,
        stdin="ü\n",
    )
    assert json.loads(done.out) == [words, "ü\n"]


def test_a_failing_command_is_an_error_that_names_box_command_and_reason(box: BoxConnection) -> None:
    with pytest.raises(OpFailed, match=r"^spark1: sh -c echo reason >&2; exit 3 ended with status 3: reason$"):
        box.run("sh", "-c", "echo reason >&2; exit 3")
    assert box.run("sh", "-c", "exit 3", check=False).rc == 3
    with pytest.raises(OpFailed, match="spark1: no program nosuchprogram here"):
        box.run("nosuchprogram", check=False)


def test_files_are_written_read_compared_and_removed(box: BoxConnection, tmp_path: Path) -> None:
    path = str(tmp_path / "new/a b")
    assert box.call("write", files=[{"path": path, "content": "ü\n", "mode": 0o600}]) == {"changed": [path]}
    assert box.call("read", path=path) == {"content": "ü\n", "mode": 0o600}
    assert list(box.call("digest", paths=[path]).values()) != [None]
    assert box.call("remove", paths=[path]) == {"removed": [path]}


def test_large_requests_and_answers_go_through(box: BoxConnection, tmp_path: Path) -> None:
    path, content = str(tmp_path / "large"), "0123456789abcde\n" * 500_000
    box.call("write", files=[{"path": path, "content": content, "mode": 0o644}])
    assert box.call("read", path=path)["content"] == content


def test_many_calls_at_once_share_the_connection(box: BoxConnection) -> None:
    outs: dict[int, str] = {}

    def one(number: int) -> None:
        outs[number] = box.run("echo", str(number)).out

    threads = [threading.Thread(target=one, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outs == {number: f"{number}\n" for number in range(20)}


def test_a_call_is_given_up_after_its_timeout_and_cancelled_on_the_box(box: BoxConnection) -> None:
    with pytest.raises(OpFailed, match=r"spark1: run did not answer within 0\.5 s") as caught:
        box.call_with("run", {"argv": ["sleep", "7654"]}, timeout=0.5)
    assert caught.value.kind == "Timeout"
    assert nothing_runs("7654")


def test_calls_can_be_cancelled_by_op(box: BoxConnection) -> None:
    failures: list[OpFailed] = []

    def wait() -> None:
        try:
            box.run("sleep", "7655")
        except OpFailed as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert eventually(lambda: not nothing_runs("7655", 0))
    box.cancel(["read"])
    assert thread.is_alive() and not nothing_runs("7655", 0)
    box.cancel(["run"])
    thread.join(30)
    assert [failure.kind for failure in failures] == ["Cancelled"]
    assert nothing_runs("7655")


def test_an_unknown_op_is_an_error(box: BoxConnection) -> None:
    with pytest.raises(OpFailed, match="spark1: this version has no op 'nosuchop'"):
        box.call("nosuchop")


# The connection


def test_closing_ends_the_program_on_the_box(sshd: Sshd) -> None:
    connection = sshd.connect()
    pid = int(connection.run("sh", "-c", "echo $PPID").out)
    connection.close()
    assert eventually(lambda: not alive(pid))
    with pytest.raises(ConnectionLost, match="spark1: the connection was closed"):
        connection.run("true")


def test_a_killed_connection_ends_calls_under_way_and_can_be_renewed(sshd: Sshd) -> None:
    with sshd.connect() as connection:
        before = connection.run("sh", "-c", "echo $PPID").out
        threading.Timer(0.5, kill_sessions, [sshd]).start()
        with pytest.raises(ConnectionLost, match="spark1: "):
            connection.run("sleep", "7656")
        assert nothing_runs("7656")
        with pytest.raises(ConnectionLost):
            connection.run("true")
        connection.reconnect()
        assert connection.run("sh", "-c", "echo $PPID").out != before


def test_of_several_threads_that_lost_the_connection_the_first_renews_it_for_all(sshd: Sshd) -> None:
    with sshd.connect() as connection:
        connection.close()
        threads = [threading.Thread(target=connection.reconnect) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(sshd.sessions()) == 1
        assert connection.run("true").rc == 0


def test_a_killed_program_is_told_from_a_lost_network(box: BoxConnection) -> None:
    with pytest.raises(ConnectionLost, match="spark1: the program on the box ended"):
        box.run("sh", "-c", "kill -9 $PPID; sleep 60")


def test_a_silent_network_is_noticed(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "BEAT", 0.2)
    monkeypatch.setattr(session, "SILENCE_LIMIT", 1.0)
    with sshd.connect() as connection:
        time.sleep(1.5)
        assert connection.run("true").rc == 0  # beats are answered
        frozen = [process for child in sshd.sessions() for process in [child, *child.children(recursive=True)]]
        for process in frozen:
            process.suspend()
        try:
            with pytest.raises(ConnectionLost, match="spark1: no sign of life for 1 s"):
                connection.run("true")
        finally:
            for process in frozen:
                process.resume()


# Login shells, start-up files, python3


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "fish", "tcsh", "csh"])
@pytest.mark.parametrize("noise", ["", "echo noise; echo error >&2; printf 'no newline'; "])
def test_login_shells_and_their_noise_do_not_matter(tmp_path: Path, shell: str, noise: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell} here")
    # sshd hands the command to the login shell as `shell -c command`; so does this.
    server = Sshd(tmp_path / "sshd", f'ForceCommand {noise}exec {path} -c "$SSH_ORIGINAL_COMMAND"')
    try:
        with server.connect() as connection:
            assert connection.run("echo", "$SHELL 'x'").out == "$SHELL 'x'\n"
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("exit 5", r"spark1: the program did not start \(status 5\)"),
        ("echo This account is not available; exit 1", "did not start .*: This account is not available"),
        ("sleep 60", r"spark1: the program did not start within 1 s"),
    ],
)
def test_a_login_shell_that_runs_nothing_is_told(tmp_path: Path, command: str, message: str) -> None:
    server = Sshd(tmp_path / "sshd", f"ForceCommand {command}")
    try:
        with pytest.raises(BoxError, match=message):
            connect("spark1", server.box(), timeout=1)
    finally:
        server.stop()


def test_a_box_without_python3_is_told(tmp_path: Path) -> None:
    hide = "; ".join(
        f"mount --bind /dev/null {found}"
        for found in {os.path.realpath(path) for path in ("/usr/bin/python3", "/usr/local/bin/python3")}
        if Path(found).exists()
    )
    script = tmp_path / "without-python"
    script.write_text(
        f'#!/bin/sh\n{hide or ":"}\nPATH=/usr/sbin:/usr/bin:/sbin:/bin exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n'
    )
    script.chmod(0o755)
    if subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0:
        pytest.skip("mount namespaces are not allowed here")
    server = Sshd(tmp_path / "sshd", f"ForceCommand unshare -m {script}")
    try:
        with pytest.raises(BoxError, match="spark1: there is no python3"):
            server.connect()
    finally:
        server.stop()


# Reaching the server


def test_nothing_listening_is_told(sshd: Sshd) -> None:
    with pytest.raises(BoxError, match=r"spark1: nothing listens for SSH at 127\.0\.0\.1 port \d+"):
        sshd.connect(port=free_port())


def test_a_name_without_an_address_is_told(sshd: Sshd) -> None:
    with pytest.raises(BoxError, match=r"spark1: no address for nosuch\.invalid"):
        sshd.connect(host="nosuch.invalid")


@pytest.mark.parametrize(
    ("greeting", "message"),
    [
        (b"", r"no greeting within 1 s"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3, "no SSH conversation with .*banner"),
    ],
)
def test_something_else_at_the_port_is_told(sshd: Sshd, greeting: bytes, message: str) -> None:
    class Other(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(greeting)
            self.request.recv(1 << 16)
            if not greeting:
                time.sleep(3)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Other) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(BoxError, match=message):
            connect("spark1", sshd.box(port=server.server_address[1]), timeout=1)
        server.shutdown()


# Host keys


def test_an_unknown_host_key_is_refused_and_can_be_accepted_once(sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    shown = subprocess.run(
        ["ssh-keygen", "-lf", f"{sshd.host_key}.pub"], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    with pytest.raises(BoxError, match="is not known") as caught:
        sshd.connect(known_hosts=str(known))
    assert shown in str(caught.value) and "--accept-new-host-keys" in str(caught.value)
    connect("spark1", sshd.box(known_hosts=str(known)), accept_new=True).close()
    sshd.connect(known_hosts=str(known)).close()


def test_a_changed_host_key_is_refused_loudly_and_never_accepted(sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    other = Path(f"{make_key(tmp_path / 'other')}.pub").read_text().split()
    known.write_text(f"[127.0.0.1]:{sshd.port} {other[0]} {other[1]}\n")
    with pytest.raises(BoxError, match="HAS CHANGED") as caught:
        connect("spark1", sshd.box(known_hosts=str(known)), accept_new=True)
    assert str(caught.value).count("SHA256:") == 2
    assert f"{known}:1" in str(caught.value)


# Keys


@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_keys_of_every_kind_log_in(sshd: Sshd, tmp_path: Path, kind: str) -> None:
    key = authorize(sshd, make_key(tmp_path / "key", kind))
    with sshd.connect(key=str(key)) as connection:
        assert connection.run("true").rc == 0


def test_a_refused_key_is_listed_with_what_to_try_by_hand(sshd: Sshd, tmp_path: Path) -> None:
    key = make_key(tmp_path / "stranger")
    with pytest.raises(BoxError, match=f"refuses every key: tried {key}\n") as caught:
        sshd.connect(key=str(key))
    assert f"ssh -i {key} -p {sshd.port} root@127.0.0.1" in str(caught.value)
    with pytest.raises(BoxError, match=r"tried .*/missing \(no such file\)"):
        sshd.connect(key=str(tmp_path / "missing"))


def test_a_passphrase_is_asked_once_or_the_key_is_skipped(sshd: Sshd, tmp_path: Path) -> None:
    key = authorize(sshd, make_key(tmp_path / "key", passphrase="open sesame"))
    box = sshd.box(key=str(key))
    with pytest.raises(BoxError, match=r"has a passphrase and is not in the agent"):
        connect("spark1", box)
    asked: list[Path] = []

    def ask(path: Path, answer: str = "open sesame") -> str:
        asked.append(path)
        return answer

    with connect("spark1", box, ask_passphrase=ask) as connection:
        connection.close()
        connection.reconnect()
        assert connection.run("true").rc == 0
    assert asked == [key]
    with pytest.raises(BoxError, match="wrong passphrase"):
        connect("spark1", box, ask_passphrase=lambda path: ask(path, "wrong"))
    assert asked == [key, key]


def test_a_key_in_the_agent_needs_no_passphrase(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = authorize(sshd, make_key(tmp_path / "key"))
    path = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    try:
        assert eventually(path.exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        others = [make_key(tmp_path / f"other{number}") for number in range(8)]  # more than a server lets one try
        subprocess.run(["ssh-add", "-q", *map(str, others), str(key)], check=True, stderr=subprocess.DEVNULL)
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(key)], check=True, capture_output=True)
        with sshd.connect(key=str(key)) as connection:
            assert connection.run("true").rc == 0
    finally:
        agent.terminate()
        agent.wait(10)


# The operator's OpenSSH configuration


def test_jump_hosts_lead_there_and_are_verified_too(sshd: Sshd, tmp_path: Path) -> None:
    gate = Sshd(tmp_path / "gate")
    try:
        hop = f"Host gate\n  HostName 127.0.0.1\n  Port {gate.port}\n  User root\n  IdentityFile {gate.key}\n"
        inner = f"Host inner\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User root\n  ProxyJump gate\n"
        known = f"  UserKnownHostsFile {gate.known_hosts}\n"
        box = sshd.box(host="inner", user=None, port=None, key=None, known_hosts=None)
        with pytest.raises(BoxError, match=rf"host key of \[127\.0\.0\.1\]:{gate.port} is not known"):
            connect("spark1", box, config=alias_config(tmp_path / "bad", sshd, hop, inner))
        config = alias_config(tmp_path / "good", sshd, hop + known, inner)
        with connect("spark1", box, config=config) as connection:
            assert connection.run("echo", "there").out == "there\n"
            connection.close()
            connection.reconnect()
            assert connection.run("echo", "again").out == "again\n"
        assert eventually(lambda: not gate.sessions())
    finally:
        gate.stop()


def test_jump_hosts_in_a_circle_are_told(sshd: Sshd, tmp_path: Path) -> None:
    circle = f"Host a\n  HostName 127.0.0.1\n  Port {sshd.port}\n  ProxyJump b\nHost b\n  ProxyJump a\n"
    box = sshd.box(host="a", user=None, port=None, key=None, known_hosts=None)
    with pytest.raises(BoxError, match="does ProxyJump go in a circle"):
        connect("spark1", box, config=alias_config(tmp_path / "config", sshd, circle))


def test_a_proxy_command_leads_there(sshd: Sshd, tmp_path: Path) -> None:
    relay = f"ssh -F none -i {sshd.key} -o UserKnownHostsFile={sshd.known_hosts} -p {sshd.port} root@127.0.0.1 -W %h:%p"
    block = f"Host inner\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User root\n  ProxyCommand {relay}\n"
    box = sshd.box(host="inner", user=None, port=None, key=None, known_hosts=None)
    with connect("spark1", box, config=alias_config(tmp_path / "config", sshd, block)) as connection:
        assert connection.run("echo", "there").out == "there\n"


# Tunnels


class Shout(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(self.rfile.read().upper())


def test_a_tunnel_carries_several_connections_both_ways(box: BoxConnection) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Shout) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with box.tunnel("127.0.0.1", server.server_address[1]) as path:
            assert path.parent.stat().st_mode & 0o777 == 0o700
            clients = [socket.socket(socket.AF_UNIX) for _ in range(5)]
            for number, client in enumerate(clients):
                client.connect(str(path))
                client.sendall(f"hello {number} ".encode() * 100_000)
                client.shutdown(socket.SHUT_WR)
            for number, client in enumerate(clients):
                with client, client.makefile("rb") as answers:
                    assert answers.read() == f"HELLO {number} ".encode() * 100_000
        assert not path.parent.exists()
        server.shutdown()


def test_a_tunnel_to_a_closed_port_closes_its_connections(box: BoxConnection) -> None:
    with box.tunnel("127.0.0.1", free_port()) as path, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(path))
        assert client.recv(1) == b""


@contextmanager
def shouting(path: Path) -> Iterator[Path]:
    """A program that listens on a Unix socket which only root may open."""
    with socketserver.ThreadingUnixStreamServer(str(path), Shout) as server:
        path.chmod(0o600)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield path
        server.shutdown()


def test_a_tunnel_to_a_unix_socket_goes_through_the_program_on_the_box(box: BoxConnection, tmp_path: Path) -> None:
    with shouting(tmp_path / "engine.sock") as far:
        with box.tunnel(f"unix:{far}", 0) as one, box.tunnel(f"unix:{far}", 0) as other:
            clients = [socket.socket(socket.AF_UNIX) for _ in range(4)]
            for client, path in zip(clients, (one, other) * 2, strict=True):
                client.connect(str(path))
                client.sendall(b"hello " * 100_000)
                client.shutdown(socket.SHUT_WR)
            for client in clients:
                with client, client.makefile("rb") as answers:
                    assert answers.read() == b"HELLO " * 100_000
        assert not one.parent.exists()
    assert eventually(lambda: not [thread for thread in threading.enumerate() if thread.name.endswith("-way")])


def test_a_tunnel_to_a_unix_socket_where_nobody_listens_closes_its_connections(
    box: BoxConnection, tmp_path: Path
) -> None:
    with box.tunnel(f"unix:{tmp_path}/none.sock", 0) as path, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(path))
        assert client.recv(1) == b""


def test_nobody_on_the_box_gets_to_the_socket_by_the_port_of_the_way(box: BoxConnection, tmp_path: Path) -> None:
    key = "k" * 64
    said: queue.SimpleQueue[int] = queue.SimpleQueue()

    def serve(far: Path) -> None:
        args = {"path": str(far), "key": key, "reply": "r" * 64}
        box.call_with("socket_relay", args, on_event=lambda event: said.put(event["port"]))

    with shouting(tmp_path / "engine.sock") as far:
        thread = threading.Thread(target=serve, args=(far,))
        thread.start()
        port = said.get(timeout=30)

        def heard(greeting: str) -> bytes:
            with socket.create_connection(("127.0.0.1", port), 30) as sock:
                sock.sendall(greeting.encode())
                sock.shutdown(socket.SHUT_WR)
                with suppress(ConnectionResetError):
                    return sock.recv(100)
                return b""

        wrong = ("GET / HTTP/1.1\r\n\r\n" + " " * 60, "x" * 65, "x" * 64 + "c", key, key + "?", "")
        assert [heard(one) for one in wrong] == [b""] * len(wrong)
        assert heard(key + "chello").startswith(b"r" * 64)
        heard(key + "x")
        thread.join(30)
        assert not thread.is_alive()


def test_a_long_temporary_folder_does_not_break_tunnels(
    box: BoxConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with box.tunnel("127.0.0.1", 1) as path:
        assert len(str(path)) < 104


# Helpers


def authorize(sshd: Sshd, key: Path) -> Path:
    with sshd.authorized.open("a") as file:
        file.write(Path(f"{key}.pub").read_text())
    return key


def eventually(condition: Any, seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def nothing_runs(word: str, seconds: float = 30.0) -> bool:
    """No process has the word in its command line (any more)."""

    def absent() -> bool:
        return not any(word in (process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))

    return eventually(absent, seconds)


def kill_sessions(sshd: Sshd) -> None:
    """Kill the sshd of every session, but not what it runs: that has to notice by itself."""
    for process in sshd.sessions():
        for one in [process, *process.children(recursive=True)]:
            if one.name() == "sshd":
                one.send_signal(signal.SIGKILL)
