"""Reading the journal line by line, however long it is."""

import os
import selectors
import subprocess
import time
from typing import Any, Callable, Dict, List, Optional

from fleetctl.onbox.main import Call, CancelledError, environment

PIECE = 1 << 18  # bytes read at a time
LONGEST_LINE = 1 << 16  # bytes; what is longer comes in pieces
EVENT = 1.0  # seconds between two words of progress


def read_back(
    call: Call, unit: str, since: float, take: Callable[[bytes], None], lines: int, limit: float
) -> Dict[str, Any]:
    """Give every line of a unit's journal since a time (epoch seconds) to ``take``, the newest first.

    It ends early after so many lines, or ``limit`` seconds. Returns ``complete``, and ``why`` not (None: it is).
    """
    return read_matching(call, ["--unit", unit], since, take, lines, limit)


def read_matching(
    call: Call, matches: List[str], since: float, take: Callable[[bytes], None], lines: int, limit: float
) -> Dict[str, Any]:
    """As `read_back`, of what journalctl finds by its own ``matches``, such as ``_TRANSPORT=kernel``."""
    argv = ["nice", "journalctl", "--since", "@%d" % since, "--reverse", "-o", "short-unix"]
    argv += ["--no-pager", "--quiet", *matches]
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
    except OSError as error:
        return {"complete": False, "why": "journalctl cannot be run: %s" % (error.strerror or error)}
    try:
        why = _read(call, process, take, lines, time.monotonic() + limit)
    finally:
        process.kill()
        process.communicate()
    return {"complete": why is None, "why": why}


def _read(
    call: Call, process: "subprocess.Popen[bytes]", take: Callable[[bytes], None], most: int, end: float
) -> Optional[str]:
    assert process.stdout is not None and process.stderr is not None
    rest, said = b"", b""
    count = 0
    told = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        while selector.get_map():
            if call.cancelled.is_set():
                raise CancelledError("cancelled")
            now = time.monotonic()
            if now > end:
                return "there was no time for all of it"
            if now - told > EVENT:
                told = now
                call.event(lines=count)
            for key, _ in selector.select(0.1):
                piece = os.read(key.fd, PIECE)
                if not piece:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    said = (said + piece)[:400]
                else:
                    *whole, rest = _split(rest + piece)
                    for line in whole:
                        if count >= most:
                            return "only the newest %d lines were read" % most
                        take(line)
                        count += 1
    if rest:
        take(rest)
    try:
        failed = process.wait(10) != 0
    except subprocess.TimeoutExpired:
        return "journalctl did not end"
    if failed:
        return "journalctl: %s" % (said.decode("utf-8", "replace").strip() or "status %d" % process.returncode)
    return None


def _split(data: bytes) -> List[bytes]:
    lines = data.split(b"\n")
    if len(lines[-1]) > LONGEST_LINE:
        lines.append(b"")
    return lines
