"""Measuring a network between two boxes: one listens for one caller, the other sends, receives and asks for echoes.

The listener is on one address and a port that the kernel chooses, talks only to who knows the token, and ends itself.
"""

import contextlib
import hmac
import json
import os
import socket
import threading
import time
from typing import Any, Dict, List, Optional

from fleetctl.onbox.main import Call, OpError, op

PIECE = 1 << 20  # bytes sent or received at a time: the kernel copies them without Python's lock
MOST_STREAMS, MOST_SECONDS, MOST_ROUNDS = 16, 30.0, 20_000
GREETING = 200  # bytes that a caller has to say who it is and what it wants
GREETING_WAIT = 3.0  # seconds it has for that
SMALL = 64  # bytes of an echo
STALLED = 10.0  # seconds without a byte after which a stream is given up


@op("bandwidth_serve")
def bandwidth_serve(call: Call, address: str, token: str, limit: float) -> Dict[str, Any]:
    """Listen on an address of this box until the caller says that it is done, for at most ``limit`` seconds.

    The event ``port`` names the port. Returns how many callers did not know the token.
    """
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family, backlog=MOST_STREAMS)
    except OSError as error:
        raise OpError("cannot listen on %s: %s" % (address, error.strerror or error)) from None
    end = time.monotonic() + limit
    over = threading.Event()
    refused: List[str] = []
    room = threading.BoundedSemaphore(2 * MOST_STREAMS)
    with listener:
        listener.settimeout(0.2)
        call.event(port=listener.getsockname()[1])
        while not over.is_set() and time.monotonic() < end and not call.cancelled.is_set():
            try:
                sock, who = listener.accept()
            except OSError:
                continue
            if not room.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(target=_attend, args=(sock, str(who[0]), token, over, refused, room), daemon=True).start()
    call.check()
    return {"refused": refused[:10], "ended": over.is_set()}


def _attend(
    sock: socket.socket,
    who: str,
    token: str,
    over: threading.Event,
    refused: List[str],
    room: threading.BoundedSemaphore,
) -> None:
    try:
        with sock:
            wanted = _greeting(sock, token)
            if wanted is None:
                refused.append(who)
                return
            sock.settimeout(STALLED)
            if wanted["mode"] == "end":
                over.set()
            elif wanted["mode"] == "echo":
                _echo(sock)
            elif wanted["mode"] == "sink":
                sock.sendall(_line(receive(sock)))
            elif wanted["mode"] == "source":
                send(sock, min(MOST_SECONDS, float(wanted["seconds"])))
    except OSError:
        pass  # the caller went away, and knows it
    finally:
        room.release()


