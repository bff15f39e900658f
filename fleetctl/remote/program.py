"""Starting fleetctl's program on a box, as root, whatever the login shell, its start-up files and sudo do."""

from __future__ import annotations

import binascii
import contextlib
import functools
import hashlib
import json
import re
import secrets
import select
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fleetctl.errors import BoxError
from fleetctl.remote import sudo
from fleetctl.remote.errors import NoPythonError
from fleetctl.remote.library import paramiko

OLDEST_PYTHON = (3, 8)
LAST_WORDS = 2.0  # seconds to wait for the exit status after the end of the output
PASSWORD_CHECK = 30.0  # seconds that sudo gets to check a password: a directory may be asked, and PAM waits on purpose
NO_PYTHON, NO_SUDO = 97, 96  # exit statuses of the launcher, chosen to be nobody else's

# The login shell sees two words in single quotes without a quote, backslash, newline or exclamation mark in them,
# which sh, bash, zsh, fish, csh and tcsh all hand on as they are. sh looks for python3 itself: in fixed places first,
# as PATH depends on start-up files and may lead to an environment that is slow to start.
_LAUNCHER = (
    "LC_ALL=C; export LC_ALL; "
    "{sudo_check}"
    "{installed}"
    'for p in /usr/bin/python3 /usr/local/bin/python3 "$(command -v python3)"; do '
    'if test -x "$p"; then exec {sudo}"$p" -IBS -X utf8 -c "$0" "$1"; fi; done; exit 97'
)
_SUDO = "sudo -n -- "
# sudo shows a prompt of our own on standard error exactly when it wants the password, so that nothing else ever gets
# it. The prompt comes in two halves for the reason that the marker comes backwards.
_SUDO_ASKED = 'sudo -S -p "$1$2" -- '
_SUDO_CHECK = "command -v sudo >/dev/null || exit 96; "
# The copy of this version that `fleetctl setup` has put there, which a rule of sudo may allow without a password. Of
# another version there is a word on standard error: sudo's refusal is then no mystery.
_INSTALLED = (
    'if test -x {path}; then exec {sudo}{path} "$1"; fi; '
    "for p in {others}; do if test -x $p; then echo {word} $p >&2; fi; done; "
)
OTHER_PROGRAM = "fleetctl-has-another-program:"

# The marker is the nonce backwards: a shell that echoes its commands shows the nonce, but never the marker.
_BOOTSTRAP = (
    "import sys,os,zlib,binascii;"
    'os.write(1,(chr(10)+sys.argv[1][::-1]+" %d %d"%sys.version_info[:2]+chr(10)).encode());'
    'f=os.fdopen(os.dup(0),"rb",65536);'
    "exec(zlib.decompress(binascii.a2b_base64(f.readline())))"
)

# Runs on the box with ``f`` (stdin) in scope. Modules are compiled when an op of theirs is first called.
_LOADER = '''
import json, sys
from importlib.machinery import ModuleSpec
SOURCES, INDEX = json.loads({bundle!r})

class Sources:
    """Finds and loads modules from SOURCES; get_source makes tracebacks show the lines."""
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES or any(known.startswith(name + ".") for known in SOURCES):
            return ModuleSpec(name, self, is_package=name not in SOURCES)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = module.__name__
        if name in SOURCES:
            module.__file__ = name.replace(".", "/") + ".py"
            exec(compile(SOURCES[name], module.__file__, "exec"), module.__dict__)
    def get_source(self, name):
        return SOURCES.get(name)

sys.meta_path.insert(0, Sources())
from fleetctl.onbox.main import serve
serve(f, INDEX)
'''


PROGRAM_FOLDER = "/usr/local/lib/fleetctl"
# One word after the interpreter is all that the kernel hands on. The line that brings the source to a program without
# one of its own is read and dropped.
INSTALLED_HEAD = """#!/usr/bin/python3 -IBSXutf8
# Installed by `fleetctl setup` for accounts whose sudo is limited to this program; fleetctl's docs/security.md.
import os, re, sys
if len(sys.argv) != 2 or re.match("[0-9a-f]{24}$", sys.argv[1]) is None:
    sys.exit("fleetctl runs this over SSH; see fleetctl setup --help")
os.write(1, (chr(10) + sys.argv[1][::-1] + " %d %d" % sys.version_info[:2] + chr(10)).encode())
f = os.fdopen(os.dup(0), "rb", 65536)
f.readline(8 << 20)
"""


