"""Waiting on the box itself, where looking is cheap: for memory and ports to be free, for an engine to be ready."""

import os
import signal
import socket
import time
import urllib.error
import urllib.request
from typing import Any, Dict, List, Optional

from fleetctl.onbox.main import Call, CancelledError, OpError, op
from fleetctl.onbox.ports import listeners, port_owners
from fleetctl.onbox.units import engine_processes, logs, pushed_out_by, states

GIB = 1024**3
LOOK_EVERY = 0.05
GRACE = 2.0  # seconds that a stopped engine's left-over processes get before SIGKILL
PORT_GRACE = 5.0  # seconds that a port may be taken by somebody who is not being stopped
LEVEL_LOOKS = 5  # memory has levelled off when this many looks in a row agree
LEVEL_WITHIN = 0.005  # as a share of MemTotal


def meminfo() -> Dict[str, int]:
    """/proc/meminfo in bytes."""
    with open("/proc/meminfo") as source:
        rows = [line.split() for line in source]
    return {row[0].rstrip(":"): int(row[1]) * (1024 if len(row) > 2 else 1) for row in rows}


def _may_end(unit: Optional[str]) -> bool:
    """A left-over process is fleetctl's to end unless it is in a service that is not fleetctl's."""
    return unit is None or unit.startswith("fleetctl-") or unit.endswith(".scope")


@op("await_free")
def await_free(call: Call, engines: List[str], ports: List[int], need: int, limit: float) -> Dict[str, Any]:
    """Wait until no process of the engines is left, their ports are free and available memory has levelled off.

    ``engines`` are values of FLEETCTL_ENGINE. Processes of theirs that outlive their unit (an engine core whose parent
    was killed) are ended after a grace. ``need`` are the bytes that the next engine will ask for: OpError when the box
    has levelled off below that, because an engine that starts then fails, or worse, does not.
    """
    start = time.monotonic()
    killed: List[Dict[str, Any]] = []
    looks: List[int] = []
    total = meminfo()["MemTotal"]
    freed_from = meminfo()["MemAvailable"]
    last_event = 0.0
    while True:
        waited = time.monotonic() - start
        left = [p for p in engine_processes() if p["engine"] in engines]
        busy = sorted(listeners(ports))
        available = meminfo()["MemAvailable"]
        looks = [*looks[-LEVEL_LOOKS:], available]
        level = len(looks) > LEVEL_LOOKS and max(looks) - min(looks) <= LEVEL_WITHIN * total
        if not left and not busy and level:
            if available < need:
                raise OpError(
                    "%.1f GiB are available and the engine asks for %.1f GiB: something else holds the memory"
                    % (available / GIB, need / GIB)
                )
            return {
                "waited": round(waited, 2),
                "available": available,
                "freed": available - freed_from,
                "killed": killed,
            }
        if call.cancelled.is_set():
            raise CancelledError("waiting for free memory was cancelled")
        taken = _taken(busy) if busy and waited > min(PORT_GRACE, limit) else []
        if taken and not left:
            raise OpError("; ".join(taken) + ": stop it, or list its unit under superseded: in fleet.yaml")
        if waited > limit:
            parts = ["%s (pid %d of %s)" % (p["comm"], p["pid"], p["unit"] or "no unit") for p in left] + taken
            raise OpError("the box is not free after %.0f s: %s" % (waited, "; ".join(parts) or "memory keeps moving"))
        if waited > GRACE:
            for process in left:
                if not _may_end(process["unit"]):
                    continue
                if process["pid"] not in [done["pid"] for done in killed]:
                    try:
                        os.kill(process["pid"], signal.SIGKILL)
                    except ProcessLookupError:
                        continue
                    killed.append(process)
        if waited - last_event >= 0.5:
            last_event = waited
            call.event(available=available, processes=len(left), ports=busy, waited=round(waited, 1))
        time.sleep(LOOK_EVERY)


def _taken(ports: List[int]) -> List[str]:
    return [
        "port %s is taken by %s (pid %d, %s)" % (port, owner["comm"], owner["pid"], owner["unit"] or "no unit")
        for port, owner in port_owners(ports).items()
    ]


def probe(url: str, timeout: float) -> Optional[int]:
    """HTTP status of a GET; None when nothing answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, socket.timeout, ValueError):
        return None


def _ended(call: Call, unit: str, state: Dict[str, Any]) -> str:
    others = pushed_out_by(call, unit)
    if others:
        return (
            "%s was stopped because %s was started, which cannot share the box with it: "
            "something starts it again, list that under superseded: in fleet.yaml too" % (unit, ", ".join(others))
        )
    return "%s ended while it was loading (%s, exit status %s)" % (unit, state["result"], state["status"])


@op("await_ready")
def await_ready(call: Call, unit: str, engine: str, url: Optional[str], limit: float) -> Dict[str, Any]:
    """Wait until a unit runs the engine build named and, when ``url`` is given, its health answers 200.

    Without ``url`` (a follower of a split) the unit has to be active. Fails at once when the unit fails, stops or
    restarts: an engine that dies while it loads is not waited for.
    """
    start = time.monotonic()
    next_look = 0.0
    next_event = 0.5
    base: Optional[int] = None
    state: Dict[str, Any] = {}
    while True:
        waited = time.monotonic() - start
        healthy = probe(url, 2.0) == 200 if url else False
        if healthy or waited >= next_look:
            next_look = waited + (1.0 if url else 0.1)
            state = states(call, [unit])[unit]
            base = state["restarts"] if base is None else base
            # With a job waiting the start is still to come: a unit in conflict has to stop first.
            down = state["active"] in ("failed", "inactive") and not state["job"]
            if down or state["sub"] == "auto-restart" or state["restarts"] > base:
                raise OpError(_ended(call, unit, state))
            right = state["engine"] == engine
            if right and (healthy or (url is None and state["active"] == "active")):
                return {
                    "waited": round(time.monotonic() - start, 2),
                    "ready_at": time.time(),
                    "pid": state["pid"],
                }
        if call.cancelled.is_set():
            raise CancelledError("waiting for %s was cancelled" % unit)
        if waited > limit:
            raise OpError("%s is not ready after %.0f s (limit %.0f s)" % (unit, waited, limit))
        if waited >= next_event:
            next_event = waited + 1.0
            call.event(
                waited=round(waited, 1),
                sub=state.get("sub", ""),
                available=meminfo()["MemAvailable"],
                log="".join(logs(call, unit, 1))[-200:],
            )
        time.sleep(LOOK_EVERY)