def _greeting(sock: socket.socket, token: str) -> Optional[Dict[str, Any]]:
    """What a caller wants; None for one that does not know the token or says nothing in time."""
    sock.settimeout(GREETING_WAIT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    said = b""
    try:
        while not said.endswith(b"\n"):
            piece = sock.recv(1)  # and no more: what follows it is part of the measurement
            if not piece or len(said) >= GREETING:
                return None
            said += piece
        known, _, rest = said.partition(b" ")
        if not hmac.compare_digest(known, token.encode()):
            return None
        wanted = json.loads(rest.decode())
        return wanted if isinstance(wanted, dict) and "mode" in wanted else None
    except (OSError, ValueError):
        return None


def _echo(sock: socket.socket) -> None:
    while True:
        data = sock.recv(SMALL)
        if not data:
            return
        sock.sendall(data)


def _line(told: Dict[str, Any]) -> bytes:
    return json.dumps(told).encode() + b"\n"


def receive(sock: socket.socket) -> Dict[str, Any]:
    """Take all that comes until the sender ends: ``bytes`` and ``seconds`` from the first of them, and ``cpu``."""
    buffer = bytearray(PIECE)
    total, before = 0, cpu_times()
    count = sock.recv_into(buffer)
    began, busy = time.monotonic(), time.thread_time()
    while count:
        count = sock.recv_into(buffer)
        total += count
    return _measured(total, began, busy, before)


def send(sock: socket.socket, seconds: float) -> Dict[str, Any]:
    """Send for so long, and say that this is all. The same as :func:`receive` returns."""
    data = os.urandom(PIECE)
    before, began, busy, total = cpu_times(), time.monotonic(), time.thread_time(), 0
    while time.monotonic() - began < seconds:
        sock.sendall(data)
        total += PIECE
    told = _measured(total, began, busy, before)
    sock.shutdown(socket.SHUT_WR)
    return told


def _measured(total: int, began: float, busy: float, before: List[List[int]]) -> Dict[str, Any]:
    """``cpu``: share of one CPU that this stream took; ``busiest``: how busy the busiest CPU of the box was."""
    seconds = max(1e-6, time.monotonic() - began)
    return {
        "bytes": total,
        "seconds": seconds,
        "cpu": round((time.thread_time() - busy) / seconds, 3),
        "busiest": busiest(before, cpu_times()),
    }


def cpu_times(path: str = "/proc/stat") -> List[List[int]]:
    """Of each CPU: ticks in all, and idle ones."""
    try:
        with open(path, encoding="utf-8") as source:
            rows = [
                [int(word) for word in line.split()[1:9]] for line in source if line[:3] == "cpu" and line[3] != " "
            ]
    except (OSError, ValueError):
        return []
    return [[sum(row), row[3] + row[4]] for row in rows]


def busiest(before: List[List[int]], after: List[List[int]]) -> Optional[float]:
    """Share of the time that the busiest CPU was busy; None where that cannot be told."""
    shares = []
    for one, two in zip(before, after):  # noqa: B905 - strict= came with Python 3.10
        if two[0] > one[0]:
            shares.append(1 - (two[1] - one[1]) / (two[0] - one[0]))
    return round(max(shares), 3) if shares else None


@op("bandwidth_drive")
def bandwidth_drive(
    call: Call, own: str, peer: str, port: int, token: str, phases: List[Dict[str, Any]]
) -> List[Dict[str, Any]]:
    """Measure against a box that serves: each phase has ``mode``, ``seconds`` and ``streams``.

    ``echo`` returns the microseconds of round trips (``least``, ``median``, ``p99``, ``count``); ``sink`` (from here to
    there) and ``source`` (the other way) what each stream moved: see :func:`receive`.
    """

    def connected(mode: str, seconds: float) -> socket.socket:
        try:
            sock = socket.create_connection((peer, port), 5.0, (own, 0))
        except OSError as error:
            why = error.strerror or "no answer"
            raise OpError("cannot reach port %d of %s from %s: %s" % (port, peer, own, why)) from None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(STALLED)
        sock.sendall(token.encode() + b" " + _line({"mode": mode, "seconds": seconds}))
        return sock

    results = []
    reached = False
    try:
        for phase in phases:
            call.check()
            call.event(phase=phase["mode"], streams=phase.get("streams", 1))
            seconds = min(MOST_SECONDS, float(phase["seconds"]))
            if phase["mode"] == "echo":
                with connected("echo", seconds) as sock:
                    reached = True
                    results.append(_round_trips(call, sock, seconds))
            else:
                streams = max(1, min(MOST_STREAMS, int(phase["streams"])))
                socks = [connected(phase["mode"], seconds) for _ in range(streams)]
                reached = True
                results.append(_streams(socks, phase["mode"], seconds))
    except OSError as error:
        raise OpError("the measurement with %s broke off: %s" % (peer, error.strerror or error)) from None
    finally:
        if reached:
            with contextlib.suppress(OSError, OpError):  # it ends by itself
                connected("end", 0).close()
    return results


def _round_trips(call: Call, sock: socket.socket, seconds: float) -> Dict[str, Any]:
    data = b"x" * SMALL
    took: List[int] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end and len(took) < MOST_ROUNDS:
        began = time.perf_counter_ns()
        sock.sendall(data)
        rest = SMALL
        while rest:
            piece = sock.recv(rest)
            if not piece:
                raise OpError("the other box closed the connection")
            rest -= len(piece)
        took.append(time.perf_counter_ns() - began)
        if len(took) % 512 == 0:
            call.check()
    took.sort()
    micro = [round(took[min(len(took) - 1, int(len(took) * share))] / 1000, 1) for share in (0.0, 0.5, 0.99)]
    return {"least": micro[0], "median": micro[1], "p99": micro[2], "count": len(took)}


def _streams(socks: List[socket.socket], mode: str, seconds: float) -> Dict[str, Any]:
    """Several streams at once, in one direction. What the receiving end measured counts."""
    found: List[Dict[str, Any]] = []
    failed: List[OSError] = []

    def one(sock: socket.socket) -> None:
        try:
            with sock:
                if mode == "sink":
                    mine = send(sock, seconds)
                    sock.settimeout(STALLED)
                    theirs = json.loads(sock.makefile("rb").readline().decode())
                    found.append({"received": theirs, "here": mine, "there": theirs})
                else:
                    mine = receive(sock)
                    found.append({"received": mine, "here": mine, "there": None})
        except (OSError, ValueError) as error:
            failed.append(error if isinstance(error, OSError) else OSError(0, "the other box ended early"))

    threads = [threading.Thread(target=one, args=(sock,), daemon=True) for sock in socks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return {"streams": found}
