"""Parts of files over one TCP connection: who may talk, what is asked for, and how fast it goes.

Either end may listen. Both prove that they know a key that was made for this transfer alone, before anything else is
said; neither sends the key. Then the end that wants parts sends a line for each, ``{"file", "offset", "length"}``, and
the other answers with exactly these bytes. That they are the right ones the SHA-256 of the manifest says, which came
another way.
"""

import contextlib
import hashlib
import hmac
import json
import os
import socket
import struct
import threading
import time
from typing import Callable, Dict, List, Optional, Tuple

from fleetctl.onbox.main import Call, OpError

GREETING_WAIT = 5.0  # seconds to prove oneself
STALLED = 30.0  # seconds without a byte after which a connection is given up
LINE = 400  # bytes of a request at most
CHUNK = 2**20  # bytes handed to the kernel at a time


class RefusedError(Exception):
    """The other end did not prove that it knows the key."""


class Pace:
    """A limit in bytes/s over all connections that share it. None: no limit."""

    def __init__(self, rate: Optional[float]) -> None:
        self.rate = rate
        self._lock = threading.Lock()
        self._next = time.monotonic()

    def chunk(self) -> int:
        """How much to send at a time: at most what a tenth of a second has room for."""
        return CHUNK if self.rate is None else max(65536, min(CHUNK, int(self.rate / 10)))

    def wait(self, count: int, call: Call) -> None:
        """Wait until so many bytes may go."""
        if self.rate is None:
            return
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next)
            self._next = start + count / self.rate
        call.cancelled.wait(max(0.0, start - now))
        call.check()


def greet(sock: socket.socket, key: str, listens: bool) -> None:
    """Prove the key to the other end, and have it proven. Raises RefusedError or OSError."""
    sock.settimeout(GREETING_WAIT)
    mine = os.urandom(16).hex()
    sock.sendall(mine.encode() + b"\n")
    theirs = _line(sock, 32)
    ours, other = ("listens", "calls") if listens else ("calls", "listens")
    sock.sendall(_proof(key, ours, mine, theirs).encode() + b"\n")
    if not hmac.compare_digest(_line(sock, 64), _proof(key, other, theirs, mine)):
        raise RefusedError()
    # Blocking, with the kernel's own limits: one call then takes a whole piece, however small the packets are.
    sock.settimeout(None)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 1, 0))
    with contextlib.suppress(OSError):  # a Unix socket, which a tunnel ends in, has no such thing
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _proof(key: str, end: str, mine: str, theirs: str) -> str:
    return hmac.new(key.encode(), ("%s %s %s" % (end, mine, theirs)).encode(), hashlib.sha256).hexdigest()


def _line(sock: socket.socket, length: int) -> str:
    """A line of exactly so many characters."""
    said = b""
    while len(said) < length + 1:
        piece = sock.recv(length + 1 - len(said))
        if not piece:
            raise RefusedError()
        said += piece
    if said[-1:] != b"\n":
        raise RefusedError()
    return said[:-1].decode("ascii", "replace")


def serve_parts(call: Call, sock: socket.socket, paths: List[str], pace: Pace, sent: Callable[[int], None]) -> None:
    """Answer requests until the other end is done. ``paths`` are the files by their number in the manifest."""
    opened: Dict[int, int] = {}
    rest = b""
    try:
        while True:
            while b"\n" not in rest:
                call.check()
                with contextlib.suppress(BlockingIOError):
                    piece = sock.recv(65536)
                    if not piece:
                        return
                    rest += piece
                if len(rest) > 100 * LINE:
                    raise RefusedError()
            line, _, rest = rest.partition(b"\n")
            wanted = json.loads(line.decode())
            number, offset, length = int(wanted["file"]), int(wanted["offset"]), int(wanted["length"])
            if not 0 <= number < len(paths):
                raise RefusedError()
            if number not in opened:
                opened[number] = os.open(paths[number], os.O_RDONLY)
            _send(call, sock, opened[number], (offset, offset + length), pace, sent)
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


def _send(
    call: Call, sock: socket.socket, file: int, span: Tuple[int, int], pace: Pace, sent: Callable[[int], None]
) -> None:
    """Bytes of a file; the kernel copies them itself."""
    offset, end = span
    moved = time.monotonic()
    while offset < end:
        call.check()
        most = min(pace.chunk(), end - offset)
        pace.wait(most, call)
        try:
            count = os.sendfile(sock.fileno(), file, offset, most)
        except BlockingIOError:
            if time.monotonic() - moved > STALLED:
                raise OSError("the other end takes nothing any more") from None
            continue
        if count == 0:
            raise OpError("a file became shorter while it was sent")
        offset, moved = offset + count, time.monotonic()
        sent(count)


def ask(sock: socket.socket, file: int, offset: int, length: int) -> None:
    """Ask for bytes of a file."""
    sock.sendall(json.dumps({"file": file, "offset": offset, "length": length}).encode() + b"\n")


def take(call: Call, sock: socket.socket, view: memoryview) -> int:
    """Some of the bytes that were asked for, as many as the view has room for unless they come slowly.

    Raises OSError when the other end is gone or silent.
    """
    end = time.monotonic() + STALLED
    while True:
        call.check()
        try:
            count = sock.recv_into(view, len(view), socket.MSG_WAITALL)
        except BlockingIOError:
            if time.monotonic() > end:
                raise OSError("nothing came for %d s" % STALLED) from None
            continue
        if count == 0:
            raise OSError("the other end closed the connection")
        return count
