"""What the engines, the proxy and the memory of this box say at this moment, in one round trip. Nothing is changed."""

import http.client
import os
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from fleetctl.onbox import haproxy, kept
from fleetctl.onbox.boot import boot_of
from fleetctl.onbox.main import Call, CancelledError, OpError, op
from fleetctl.onbox.metricspage import chosen, page_of
from fleetctl.onbox.poolwatch import PoolPages
from fleetctl.onbox.process import run
from fleetctl.onbox.reaching import place_of
from fleetctl.onbox.waits import meminfo

PRESSURE = "/proc/pressure/memory"
INVOCATIONS = "/run/systemd/units/invocation:"  # + unit: a link to the InvocationID of a unit that runs
CLIENTS = "fleetctl_clients"  # the frontend that clients use
PROPERTIES = "ActiveState,SubState,NRestarts,Result"

_release: Tuple[Any, Dict[str, Any]] = (None, {})  # the one that was read last, and from which file


@op("watch")
def watch(call: Call, box: str, names: List[str], known: Optional[int] = None, limit: float = 1.5) -> Dict[str, Any]:
    """Figures of the live layout as far as this box, ``box`` in fleet.yaml, has them.

    ``engines`` (of those whose head this box is) have the lines of /metrics whose sample is one of ``names``, or
    ``why`` they could not be read within ``limit`` seconds; ``at`` is when, in seconds of this box's own steady clock.
    ``units`` are those of all engines' ranks and of the programs of a pool here; ``pool`` has what those programs say
    of themselves, and the worker of its engines. ``release`` comes only when the generation is not the ``known`` one,
    and without its files.
    """
    number = kept.current_generation()
    release = _live(number)
    engines = [engine for engine in release.get("engines", []) if engine["ranks"][0]["box"] == box]
    units = [rank["unit"] for engine in release.get("engines", []) for rank in engine["ranks"] if rank["box"] == box]
    services = [one for one in (release.get("pool") or {}).get("services", []) if one["box"] == box]
    units += [service["unit"] for service in services]
    proxy = release.get("proxy") or {}
    mine = box in (proxy.get("boxes") or [proxy.get("box")])
    deadline = time.monotonic() + limit
    pages = _Pages(engines, set(names), deadline)
    runs = {service["kind"]: invocation(service["unit"]) for service in services}
    pool = PoolPages(services, deadline)
    states = _Later(lambda: _states(call, sorted(set(units))))
    backends = [backend["name"] for backend in proxy.get("backends", [])]
    told = _Later(lambda: _proxy(proxy["admin_socket"], backends) if mine else None)
    pages.wait()
    return {
        "boot": boot_of(),
        "time": time.time(),
        "generation": number,
        "changed": _changed() if number is not None else None,
        "release": _brief(release) if number != known and number is not None else None,
        "engines": pages.told(),
        "pool": {kind: {**page, "run": runs[kind]} for kind, page in pool.told().items()},
        "units": states.result(deadline) or {},
        "proxy": told.result(deadline),
        "drained": _drained(),
        "memory": _memory(),
    }


class _Later:
    """Something that may take its time, done in a thread: systemd or HAProxy that hangs hides no engine."""

    def __init__(self, do: Callable[[], Any]) -> None:
        self._do = do
        self._result: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self, deadline: float) -> Any:
        """What came of it; None when it failed, or is not done when the time is over."""
        self._thread.join(max(0.0, deadline + 0.1 - time.monotonic()))
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._do()
        except (OpError, CancelledError):
            self._result = None


