"""The page /metrics of an engine: whole or not at all, in time, and the lines of it that are counted."""

import contextlib
import http.client
import socket
import threading
import time
from typing import List, Set

from fleetctl.onbox.reaching import connection_to

LARGEST_PAGE = 4 << 20  # bytes of /metrics that are read; vLLM's has some 100,000
MOST_KEPT = 256 << 10  # bytes of it that travel


def page_of(address: str, port: int, deadline: float, path: str = "/metrics") -> bytes:
    """The page /metrics of an engine, or another one. ValueError for one that is too large,
    OSError when it is not there in time.

    An engine that sends a byte now and then keeps nobody longer than one that sends none. A page that was cut off, as
    by the end of its engine, is none: its last number would be another one.
    """
    connection = connection_to(address, port, max(0.05, deadline - time.monotonic()))
    connection.connect()
    over = threading.Timer(max(0.05, deadline - time.monotonic()), _cut, [connection.sock])
    over.daemon = True
    over.start()
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError("GET %s is answered with %d" % (path, answer.status))
        whole = answer.length  # None: it does not say
        parts: List[bytes] = []
        size = 0
        while True:
            part = answer.read1(65536)
            if time.monotonic() > deadline:
                raise socket.timeout("timed out")
            if not part:
                page = b"".join(parts)
                ends = path != "/metrics" or not page or page.endswith(b"\n")
                if (whole is not None and size != whole) or not ends:
                    raise ValueError("its %s broke off" % path)
                return page
            parts.append(part)
            size += len(part)
            if size > LARGEST_PAGE:
                raise ValueError("its %s has more than %d MiB" % (path, LARGEST_PAGE >> 20))
    except (OSError, http.client.HTTPException):
        if time.monotonic() > deadline:
            raise socket.timeout("timed out") from None
        raise
    finally:
        over.cancel()
        connection.close()


def _cut(sock: socket.socket) -> None:
    """End the wait for an answer whose every byte comes just in time: its thread would stay for hours."""
    with contextlib.suppress(OSError):  # it is over already
        sock.shutdown(socket.SHUT_RDWR)


def chosen(page: bytes, names: Set[str]) -> str:
    """The lines of a page whose sample has one of the names. ValueError when they are too many."""
    wanted = {name.encode() for name in names}
    kept_lines = [line for line in page.split(b"\n") if line[:1] != b"#" and _name(line) in wanted]
    text = b"\n".join(kept_lines)
    if len(text) > MOST_KEPT:
        raise ValueError("its /metrics has more than %d KiB of what is counted" % (MOST_KEPT >> 10))
    return text.decode("utf-8", "replace")


def _name(line: bytes) -> bytes:
    brace = line.find(b"{")
    return line[:brace] if brace >= 0 else line.split(b" ", 1)[0]
