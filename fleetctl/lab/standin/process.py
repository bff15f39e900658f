"""The processes of an engine: titles as vLLM sets them, forks with a link, memory that is really held."""

import ctypes
import json
import mmap
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from . import log
from .settings import Settings

PR_SET_NAME = 15
PAGE = 4096
CHUNK = 2**20


def set_title(title: str) -> None:
    """Show `title` in ps and, cut to 15 bytes, in /proc/PID/comm.

    The kernel shows the memory between arg_start and arg_end (fields 48 and 49 of /proc/self/stat) as
    the command line, so the title is written there, as setproctitle does.
    """
    ctypes.CDLL(None).prctl(PR_SET_NAME, ctypes.c_char_p(title.encode()[:15]), 0, 0, 0)
    with open("/proc/self/stat") as stat:
        values = stat.read().rpartition(")")[2].split()
    start, end = int(values[45]), int(values[46])
    if 0 < start < end:
        ctypes.memmove(start, title.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start)


def set_name(name: str) -> None:
    """Set only the short name, /proc/PID/comm."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)


class Link:
    """One end of the line between a process and its child: JSON messages, and end of file at death."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = b""
        self.closed = False

    def send(self, **message: object) -> None:
        """Send one message; one that cannot be delivered is dropped, the death shows on reading."""
        try:
            self.sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.closed = True

    def receive(self, timeout: float | None) -> list[dict[str, object]]:
        """Messages that arrive within `timeout` seconds (None: wait). Sets `closed` at end of file."""
        if not select.select([self.sock], [], [], timeout)[0]:
            return []
        try:
            data = self.sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.closed = True
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]


@dataclass
class Child:
    """A forked process and the link to it."""

    pid: int
    name: str
    link: Link
    status: int | None = None

    def wait(self) -> int:
        """Wait for its end; the exit status, or minus the signal number."""
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def stop(self) -> None:
        """Ask it to end; `wait` waits for that."""
        self.link.send(do="stop")

    def kill(self) -> None:
        """End it at once, and wait for that."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()


def fork(title: str, run: Callable[[Link], int]) -> Child:
    """Start `run(link)` in a child process titled `VLLM::<title>`; its result is the exit status.

    The child keeps no other descriptor: an inherited API socket would keep the port taken after the
    parent is killed. It ignores SIGTERM and SIGINT, which systemd sends to the whole control group:
    the parent decides when it stops.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return Child(pid, title, Link(ours))
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        keep = theirs.fileno()
        os.closerange(3, keep)
        os.closerange(keep + 1, 1024)
        set_title(f"VLLM::{title}")
        log.log_to(title)
        status = run(Link(theirs))
    finally:
        os._exit(status)


class Memory:
    """Bytes that are allocated at once and touched bit by bit."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.touched = 0
        self.pages = mmap.mmap(-1, max(size, PAGE))

    def touch(self, share: float) -> None:
        """Make the first `share` (0 to 1) of it resident."""
        target = int(self.size * min(share, 1.0))
        while self.touched < target:
            step = min(CHUNK, target - self.touched)
            self.pages[self.touched : self.touched + step] = b"\x01" * step
            self.touched += step


def orphaned(settings: Settings) -> None:
    """What a child does once its parent is gone: return at once, or live on as an orphan (case C16)."""
    if settings.orphans:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        while True:
            time.sleep(3600)
