"""A conversation with the program on a box: many calls at once over one channel."""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import select
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from fleetctl.remote.errors import ConnectionLost, OpFailed
from fleetctl.remote.library import paramiko
from fleetctl.remote.program import Running, exit_status

BEAT = 5.0  # seconds between two signs of life
SILENCE_LIMIT = 15.0  # seconds without an answer to one, after which the connection is taken for dead
ERRORS_KEPT = 8192  # bytes of the program's standard error that are kept for the message when it ends

_Answers = queue.SimpleQueue[dict[str, Any] | None]


class Session:
    """Sends requests, and sorts the answers to whoever waits for them."""

    def __init__(self, box: str, running: Running, end: Callable[[], None]) -> None:
        self._box = box
        self._channel = running.channel
        self._end = end
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[str, _Answers]] = {}
        self._state = threading.Lock()
        self._sending = threading.Lock()
        self._lost: str | None = None
        self._errors = b""
        self._beat_sent: float | None = None
        self._thread = threading.Thread(target=self._read, args=(running.ahead,), name=f"{box}-answers", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether the connection is gone."""
        return self._lost is not None

    def call(
        self,
        op: str,
        args: dict[str, Any],
        timeout: float | None,
        on_event: Callable[[dict[str, Any]], None] | None,
    ) -> Any:
        """Ask for an op and wait. ``on_event`` runs in the caller's thread. Raises OpFailed or ConnectionLost."""
        answers: _Answers = queue.SimpleQueue()
        number = self._ask(op, args, answers)
        limit = None if timeout is None else time.monotonic() + timeout
        answered = False
        try:
            while True:
                message = answers.get(timeout=None if limit is None else max(0.0, limit - time.monotonic()))
                if message is not None and "event" in message:
                    if on_event is not None:
                        on_event(message["event"])
                    continue
                answered = True
                if message is None:
                    raise ConnectionLost(self._box, self._lost or "the connection is gone")
                if "error" in message:
                    error = message["error"]
                    raise OpFailed(self._box, op, error["kind"], error["message"], error.get("detail"))
                return message["result"]
        except queue.Empty:
            raise OpFailed(self._box, op, "Timeout", f"{op} did not answer within {timeout:g} s") from None
        finally:
            with self._state:
                self._waiting.pop(number, None)
            if not answered:  # out of time, Ctrl-C, or on_event does not like what it sees: nobody waits any more
                self._cancel(number)

    def cancel(self, ops: Collection[str] | None) -> None:
        """Cancel the calls under way (of these ops only); each ends with OpFailed of the kind ``Cancelled``."""
        with self._state:
            numbers = [number for number, (op, _) in self._waiting.items() if ops is None or op in ops]
        for number in numbers:
            self._cancel(number)

    def close(self) -> None:
        """End the program and the connection; calls under way get ConnectionLost."""
        self._lose("the connection was closed")
        with contextlib.suppress(OSError, EOFError):
            self._channel.shutdown_write()
        self._end()

    def _ask(self, op: str, args: dict[str, Any], answers: _Answers) -> int:
        number = next(self._numbers)
        data = _line({"id": number, "op": op, "args": args})
        with self._sending:  # held from here on, so that a cancel cannot overtake its request
            with self._state:
                if self._lost is not None:
                    raise ConnectionLost(self._box, self._lost)
                self._waiting[number] = (op, answers)
            try:
                self._put(data)
            except BaseException:
                with self._state:
                    self._waiting.pop(number, None)
                raise
        return number

    def _cancel(self, number: int) -> None:
        with contextlib.suppress(ConnectionLost), self._sending:
            self._put(_line({"cancel": number}))

    def _put(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise ConnectionLost(self._box, self._lost or f"the connection is gone: {error}") from error

    def _read(self, ahead: bytes) -> None:
        """The reading thread: takes lines apart, beats, and tells everybody when it is over."""
        pieces: list[bytes] = []
        data = ahead
        next_beat = time.monotonic() + BEAT
        reason = ""
        channel = self._channel
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        try:
            while True:
                pieces.append(data)
                if b"\n" in data:
                    *lines, rest = b"".join(pieces).split(b"\n")
                    pieces = [rest]
                    for line in lines:
                        self._sort(json.loads(line))
                now = time.monotonic()
                if now >= next_beat:
                    next_beat = now + BEAT
                    if not self._beat(now):
                        reason = f"no sign of life for {SILENCE_LIMIT:g} s"
                        break
                data = b""
                poll.poll(max(0.0, next_beat - now) * 1000)
                if channel.recv_stderr_ready():
                    self._errors = (self._errors + channel.recv_stderr(65536))[-ERRORS_KEPT:]
                if channel.recv_ready():
                    data = channel.recv(1 << 20)
                elif channel.eof_received or channel.closed:
                    if channel.recv_ready() or channel.recv_stderr_ready():
                        continue
                    break
        except (OSError, EOFError, ValueError, LookupError, TypeError, paramiko.SSHException) as error:
            reason = f"{type(error).__name__}: {error}"
        self._lose(reason or self._why())
        self._end()

    def _sort(self, message: dict[str, Any]) -> None:
        if "beat" in message:
            self._beat_sent = None
            return
        with self._state:
            waiting = self._waiting.get(message["id"])
        if waiting is not None:  # else nobody waits any more: it was cancelled
            waiting[1].put(message)

    def _beat(self, now: float) -> bool:
        """Send a sign of life unless one is on its way; False when that one was not answered in time."""
        if self._beat_sent is not None:
            return now - self._beat_sent < SILENCE_LIMIT
        if not self._sending.acquire(blocking=False):
            return True  # a long request is being sent; the box hears that too
        try:
            self._beat_sent = now
            self._channel.sendall(b'{"beat":1}\n')
        finally:
            self._sending.release()
        return True

    def _why(self) -> str:
        """Why there is nothing more to read."""
        status = exit_status(self._channel)
        said = self._errors.decode("utf-8", "replace").strip()[-500:]
        if status is not None:
            reason = f"the program on the box ended (status {status})"
        elif self._channel.get_transport().is_active():
            reason = "the program on the box ended"
        else:
            reason = "the connection is gone"
        return reason + (f": {said}" if said else "")

    def _lose(self, reason: str) -> None:
        with self._state:
            self._lost = self._lost or reason
            waiting = list(self._waiting.values())
        for _, answers in waiting:
            answers.put(None)


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"