class _Pages:
    """The engines' pages, each read in a thread of its own."""

    def __init__(self, engines: List[Dict[str, Any]], names: Set[str], deadline: float) -> None:
        self._deadline = deadline
        self._told: Dict[str, Dict[str, Any]] = {}
        self._threads = [threading.Thread(target=self._read, args=(engine, names), daemon=True) for engine in engines]
        self._ids = [engine["id"] for engine in engines]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Until all have been read, or the time is over."""
        for thread in self._threads:
            thread.join(max(0.0, self._deadline + 0.1 - time.monotonic()))

    def told(self) -> Dict[str, Dict[str, Any]]:
        """Engine → its lines, or why there are none."""
        late = {"why": "/metrics was not answered in time"}
        return {name: dict(self._told.get(name, late)) for name in self._ids}

    def _read(self, engine: Dict[str, Any], names: Set[str]) -> None:
        unit = engine["ranks"][0]["unit"]
        before = invocation(unit)
        try:
            page = page_of(engine["address"], engine["port"], self._deadline)
            kept_lines = chosen(page, names)
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._told[engine["id"]] = {"why": _why(error, engine)}
            return
        at = time.monotonic()
        if invocation(unit) != before:  # whose page is it, the old process' or the new one's?
            self._told[engine["id"]] = {"why": "%s was started anew while it was read" % unit}
        else:
            self._told[engine["id"]] = {"lines": kept_lines, "run": before, "at": at}


def invocation(unit: str) -> Optional[str]:
    """InvocationID of a unit that runs: every start has another. None: it does not run, or systemd does not say."""
    try:
        return os.readlink(INVOCATIONS + unit)
    except OSError:
        return None


def _why(error: Exception, engine: Dict[str, Any]) -> str:
    place = place_of(engine["address"], engine["port"])
    if isinstance(error, socket.timeout):
        return "/metrics at %s was not answered in time" % place
    if isinstance(error, OSError):
        return "nothing to read at %s: %s" % (place, error.strerror or error)
    if isinstance(error, ValueError):
        return "%s: %s" % (place, error)
    said = "".join(c if c.isprintable() else "?" for c in str(error)[:80]).strip()
    return "%s does not speak HTTP: %s" % (place, said or type(error).__name__)


def _states(call: Call, units: List[str]) -> Dict[str, Dict[str, Any]]:
    if not units:
        return {}
    done = run(call, ["systemctl", "show", "--no-pager", "-p", PROPERTIES, "--", *units], timeout=10)
    blocks = [
        dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        for block in done["out"].strip("\n").split("\n\n")
    ]
    return {
        unit: {
            "active": block.get("ActiveState", ""),
            "sub": block.get("SubState", ""),
            "restarts": int(block.get("NRestarts") or 0),
            "result": block.get("Result", ""),
        }
        for unit, block in zip(units, blocks)  # noqa: B905 - strict= came with Python 3.10
    }


def _proxy(path: str, backends: List[str]) -> Dict[str, Any]:
    """Servers and load of the proxy on this box. OpError when it does not run."""
    return load(haproxy.rows(path), backends)


def load(rows: List[Dict[str, str]], backends: List[str]) -> Dict[str, Any]:
    """Servers and load from the rows of ``show stat``.

    ``waiting`` are in the shared queues of full engines, ``running`` with engines. ``held`` are those whose model has
    no engine that takes requests. HAProxy counts them as streams of a backend, as it does what the bridge answers and
    what runs on an engine that is drained; of the latter, streams that had comment lines are counted as held.
    """
    servers = {}
    rate = None
    bridged = waiting = running = 0
    held = dict.fromkeys(backends, 0)
    usable = set()
    for row in rows:
        backend, name = row["pxname"], row["svname"]
        streams, queued, weight = (int(row[key] or 0) for key in ("scur", "qcur", "weight"))
        if name == "FRONTEND":
            rate = int(row["req_rate"] or 0) if backend == CLIENTS else rate
            bridged += streams if backend == haproxy.BRIDGE else 0
        elif backend not in held:
            continue
        elif name == "BACKEND":
            waiting += queued
            held[backend] += streams - queued
        else:
            held[backend] -= streams
            if name != "again":  # it leads back to the wait
                running += streams
                servers["%s/%s" % (backend, name)] = {"status": row["status"], "weight": weight}
                usable |= {backend} if row["status"].startswith("UP") and weight else set()
    holding = sum(max(0, many) for backend, many in held.items() if backend not in usable)
    return {
        "servers": servers,
        "waiting": waiting,
        "held": max(0, holding - bridged),
        "running": running,
        "rate": rate,
    }


def _drained() -> Optional[bool]:
    """An operator took this box out of the proxy; None: what says so is damaged."""
    try:
        return kept.drained() is not None
    except OpError:
        return None


def _memory() -> Dict[str, Any]:
    rows = meminfo()
    return {
        "total": rows["MemTotal"],
        "available": rows["MemAvailable"],
        "swap_used": rows.get("SwapTotal", 0) - rows.get("SwapFree", 0),
        "pressure": pressure(),
    }


def pressure(path: str = PRESSURE) -> Optional[float]:
    """PSI's some avg10 of memory, in percent: the time in which something waited for it. None: the kernel is silent."""
    try:
        with open(path) as source:
            for line in source:
                words = line.split()
                if words and words[0] == "some":
                    return float(dict(word.split("=") for word in words[1:])["avg10"])
    except (OSError, ValueError, KeyError):
        return None
    return None


def _live(number: Optional[int]) -> Dict[str, Any]:
    """The release of the current generation, read again only when it is another file."""
    global _release
    if number is None:
        return {}
    path = kept.generation_folder(number) + "/release.json"
    try:
        state = os.stat(path)
        stamp = (path, state.st_mtime_ns, state.st_ino, state.st_size)
    except OSError:
        stamp = None
    if stamp is None or _release[0] != stamp:
        _release = (stamp, kept.generation_release(number))
    return _release[1]


def _brief(release: Dict[str, Any]) -> Dict[str, Any]:
    return {key: value for key, value in release.items() if key not in ("files", "spec", "budgets", "superseded")}


def _changed() -> Optional[float]:
    """When the current generation became so, in epoch seconds of this box's clock."""
    try:
        return os.lstat(kept.CURRENT).st_mtime
    except OSError:
        return None
