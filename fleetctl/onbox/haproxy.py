"""HAProxy's runtime API, spoken over its root-only Unix socket."""

import contextlib
import csv
import io
import os
import socket
import struct
import threading
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from fleetctl.onbox.files import write
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.units import comm_of, unit_of

BRIDGE = "fleetctl_bridge"  # the backend of what is no engine of the fleet
STATES = "/var/lib/fleetctl/proxy-servers"
# Bits of srv_admin_state: set at runtime, `disabled` in the configuration, drained at runtime.
FORCED_MAINT, CONFIGURED_MAINT, FORCED_DRAIN = 0x01, 0x04, 0x08

LOOKS_AT_FORMER = 4  # looks in a row at which nothing runs, where a process from before a reload is there

_one_at_a_time = threading.Lock()  # so that the last look is the one that is written


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


def rows(path: str) -> List[Dict[str, str]]:
    """The rows of ``show stat``: frontends, servers and backends, in HAProxy's own words."""
    return list(csv.DictReader(io.StringIO(ask(path, "show stat").lstrip("# "))))


def servers(path: str) -> Dict[str, Dict[str, Any]]:
    """``BACKEND/SERVER`` → status as ``show stat`` words it, and requests running and queued on it.

    ``BACKEND/BACKEND`` has the requests that wait in the backend's shared queue. The bridge is not among them: no move
    opens or closes it.
    """
    return {name: server for name, server in everything(path).items() if not name.startswith(BRIDGE + "/")}


def everything(path: str) -> Dict[str, Dict[str, Any]]:
    """The same for all that HAProxy has."""
    found = {}
    for row in rows(path):
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
    """Configuration fingerprint, servers and bridge of a running proxy; None when it does not run.

    ``admin`` says what a server was told to be (ready, drain or maint), which the status of one that is down hides.
    """
    try:
        found, admin = everything(path), admin_states(path)
        bridge = found.get(BRIDGE + "/bridge")
        known = {
            name: {**server, "admin": admin.get(name, "")}
            for name, server in found.items()
            if not name.startswith(BRIDGE + "/")
        }
        return {"description": info(path).get("description", ""), "servers": known, "bridge": bridge}
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


def admin_states(path: str) -> Dict[str, str]:
    """``BACKEND/SERVER`` → what it was told to be: ready, drain or maint."""
    found = {}
    for row in server_states(path):
        admin = int(row.get("srv_admin_state") or 0)
        word = "maint" if admin & FORCED_MAINT else "drain" if admin & FORCED_DRAIN else "ready"
        found["%s/%s" % (row["be_name"], row["srv_name"])] = word
    return found


def server_states(path: str) -> List[Dict[str, str]]:
    """The rows of `show servers state`, in HAProxy's own words."""
    return state_rows(ask(path, "show servers state"))


def state_rows(text: str) -> List[Dict[str, str]]:
    """The rows of a table of servers' states, as HAProxy tells it and keeps it in a file."""
    lines = text.splitlines()
    keys = next((line[2:].split() for line in lines if line.startswith("# ")), [])
    words = [line.split() for line in lines if line and not line.startswith("#")]
    found = [dict(zip(keys, row)) for row in words]  # noqa: B905 - strict= came with Python 3.10
    return [row for row in found if "be_name" in row and "srv_name" in row]


def addresses(path: str, names: List[str]) -> Set[Tuple[str, int]]:
    """IP address and port of the servers named, as the running proxy has them."""
    rows = server_states(path)
    found = [row for row in rows if "srv_port" in row and "%s/%s" % (row["be_name"], row["srv_name"]) in names]
    return {(row["srv_addr"], int(row["srv_port"])) for row in found}


def deviating(text: str) -> str:
    """Of the answer to `show servers state`, the servers that are not as the configuration has them at start-up.

    These were drained, put to rest or opened since. Weights are left out: those belong to prove.lua, which asks anew.
    """
    heads = [line for line in text.splitlines() if line.startswith("# ")]
    kept = []
    for row in state_rows(text):
        admin = int(row.get("srv_admin_state") or 0)
        if bool(admin & FORCED_MAINT) != bool(admin & CONFIGURED_MAINT) or admin & FORCED_DRAIN:
            row["srv_uweight"] = row["srv_iweight"]
            kept.append(" ".join(row.values()))
    return "\n".join(["1", *heads[:1], *kept]) + "\n"


def keep_states(call: Call, path: str) -> None:
    """Have the servers' states on disk, where HAProxy looks when it starts.

    Then a restart in the middle of a move sends no request to an engine that is stopped or not proven. A full disk must
    not keep requests held: without the file, a start goes by the configuration.
    """
    try:
        with _one_at_a_time:
            content = deviating(ask(path, "show servers state"))
            write(call, [{"path": STATES, "content": content, "mode": 0o600, "private": True}])
    except OpError:
        with contextlib.suppress(OSError):
            os.unlink(STATES)


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
    """Give a server its address and limit, let it take requests, and see that it does.

    Checks that somebody switched off by hand are on again: nothing would take it out once it is dead.
    """
    proxy_point(call, path, name, address, port, maxconn)
    ask(path, "enable health %s" % name)
    # A guard that is gone cannot take back its last word; where there are no agent checks HAProxy only says so.
    ask(path, "set server %s agent up" % name)
    return proxy_set(call, path, {name: "ready"})


@op("proxy_point")
def proxy_point(call: Call, path: str, name: str, address: str, port: int, maxconn: int) -> Dict[str, Any]:
    """Give a server its address and limit, whatever its state."""
    ask(path, "set server %s addr %s port %d" % (name, address, port))
    ask(path, "set maxconn server %s %d" % (name, maxconn))
    return {}


@op("proxy_set")
def proxy_set(
    call: Call, path: str, states: Dict[str, str], limit: float = 10, await_up: Optional[List[str]] = None
) -> Dict[str, Any]:
    """Set servers to ready, drain or maint and wait until HAProxy's own statistics show it.

    Of those that are to be ready only ``await_up`` has to be up in the end (default: all). A proxy that is not there
    yet (its box is booting) is waited for, within the same limit in seconds.
    """
    deadline = time.monotonic() + limit
    while look(path) is None and time.monotonic() < deadline and not call.cancelled.is_set():
        time.sleep(0.2)
    for name, state in states.items():
        set_server(path, name, state)
    while True:
        now = servers(path)
        wrong = [
            name
            for name, state in states.items()
            if is_up(now.get(name)) != (state == "ready") and (state != "ready" or await_up is None or name in await_up)
        ]
        if not wrong:
            keep_states(call, path)
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

    Requests that began before a reload run in the process of that time, of which HAProxy's statistics say nothing. Its
    queue is not seen at all: between two requests of it nothing runs for a moment, and one look is not enough there.
    """
    start = time.monotonic()
    next_event = 0.5
    calm, looks = 0, LOOKS_AT_FORMER if former_processes(path) else 1
    while True:
        now = servers(path)
        running = sum(now[name]["running"] for name in names if name in now)
        running += running_in_former(path, names)
        waited = time.monotonic() - start
        calm = calm + 1 if running == 0 else 0
        if calm >= looks or waited > limit:
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
