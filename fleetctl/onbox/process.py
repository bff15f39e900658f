"""The op ``run``: one command from an argv list, with its output, a time limit and a clean end."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from typing import IO, Any, Dict, List, Optional, cast

from fleetctl.onbox.main import Call, CancelledError, OpError, environment, op

OUTPUT_LIMIT = 8 * 1024 * 1024  # bytes of output of one command; more is a mistake and would eat the box's memory
LINGER = 0.5  # seconds to wait for the pipes of a command that ended but left children holding them
GRACE = 1.0  # seconds between SIGTERM and SIGKILL
LOOK = 0.1  # seconds between looks at the clock and at the cancelled event


@op("run")
def run(
    call: Call,
    argv: List[str],
    stdin: str = "",
    timeout: float = 60,
    env: Optional[Dict[str, str]] = None,
) -> Dict[str, Any]:
    """Run a command and return ``{"rc", "out", "err", "s"}``; ``s`` are the seconds it took.

    ``rc`` is negative for a signal. Raises OpError when there is no such program, after ``timeout`` seconds, and when
    the command writes more than OUTPUT_LIMIT bytes; its whole process group is killed then, as on cancel.
    """
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            [os.fsencode(word) for word in argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(env),
            start_new_session=True,
        )
    except FileNotFoundError:
        raise OpError("no program %s here" % argv[0]) from None
    except (OSError, ValueError) as error:
        raise OpError("cannot start %s: %s" % (argv[0], getattr(error, "strerror", None) or error)) from None
    try:
        out, err = _converse(call, process, argv[0], stdin.encode("utf-8", "surrogateescape"), began + timeout, timeout)
    except BaseException:
        _kill(process)
        raise
    return {
        "rc": process.returncode,
        "out": out.decode("utf-8", "replace"),
        "err": err.decode("utf-8", "replace"),
        "s": round(time.monotonic() - began, 4),
    }


def _converse(
    call: Call, process: "subprocess.Popen[bytes]", name: str, stdin: bytes, limit: float, timeout: float
) -> "tuple[bytes, bytes]":
    """Feed stdin and collect both outputs until the command has ended and its pipes are closed."""
    feed, source_out, source_err = (
        cast(IO[bytes], process.stdin),
        cast(IO[bytes], process.stdout),
        cast(IO[bytes], process.stderr),
    )
    taken = {source_out: bytearray(), source_err: bytearray()}
    rest = memoryview(stdin)
    ended: Optional[float] = None
    with feed, source_out, source_err, selectors.DefaultSelector() as selector:
        for source in taken:
            selector.register(source, selectors.EVENT_READ)
        if rest:
            os.set_blocking(feed.fileno(), False)
            selector.register(feed, selectors.EVENT_WRITE)
        else:
            feed.close()
        while len(selector.get_map()) > 0:
            for key, _ in selector.select(LOOK):
                if key.fileobj is feed:
                    rest = _fed(feed, rest)
                    if not rest:
                        selector.unregister(feed)
                        feed.close()
                    continue
                source = cast(IO[bytes], key.fileobj)
                data = os.read(source.fileno(), 65536)
                if not data:
                    selector.unregister(source)
                taken[source] += data
            now = time.monotonic()
            if call.cancelled.is_set():
                raise CancelledError("cancelled")
            if now > limit:
                raise OpError("%s did not end within %g s and was killed" % (name, timeout))
            if sum(len(data) for data in taken.values()) > OUTPUT_LIMIT:
                raise OpError("%s wrote more than %d bytes and was killed" % (name, OUTPUT_LIMIT))
            if process.poll() is not None:
                ended = ended or now
                if now - ended > LINGER:
                    break  # a child that the command left behind holds the pipes; its output is not waited for
        while process.poll() is None:  # the pipes are closed, the command is not: `exec >&-`
            if call.cancelled.wait(0.005):
                raise CancelledError("cancelled")
            if time.monotonic() > limit:
                raise OpError("%s did not end within %g s and was killed" % (name, timeout))
    return bytes(taken[source_out]), bytes(taken[source_err])


def _fed(feed: IO[bytes], rest: memoryview) -> memoryview:
    try:
        return rest[os.write(feed.fileno(), rest[:65536]) :]
    except BlockingIOError:
        return rest
    except BrokenPipeError:
        return memoryview(b"")  # it does not want to read more; that is its right


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End the command's process group: SIGTERM, and SIGKILL for what is left a moment later."""
    _signal(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of it has ended
        os.killpg(group, number)
