"""The program that fleetctl runs on a box: JSON lines on stdin and stdout, one thread for each request.

It runs as root on whatever python3 the box has (3.8 and later), from the standard library alone, and lives as long as
the connection. Requests are ``{"id": 7, "op": "run", "args": {…}}``; answers are any number of
``{"id": 7, "event": {…}}`` and then one ``{"id": 7, "result": …}`` or ``{"id": 7, "error": {…}}``.
``{"cancel": 7}`` cancels a request, ``{"beat": n}`` is answered at once and shows both sides that the other lives.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import threading
import time
from typing import IO, Any, Callable, Dict, Optional, TypeVar

SILENCE_LIMIT = 60.0  # seconds without a line from the client after which it is taken for gone; it beats every 5 s
LAST_WORDS = 5.0  # seconds that running requests get to end by themselves once the client is gone

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class OpError(Exception):
    """An expected failure of an op, as one plain sentence for the operator."""


class CancelledError(Exception):
    """The client cancelled the request, or went away."""


class Call:
    """One request while it is worked on: where progress goes, and whether anybody still wants the result."""

    def __init__(self, number: int, send: Callable[[Dict[str, Any]], None]) -> None:
        self.number = number
        self.cancelled = threading.Event()
        self._send = send

    def event(self, **data: Any) -> None:
        """Send progress to the client."""
        self._send({"id": self.number, "event": data})

    def check(self) -> None:
        """Raise CancelledError when the request was cancelled."""
        if self.cancelled.is_set():
            raise CancelledError("cancelled")


Function = TypeVar("Function", bound=Callable[..., Any])

OPS: Dict[str, Callable[..., Any]] = {}


def op(name: str) -> Callable[[Function], Function]:
    """Register a function ``(call, **args) -> JSON value`` as the op of that name."""

    def register(function: Function) -> Function:
        OPS[name] = function
        return function

    return register


@op("ping")
def ping(call: Call) -> Dict[str, Any]:
    """Nothing but an answer."""
    return {}


class Program:
    """Reads requests from one stream, answers on another; ``index`` says which module has which op.

    ``check`` raises OpError for what this client may not ask for.
    """

    def __init__(
        self,
        requests: IO[bytes],
        answers: int,
        index: Dict[str, str],
        check: Callable[[str, Dict[str, Any]], None] = lambda name, args: None,
    ) -> None:
        self._requests = requests
        self._answers = answers
        self._index = index
        self._check = check
        self._lock = threading.Lock()
        self._calls: Dict[int, Call] = {}
        self._threads: Dict[int, threading.Thread] = {}
        self._heard = time.monotonic()

    def serve(self) -> None:
        """Work until the client is gone. Running requests are then cancelled and get a short while to end."""
        threading.Thread(target=self._watch_silence, daemon=True).start()
        try:
            for line in self._requests:
                self._heard = time.monotonic()
                self._take(json.loads(line.decode("utf-8")))
        except OSError:
            pass  # the stream broke; that is an end like any other
        self._end()

    def _take(self, message: Dict[str, Any]) -> None:
        if "beat" in message:
            self._send(message)
        elif "cancel" in message:
            call = self._calls.get(message["cancel"])
            if call is not None:
                call.cancelled.set()
        else:
            number = message["id"]
            call = Call(number, self._send)
            thread = threading.Thread(
                target=self._work, args=(call, message["op"], message.get("args", {})), daemon=True
            )
            self._calls[number] = call
            self._threads[number] = thread
            thread.start()

    def _work(self, call: Call, name: str, args: Dict[str, Any]) -> None:
        try:
            self._check(name, args)
            if name not in OPS and name in self._index:
                importlib.import_module(self._index[name])
            if name not in OPS:
                raise OpError("this version has no op " + repr(name))
            answer: Dict[str, Any] = {"id": call.number, "result": OPS[name](call, **args)}
            line = _line(answer)
        except BaseException as error:  # whatever it is, the client has to hear of it or it would wait for ever
            line = _line({"id": call.number, "error": _described(error)})
        finally:
            self._calls.pop(call.number, None)
        self._write(line)
        self._threads.pop(call.number, None)

    def _send(self, message: Dict[str, Any]) -> None:
        self._write(_line(message))

    def _write(self, line: bytes) -> None:
        with self._lock:
            rest = memoryview(line)
            try:
                while rest:
                    rest = rest[os.write(self._answers, rest) :]
            except OSError:
                pass  # nobody listens any more; serve() sees the end of its input and cancels what runs

    def _watch_silence(self) -> None:
        while time.monotonic() - self._heard < SILENCE_LIMIT:
            time.sleep(5)
        self._end()

    def _end(self) -> None:
        for call in list(self._calls.values()):
            call.cancelled.set()
        limit = time.monotonic() + LAST_WORDS
        for thread in list(self._threads.values()):
            thread.join(max(0.0, limit - time.monotonic()))
        os._exit(0)  # threads that are stuck in the kernel must not keep the program


def _line(message: Dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


def _described(error: BaseException) -> Dict[str, Any]:
    if isinstance(error, OpError):
        return {"kind": "OpError", "message": str(error), "detail": None}
    if isinstance(error, CancelledError):
        return {"kind": "Cancelled", "message": "cancelled", "detail": None}
    import traceback  # only here: it costs milliseconds at every start otherwise

    kind = "OSError" if isinstance(error, OSError) else type(error).__name__
    message = str(error) or type(error).__name__
    detail = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {"kind": kind, "message": message, "detail": detail}


def environment(extra: Optional[Dict[str, str]] = None) -> Dict[str, str]:
    """The environment of every command: the same on each box, whatever the login user's start-up files set."""
    import pwd

    user = pwd.getpwuid(os.geteuid())
    clean = {"PATH": PATH, "HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    clean.update({"SHELL": "/bin/sh", "LC_ALL": _language(), "TERM": "dumb"})
    clean.update(extra or {})
    return clean


@functools.lru_cache(maxsize=None)
def _language() -> str:
    """C with UTF-8 where the box has it, so that tools neither translate their output nor spoil file names in it."""
    import locale

    try:
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
        return "C.UTF-8"
    except locale.Error:
        return "C"


def serve(requests: IO[bytes], index: Dict[str, str], *, limited: bool = False) -> None:
    """Take over stdin (already wrapped as ``requests``) and stdout and serve until the client is gone.

    ``limited``: ops do what moves take and no more; see onbox/limits.py.
    """
    answers = take_over_streams()
    if limited:
        Program(requests, answers, index, importlib.import_module("fleetctl.onbox.limits").within).serve()
    else:
        Program(requests, answers, index).serve()


def take_over_streams() -> int:
    """Where answers go: a copy of standard output.


    Children and stray prints must not reach the protocol's streams, so 0 becomes /dev/null and 1 becomes stderr.
    """
    os.chdir("/")
    os.umask(0o022)
    answers = os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return answers
