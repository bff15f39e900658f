"""HAProxy's runtime API, spoken over its root-only Unix socket."""

import csv
import io
import os
import socket
import struct
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.units import comm_of, unit_of


def ask(path: str, command: str, timeout: float = 5) -> str:
    """Send one command; the answer as text. OpError when HAProxy is not there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout)
        try:
            client.connect(path)
            client.sendall(command.encode() + b"\n")
            parts = []
            while True:
                part = client.recv(65536)
                if not part:
                    break
                parts.append(part)
        except OSError as error:
            raise OpError("HAProxy does not answer on %s: %s" % (path, error)) from None
    return b"".join(parts).decode("utf-8", "replace")


def servers(path: str) -> Dict[str, Dict[str, Any]]:
    """``BACKEND/SERVER`` → status as ``show stat`` words it, and requests running and queued on it.

    ``BACKEND/BACKEND`` has the requests that wait in the backend's shared queue.
    """
    rows = csv.DictReader(io.StringIO(ask(path, "show stat").lstrip("# ")))
    found = {}
    for row in rows:
        if row["svname"] == "FRONTEND":
            continue
        found["%s/%s" % (row["pxname"], row["svname"])] = {
            "status": row["status"],
            "running": int(row["scur"] or 0),
            "queued": int(row["qcur"] or 0),
            "total": int(row["stot"] or 0),
            "weight": int(row["weight"] or 0),
            "check": row.get("check_status", ""),
        }
    return found


def info(path: str) -> Dict[str, str]:
    """``show info`` as a mapping."""
    lines = ask(path, "show info").splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line)


def look(path: str) -> Optional[Dict[str, Any]]:
    """Configuration fingerprint and servers of a running proxy; None when it does not run."""
    try:
        return {"description": info(path).get("description", ""), "servers": servers(path)}
    except OpError:
        return None


def is_up(state: Optional[Dict[str, Any]]) -> bool:
    """The server takes new requests."""
    return state is not None and state["status"].startswith("UP") and state["weight"] > 0


def set_server(path: str, name: str, state: str) -> None:
    """``set server BACKEND/SERVER state ready|drain|maint``; HAProxy answers nothing when it did so."""
    answer = ask(path, "set server %s state %s" % (name, state)).strip()
    if answer:
        raise OpError("HAProxy refused to set %s to %s: %s" % (name, state, answer))


def addresses(path: str, names: List[str]) -> Set[Tuple[str, int]]:
    """IP address and port of the servers named, as the running proxy has them."""
    lines = ask(path, "show servers state").splitlines()
    heads = [line for line in lines if line.startswith("# ")]
    keys = heads[0][2:].split() if heads else []
    words = [line.split() for line in lines if line and not line.startswith("#")]
    rows = [dict(zip(keys, row)) for row in words]  # noqa: B905 - strict= came with Python 3.10
    found = [row for row in rows if "srv_port" in row and "%s/%s" % (row["be_name"], row["srv_name"]) in names]
    return {(row["srv_addr"], int(row["srv_port"])) for row in found}


def former_processes(path: str) -> List[int]:
    """Processes of the proxy's unit that an earlier configuration runs in: they end with their last request."""
    current = int(info(path).get("Pid") or 0)
    unit = unit_of(current)
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != current]
    return [pid for pid in pids if comm_of(pid) == "haproxy" and unit is not None and unit_of(pid) == unit]


def sockets_of(pid: int) -> Set[int]:
    """Inodes of the sockets that a process has open; none when it is gone."""
    inodes = set()
    try:
        for name in os.listdir("/proc/%d/fd" % pid):
            target = os.readlink("/proc/%d/fd/%s" % (pid, name))
            if target.startswith("socket:["):
                inodes.add(int(target[8:-1]))
    except OSError:
        return inodes
    return inodes