@dataclass
class Running:
    """The started program: its channel, and what it has already sent after the marker."""

    channel: paramiko.Channel
    ahead: bytes
    python: tuple[int, int]


@functools.cache
def _sources() -> dict[str, str]:
    """Source of every module in fleetctl/onbox by its full name."""
    folder = Path(__file__).resolve().parent.parent / "onbox"
    files = (path for path in sorted(folder.glob("*.py")) if path.stem != "__init__")
    return {f"fleetctl.onbox.{path.stem}": path.read_text(encoding="utf-8") for path in files}


def ops() -> dict[str, str]:
    """Which module has which op."""
    found = {name: re.findall(r'^@op\("([^"]+)"\)', text, re.MULTILINE) for name, text in _sources().items()}
    return {op: name for name, names in found.items() for op in names}


def sources_and_index() -> tuple[dict[str, str], dict[str, str]]:
    """Source of every module that runs on a box, and which module has which op."""
    return _sources(), ops()


@functools.cache
def bundle() -> bytes:
    """All of fleetctl/onbox as the one line that the bootstrap reads."""
    source = _LOADER.format(bundle=json.dumps(sources_and_index()))
    return binascii.b2a_base64(zlib.compress(source.encode(), 6), newline=True)


@functools.cache
def installed_program() -> bytes:
    """The program as a file that root owns on a box: the same ops, of which it does what moves take and no more."""
    return (
        (INSTALLED_HEAD + _LOADER.format(bundle=json.dumps([_sources(), ops()], sort_keys=True)))
        .replace("serve(f, INDEX)", "serve(f, INDEX, limited=True)")
        .encode()
    )


def installed_path() -> str:
    """Where the installed program of this version lies: another version has another path."""
    return f"{PROGRAM_FOLDER}/onbox-{hashlib.sha256(installed_program()).hexdigest()[:16]}"


def start(
    box: str,
    transport: paramiko.Transport,
    user: str,
    password: Callable[[], str] | None,
    timeout: float,
    *,
    full: bool = False,
) -> Running:
    """Start the program as root and hand it its source.

    ``password`` is asked for only when sudo wants one and must give the same answer each time. With ``full`` the copy
    that is installed on the box, which does only what moves take, is not used. Raises BoxError.
    """
    if user == "root":
        return _Start(box, transport, user, "", timeout, full=True).go(None)
    first = _Start(box, transport, user, _SUDO, timeout, full=full)
    try:
        return first.go(None)
    except sudo.PasswordWanted as wanted:
        if password is None:
            raise BoxError(
                box,
                f"sudo asks {user} for a password, and there is nobody to ask",
                hint=f"set ssh.sudo_password in fleet.yaml, or allow what it needs without one: fleetctl setup {box}",
            ) from wanted
    try:
        secret = password()
    except BoxError as nobody:
        if first.other_program():
            raise first.has_other_program() from nobody
        raise
    return _Start(box, transport, user, _SUDO_ASKED, timeout, asked=True, full=full).go(secret)


def exit_status(channel: paramiko.Channel) -> int | None:
    """Exit status of a program whose output has ended; None for a signal, or when the connection has ended."""
    end = time.monotonic() + LAST_WORDS  # it arrives a moment after the end of the output
    while channel.get_transport().is_active() and not channel.exit_status_ready() and time.monotonic() < end:
        time.sleep(0.01)
    status = channel.recv_exit_status() if channel.exit_status_ready() else -1
    return status if status >= 0 else None


