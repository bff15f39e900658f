"""What the ranks of an engine say to each other: the other half of rank.py, which lies beside it.

One JSON value a line: hello, epoch, refuse, beat, ready, gone.
"""

import contextlib
import errno
import glob
import json
import os
import socket
import time

PROTOCOL = "fleetctl-rank 1"
BEAT = 1.0  # seconds between two signs of life


class Peer:
    """A connection to another rank."""

    def __init__(self, sock, rank=None):
        self.sock = sock
        self.rank = rank
        self.heard = self.told = time.monotonic()
        self.unread = b""
        self.left = []
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self):
        return self.sock.fileno()

    def tell(self, kind, **fields):
        """Send one message; a peer that cannot take it shows as closed or silent soon enough."""
        self.told = time.monotonic()
        with contextlib.suppress(OSError):
            self.sock.send(json.dumps(dict(fields, kind=kind)).encode() + b"\n")

    def beat(self):
        if time.monotonic() - self.told >= BEAT:
            self.tell("beat")

    def leave(self, messages):
        """Messages that the next call of messages() is to give: they came with others that had to be heeded first."""
        self.left = messages

    def messages(self):
        """Messages that have come. Raises OSError when the peer has gone, ValueError for what is no message."""
        if self.left:
            found, self.left = self.left, []
            return found
        try:
            data = self.sock.recv(65536)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "connection closed")
        self.heard = time.monotonic()
        *lines, self.unread = (self.unread + data).split(b"\n")
        found = [json.loads(line.decode()) for line in lines]
        if len(self.unread) > 65536 or not all(isinstance(message, dict) for message in found):
            raise ValueError("no message of a rank")
        return found

    def close(self):
        self.sock.close()


def build(program):
    """What is installed beside a program of a venv: the versions of vLLM and PyTorch, or nothing."""
    root = os.path.dirname(os.path.dirname(program))
    found = []
    for name in ("vllm", "torch"):
        found += glob.glob(os.path.join(glob.escape(root), "lib/python3*/site-packages/%s-*.dist-info" % name))
    return " ".join(sorted(os.path.basename(path)[: -len(".dist-info")] for path in found))


def disagreement(mine, other):
    """Why two ranks cannot be one engine, or None. Raises ValueError for what is no greeting."""
    if other.get("protocol") != PROTOCOL or not isinstance(other.get("rank"), int):
        raise ValueError("no greeting of a rank")
    who = "rank %d (%s)" % (other["rank"], other.get("box"))
    ranks = mine["ranks"]
    if not 0 < other["rank"] < ranks or other.get("ranks") != ranks:
        return "%s takes part in an engine of %s ranks, the head in one of %d" % (who, other.get("ranks"), ranks)
    if other.get("digest") != mine["digest"]:
        return "%s was given other settings (%s) than the head (%s): put the same layout on every box" % (
            who,
            other.get("digest"),
            mine["digest"],
        )
    if other.get("build") != mine["build"]:
        return "%s has %s, the head has %s: install the same build on every box" % (
            who,
            other.get("build") or "no vLLM",
            mine["build"] or "no vLLM",
        )
    return None
