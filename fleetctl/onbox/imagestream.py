"""An image from one box to another: `save` of one box's engine into `load` of the other's, over one connection.

Either end may listen, on one address and a port that the kernel chooses. Both prove that they know a key that was made
for this transfer alone (:func:`fleetctl.onbox.partswire.greet`). What arrived is the right image if it has the right
ID: that is a checksum over its configuration, which has those of its layers.
"""

import contextlib
import os
import socket
import subprocess
import threading
import time
from typing import IO, Any, Dict, List, Optional, cast

from fleetctl.onbox.main import Call, OpError, environment, op
from fleetctl.onbox.partsums import Progress, behind
from fleetctl.onbox.partswire import Pace, RefusedError, greet

CONNECT = 5.0
PIECE = 2**20
SILENT = 900.0  # seconds without a byte: an engine that saves a large image writes nothing for a while
WORDS = 2000  # bytes of what an engine says when it fails


@op("image_send")
def image_send(
    call: Call, engine: str, identity: str, own: str, peer: str, key: str, limit: Optional[float], wait: float
) -> Dict[str, Any]:
    """Send an image to one peer, which calls within ``wait`` seconds. The event ``port`` says where.

    ``limit`` in bytes/s. Returns ``sent`` bytes.
    """
    with contextlib.closing(_listened(call, own, peer, key, wait, sends=True)) as sock:
        return {"sent": _save(call, engine, identity, sock, Pace(limit))}


@op("image_receive")
def image_receive(
    call: Call, engine: str, own: str, peer: str, port: int, key: str, total: int, wait: float = 0.0
) -> Dict[str, Any]:
    """Take an image of about ``total`` bytes from a peer that sends it; with port 0 this end listens, for ``wait`` s.

    Returns ``reached``: false where the peer cannot be called from here, and then ``why``; else ``received`` bytes.
    """
    if port:
        try:
            sock = socket.create_connection((peer, port), CONNECT, (own, 0))
        except OSError as error:
            return {"reached": False, "why": error.strerror or "no answer"}
        try:
            greet(sock, key, listens=False)
        except (OSError, RefusedError):
            sock.close()
            raise OpError("%s did not prove that it is the box that was to send" % peer) from None
    else:
        sock = _listened(call, own, peer, key, wait, sends=False)
    with contextlib.closing(sock):
        return {"reached": True, "received": _load(call, engine, sock, total)}


def _listened(call: Call, own: str, peer: str, key: str, wait: float, *, sends: bool) -> socket.socket:
    """The connection of the one who may call. Whoever else comes is turned away."""
    family = socket.AF_INET6 if ":" in own else socket.AF_INET
    try:
        listener = socket.create_server((own, 0), family=family)
    except OSError as error:
        raise OpError("cannot listen on %s: %s" % (own, error.strerror or error)) from None
    end = time.monotonic() + wait
    with listener:
        listener.settimeout(0.2)
        call.event(port=listener.getsockname()[1])
        while time.monotonic() < end:
            call.check()
            try:
                sock, who = listener.accept()
            except OSError:
                continue
            try:
                if who[0] == peer:
                    greet(sock, key, listens=sends)
                    return sock
            except (OSError, RefusedError):
                pass
            sock.close()
    raise OpError("%s did not call within %g s" % (peer, wait))


class Program:
    """A program of the box. It is killed when the block ends early, or when the call is cancelled."""

    def __init__(self, call: Call, argv: List[str], **pipes: Any) -> None:
        self._call = call
        self._over = threading.Event()
        self._said = b""
        streams: Dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **pipes}
        try:
            self.process = subprocess.Popen(
                argv, stderr=subprocess.PIPE, env=environment(), preexec_fn=behind, **streams
            )
        except OSError as error:
            raise OpError("cannot start %s: %s" % (argv[0], error.strerror or error)) from None
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        threading.Thread(target=self._watch, daemon=True).start()

    def _listen(self) -> None:
        for line in cast(IO[bytes], self.process.stderr):
            self._said = (self._said + line)[-WORDS:]

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            if self._call.cancelled.is_set():
                self.process.kill()
                return

    def ended(self, failed: str) -> None:
        """Wait for its end. OpError with what it said when that is not a good one."""
        status = self.process.wait()
        self._listener.join(1.0)
        self._call.check()
        if status != 0:
            words = " ".join(self._said.decode("utf-8", "replace").split())[-300:]
            raise OpError("%s: %s" % (failed, words or "status %d" % status))

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.process.kill()
        self.process.wait()


def _save(call: Call, engine: str, identity: str, sock: socket.socket, pace: Pace) -> int:
    sent = 0
    with Program(call, [engine, "save", identity], stdout=subprocess.PIPE) as program:
        source = cast(IO[bytes], program.process.stdout).fileno()
        while True:
            piece = os.read(source, pace.chunk())
            if not piece:
                break
            pace.wait(len(piece), call)
            _send(call, sock, piece)
            sent += len(piece)
        program.ended("%s cannot save %s" % (engine, identity[:19]))
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
    return sent


def _send(call: Call, sock: socket.socket, piece: bytes) -> None:
    rest, moved = memoryview(piece), time.monotonic()
    while rest:
        call.check()
        try:
            count = sock.send(rest)
        except BlockingIOError:
            if time.monotonic() - moved > SILENT:
                raise OpError("sending broke off: the other box takes nothing any more") from None
            continue
        except OSError as error:
            raise OpError("sending broke off: %s" % (error.strerror or error)) from None
        rest, moved = rest[count:], time.monotonic()


def _load(call: Call, engine: str, sock: socket.socket, total: int) -> int:
    progress = Progress(call, total, "receiving")
    buffer = memoryview(bytearray(PIECE))
    heard = time.monotonic()
    with Program(call, [engine, "load"], stdin=subprocess.PIPE) as program:
        goal = cast(IO[bytes], program.process.stdin)
        with contextlib.suppress(BrokenPipeError), goal:  # it ended early, and says why
            while True:
                call.check()
                try:
                    count = sock.recv_into(buffer)
                except BlockingIOError:
                    if time.monotonic() - heard > SILENT:
                        raise OpError("receiving broke off: nothing came for %d s" % SILENT) from None
                    continue
                except OSError as error:
                    raise OpError("receiving broke off: %s" % (error.strerror or error)) from None
                if not count:
                    break
                heard = time.monotonic()
                goal.write(buffer[:count])
                progress.add(count)
        program.ended("%s cannot load what arrived" % engine)
    return progress.done