def peer(text: str) -> Tuple[str, int]:
    """An address and port as /proc/net/tcp and tcp6 write them (words in the order of this machine)."""
    address, port = text.split(":")
    words = [int(address[i : i + 8], 16) for i in range(0, len(address), 8)]
    raw = struct.pack("=%dI" % len(words), *words)
    if raw[:12] == b"\0" * 10 + b"\xff\xff":
        raw = raw[12:]
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw), int(port, 16)


def running_in_former(path: str, names: List[str]) -> int:
    """Connections to the servers named that processes from before a reload hold: one for each request."""
    mine: Set[int] = set()
    for pid in former_processes(path):
        mine |= sockets_of(pid)
    if not mine:
        return 0
    ends = addresses(path, names)
    count = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as source:
                rows = [line.split() for line in source][1:]
        except OSError:
            continue
        count += sum(row[3] == "01" and int(row[9]) in mine and peer(row[2]) in ends for row in rows)
    return count


@op("proxy_look")
def proxy_look(call: Call, path: str) -> Optional[Dict[str, Any]]:
    """What the running proxy says of itself; None when it does not run."""
    return look(path)


@op("proxy_open")
def proxy_open(call: Call, path: str, name: str, address: str, port: int, maxconn: int) -> Dict[str, Any]:
    """Give a server its address and limit, let it take requests, and see that it does."""
    ask(path, "set server %s addr %s port %d" % (name, address, port))
    # A guard that is gone cannot take back its last word; where there are no agent checks HAProxy only says so.
    ask(path, "set server %s agent up" % name)
    ask(path, "set maxconn server %s %d" % (name, maxconn))
    return proxy_set(call, path, {name: "ready"})


@op("proxy_set")
def proxy_set(call: Call, path: str, states: Dict[str, str], limit: float = 10) -> Dict[str, Any]:
    """Set servers to ready, drain or maint and wait until HAProxy's own statistics show it.

    A proxy that is not there yet (its box is booting) is waited for, within the same limit in seconds.
    """
    deadline = time.monotonic() + limit
    while look(path) is None and time.monotonic() < deadline and not call.cancelled.is_set():
        time.sleep(0.2)
    for name, state in states.items():
        set_server(path, name, state)
    while True:
        now = servers(path)
        wrong = [name for name, state in states.items() if is_up(now.get(name)) != (state == "ready")]
        if not wrong:
            return {"servers": {name: now[name] for name in states}, "at": time.time()}
        if call.cancelled.is_set() or time.monotonic() > deadline:
            raise OpError(
                "HAProxy did not take it: "
                + ", ".join(
                    "%s is %s, not %s" % (n, now[n]["status"] if n in now else "missing", states[n]) for n in wrong
                )
            )
        time.sleep(0.02)


@op("proxy_idle")
def proxy_idle(call: Call, path: str, names: List[str], limit: float) -> Dict[str, Any]:
    """Wait until no request runs on the servers named; ``{"left": n}`` says how many did when time ran out.

    Requests that began before a reload run in the process of that time, of which HAProxy's statistics say nothing.
    """
    start = time.monotonic()
    next_event = 0.5
    while True:
        now = servers(path)
        running = sum(now[name]["running"] for name in names if name in now)
        running += running_in_former(path, names)
        waited = time.monotonic() - start
        if running == 0 or waited > limit:
            return {"left": running, "waited": round(waited, 2)}
        call.check()
        if waited >= next_event:
            next_event = waited + 0.5
            call.event(running=running, waited=round(waited, 1))
        time.sleep(0.05)


@op("proxy_await")
def proxy_await(call: Call, path: str, description: str, limit: float) -> Dict[str, Any]:
    """Wait until the proxy that answers runs the configuration with this description."""
    deadline = time.monotonic() + limit
    while True:
        found = look(path)
        if found is not None and found["description"] == description:
            return found
        if call.cancelled.is_set() or time.monotonic() > deadline:
            said = "nothing answers" if found is None else "it runs %r" % found["description"]
            raise OpError("the proxy does not run the new configuration: %s" % said)
        time.sleep(0.05)