class _Start:
    """One attempt: a session channel and what comes out of it until the marker shows."""

    def __init__(
        self,
        box: str,
        transport: paramiko.Transport,
        user: str,
        by: str,
        timeout: float,
        *,
        asked: bool = False,
        full: bool = False,
    ) -> None:
        self.box, self.user, self.asked = box, user, asked
        self.limit = time.monotonic() + timeout
        self.timeout = timeout
        self.nonce, half = secrets.token_hex(12), secrets.token_hex(12)
        self.prompt = (self.nonce + half).encode()
        self.out = bytearray()
        self.err = bytearray()
        installed = _INSTALLED.format(
            path=installed_path(), sudo=by, others=f"{PROGRAM_FOLDER}/onbox-*", word=OTHER_PROGRAM
        )
        launcher = _LAUNCHER.format(sudo=by, sudo_check=_SUDO_CHECK if by else "", installed="" if full else installed)
        self.poll = select.poll()
        try:
            self.channel = transport.open_session(timeout=timeout)
            self.channel.exec_command(f"/bin/sh -c '{launcher}' '{_BOOTSTRAP}' {self.nonce} {half}")
            self.poll.register(self.channel.fileno(), select.POLLIN)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise BoxError(
                box,
                f"SSH works but runs no command: {getattr(error, 'text', '') or error}",
                hint="see sshd's log there",
            ) from error

    def go(self, secret: str | None) -> Running:
        """Wait for the marker, answering sudo's prompt at most once."""
        source_sent = not self.asked  # sudo -S would take the source for further passwords
        answered = False
        try:
            if source_sent:
                self._send(bundle())
            while True:
                found = re.search(rb"\n" + self.nonce[::-1].encode() + rb" (\d+) (\d+)\n", self.out)
                if found:
                    python = (int(found.group(1)), int(found.group(2)))
                    if python < OLDEST_PYTHON:
                        raise BoxError(self.box, f"python3 there is {python[0]}.{python[1]}; 3.8 or later is needed")
                    if not source_sent:
                        self._send(bundle())
                    return Running(self.channel, bytes(self.out[found.end() :]), python)
                if self.asked:
                    prompts = self.err.count(self.prompt)
                    if prompts > 1 or (prompts and sudo.refused(self._errors())):
                        raise BoxError(self.box, f"sudo refused the password of {self.user}")
                    if prompts and not answered:
                        answered = True
                        self.limit = time.monotonic() + max(self.timeout, PASSWORD_CHECK)
                        self._send(f"{secret}\n".encode())
                self._more()
        except BaseException:
            self.channel.close()
            raise

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it may have ended; its output says why, and is read next
            self.channel.sendall(data)

    def _more(self) -> None:
        """Wait for more output; raise when it has ended or takes too long."""
        channel = self.channel
        rest = self.limit - time.monotonic()
        if rest <= 0:
            raise BoxError(
                self.box,
                f"the program did not start within {self.timeout:g} s{self._said()}",
                hint="is the box overloaded? do the start-up files of the login shell wait for something?",
            )
        self.poll.poll(min(rest, 1.0) * 1000)
        moved = False
        if channel.recv_stderr_ready():
            self.err += channel.recv_stderr(65536)
            moved = True
        if channel.recv_ready():
            self.out += channel.recv(65536)
            moved = True
        if not moved and (channel.eof_received or channel.closed or channel.exit_status_ready()):
            self._ended()

    def _ended(self) -> None:
        """The launcher ended without the marker: say why."""
        status = exit_status(self.channel)
        if self.channel.recv_ready() or self.channel.recv_stderr_ready():
            return  # its last words came in meanwhile
        if status is None and not self.channel.get_transport().is_active():
            raise BoxError(self.box, "the connection was closed while the program started")
        if status == NO_PYTHON:
            hint = f"fleetctl setup {self.box} installs it, or there, as root: apt-get install python3"
            raise NoPythonError(self.box, "there is no python3", hint=hint)
        if status == NO_SUDO:
            raise BoxError(
                self.box,
                f"there is no sudo, and {self.user} is not root",
                hint="log in as root or install sudo",
            )
        sudo.explain(self.box, self.user, self._errors(), asked=self.asked)
        raise BoxError(
            self.box,
            f"the program did not start (status {'unknown' if status is None else status}){self._said()}",
            hint="does the login shell of the user run commands? `ssh … true` has to work",
        )

    def other_program(self) -> bool:
        """The box has the installed program of another version of fleetctl, and none of this one."""
        return OTHER_PROGRAM in self._errors()

    def has_other_program(self) -> BoxError:
        """What to say then, where sudo wants a password that nobody can give."""
        return BoxError(
            self.box,
            f"the program that {self.user} may run there without a password is of another version of fleetctl",
            hint=f"somebody who may do more there: fleetctl setup {self.box} --only sudo",
        )

    def _errors(self) -> str:
        return self.err.replace(self.prompt, b"\n").decode("utf-8", "replace")

    def _said(self) -> str:
        said = (self._errors().strip() or self.out.decode("utf-8", "replace").strip())[-500:]
        return f": {said}" if said else ""
