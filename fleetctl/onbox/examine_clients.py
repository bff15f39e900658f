"""Who talks to the engines at their own ports: connections over a while, and the engines' access logs before it."""

import ipaddress
import os
import re
import time
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from fleetctl.onbox.accesslog import Asked
from fleetctl.onbox.callers import Callers
from fleetctl.onbox.connections import ESTABLISHED, LISTENS, WAITS, Row, address, rows
from fleetctl.onbox.journalctl import read_back
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.process import run
from fleetctl.onbox.search import Hits, search

EVERY = 0.2  # seconds from one look to the next: a request takes longer
SPARE = 4  # a look that takes long is repeated only after so many times as long: this must not be what loads the box
TELL = 1.0  # seconds from one word of progress to the next
FOLLOW = 5.0  # seconds from one look into the logs to the next
MOST = 1000  # connections that are told of
MOST_LINES = 500_000
MARGIN = 5.0  # seconds before a look from which on it is told what was asked over each connection
LOG_LIMIT = 8.0  # seconds for the logs of all engines here
Key = Tuple[str, int, str, int]
End = Tuple[str, int]
# Where people put the address of an API for a program to use.
PLACES = (
    "/etc/systemd/system",
    "/etc/cron.d",
    "/etc/crontab",
    "/var/spool/cron",
    "/etc/default",
    "/etc/environment",
    "/etc/profile.d",
)


@op("examine_clients")
def examine_clients(
    call: Call,
    ports: Dict[str, str],
    targets: List[List[Any]],
    known: List[str],
    seconds: Optional[float] = 3.0,
    log: float = 0.0,
    words: Optional[List[List[Any]]] = None,
    leave_out: Optional[List[str]] = None,
    sizes: bool = False,
    follow: bool = False,
) -> Dict[str, Any]:
    """Look for ``seconds`` (None: until cancelled) and tell each connection once, with its first and last sight.

    ``ports`` are those of engines here, with their units; ``targets`` address and port of every engine of the fleet;
    ``known`` the addresses of boxes that are asked themselves: what comes from there is told of by them. The access
    logs of the last ``log`` seconds are read afterwards. ``words`` (as ``search`` takes them) are looked for in PLACES,
    but for units in ``leave_out``. With ``sizes`` the bytes of each connection are told, where `ss` is there. Every
    second an event has what is new or has changed; to ``follow`` means that the logs are read meanwhile, too.
    """
    watch = _Watch({int(port) for port in ports}, {(str(host), int(port)) for host, port in targets}, set(known))
    began, told = time.time(), 0.0
    read = began
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        at = time.monotonic()
        watch.look()
        took = time.monotonic() - at
        if at - told >= TELL:
            told = at
            if sizes:
                watch.measure(call)
            asked: Dict[str, Any] = {}
            if follow and time.time() - read >= FOLLOW:
                since, read = read, time.time()
                asked = _asked(call, ports, watch, read - since, set(known), since)
            call.event(at=time.time(), seen=watch.news(), asked=asked)
        if end is not None and time.monotonic() >= end:
            break
        if call.cancelled.wait(max(EVERY, took * SPARE)):
            call.check()
    asked = _asked(call, ports, watch, log, set(known), began - MARGIN) if log else {}
    return {
        "began": began,
        "looks": watch.looks,
        "seen": watch.told(),
        "more": watch.more,
        "asked": asked,
        "listens": {str(port): sorted(hosts) for port, hosts in watch.listens.items()},
        "settings": _settings(words or [], leave_out or []),
    }


class _Watch:
    """What was seen since the beginning. A connection is known by both its ends."""

    def __init__(self, ports: Set[int], targets: Set[End], known: Set[str]) -> None:
        self._ports, self._targets, self._known = ports, targets, known
        self._target_ports = {port for _, port in targets}
        self._seen: Dict[Key, Dict[str, Any]] = {}
        self._changed: Set[Key] = set()
        self._callers = Callers()
        self._namespaces: List[int] = []
        self._namespaces_at = 0.0
        self.fleet: Set[End] = set()  # far ends, on boxes of the fleet, of connections to engines here
        self.listens: Dict[int, Set[str]] = {}
        self.looks = 0
        self.more = 0

    def look(self) -> None:
        """See what is there now."""
        now = time.time()
        self.looks += 1
        here: Set[Key] = set()
        sockets: Dict[Key, int] = {}
        for row in rows():
            if row.local_port in self._ports:
                self._incoming(row, now, here)
            if row.state == ESTABLISHED and self._leads_to_engine(row):
                sockets[_key(row)] = row.inode
        contained = {_key(row): (row, pid) for row, pid in self._of_containers() if self._leads_to_engine(row)}
        sockets.update((key, row.inode) for key, (row, _) in contained.items() if row.inode)
        found = self._callers.of(sockets.values())
        for key in {**sockets, **contained}:
            process = found.get(sockets.get(key, 0))
            if process is None and key in contained:
                # Over already, or too short to be found: it was somebody in that container.
                process = self._callers.described(contained[key][1])
            if process is not None and not process["ours"]:
                over = key in contained and contained[key][0].state == WAITS
                self._note(key, now, here, incoming=False, process=process, over=over)
        for key, one in self._seen.items():
            if one["open"] and key not in here:
                one["open"] = False
                self._changed.add(key)

    def _incoming(self, row: Row, now: float, here: Set[Key]) -> None:
        if row.state == LISTENS:
            self.listens.setdefault(row.local_port, set()).add(address(row.local))
            return
        if row.state not in (ESTABLISHED, WAITS):
            return
        key = _key(row)
        if key[2] in self._known or key[2] == key[0] or ipaddress.ip_address(key[2]).is_loopback:
            if row.state == ESTABLISHED and len(self.fleet) < MOST:
                self.fleet.add((key[2], key[3]))
            return
        self._note(key, now, here, incoming=True, process=None, over=row.state == WAITS)

    def _note(
        self,
        key: Key,
        now: float,
        here: Set[Key],
        *,
        incoming: bool,
        process: Optional[Dict[str, Any]],
        over: bool = False,
    ) -> None:
        if not over:
            here.add(key)
        one = self._seen.get(key)
        if one is None:
            if len(self._seen) >= MOST and not self._forget():
                self.more += 1
                return
            one = {"local": key[:2], "remote": key[2:], "incoming": incoming, "process": process, "first": now}
            one.update(open=not over, sent=None, received=None)
            self._seen[key] = one
            self._changed.add(key)
        elif one["open"] is over:
            one["open"] = not over
            self._changed.add(key)
        one["last"] = now if not over or "last" not in one else one["last"]

    def _forget(self) -> bool:
        """Make room: a connection that is over, and was told of, goes. False: there is none."""
        over = next((key for key, one in self._seen.items() if not one["open"] and key not in self._changed), None)
        if over is not None:
            del self._seen[over]
        return over is not None

    def _leads_to_engine(self, row: Row) -> bool:
        return row.remote_port in self._target_ports and (address(row.remote), row.remote_port) in self._targets

    def _of_containers(self) -> Iterator[Tuple[Row, int]]:
        """Connections of every container with a network of its own, open or just over, and its first process."""
        if time.monotonic() - self._namespaces_at >= TELL:
            self._namespaces_at = time.monotonic()
            self._namespaces = other_networks()
        for pid in self._namespaces:
            for row in rows(["/proc/%d/net/%s" % (pid, table) for table in ("tcp", "tcp6")]):
                if row.state in (ESTABLISHED, WAITS):
                    yield row, pid

    def measure(self, call: Call) -> None:
        """Bytes of the connections that are open, where `ss` tells them."""
        try:
            done = run(call, ["ss", "-tinH", "state", "established"], timeout=5)
        except OpError:
            return
        for key, (sent, received) in sizes_in(done["out"]).items():
            one = self._seen.get(key)
            if one is not None and (one["sent"], one["received"]) != (sent, received):
                one["sent"], one["received"] = sent, received
                self._changed.add(key)

    def news(self) -> List[Dict[str, Any]]:
        """What has changed since it was asked last."""
        changed = [self._seen[key] for key in self._changed if key in self._seen]
        self._changed = set()
        return [dict(one) for one in changed]

    def told(self) -> List[Dict[str, Any]]:
        """All of it."""
        return sorted((dict(one) for one in self._seen.values()), key=lambda one: str(one["first"]))


def _key(row: Row) -> Key:
    return address(row.local), row.local_port, address(row.remote), row.remote_port


def other_networks() -> List[int]:
    """The first process of each network namespace that is not this program's."""
    found: Dict[str, int] = {}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            found.setdefault(os.readlink("/proc/%d/ns/net" % pid), pid)
        except OSError:
            continue
    found.pop(os.readlink("/proc/self/ns/net"), None)
    return list(found.values())


_ENDS = re.compile(r"^\S*\s*\d+\s+\d+\s+(\S+):(\d+)\s+(\S+):(\d+)")


def sizes_in(text: str) -> Dict[Key, Tuple[int, int]]:
    """Bytes sent and received by this end, from the words of `ss -tinH`. One that says none of them has none."""
    found: Dict[Key, Tuple[int, int]] = {}
    key: Optional[Key] = None
    for line in text.splitlines():
        ends = None if line[:1] in " \t" and "bytes_" in line else _ENDS.match(line.strip())
        if ends is not None:
            key = (_plain(ends[1]), int(ends[2]), _plain(ends[3]), int(ends[4]))
            found[key] = (0, 0)
        if key is not None:
            for word, index in (("bytes_sent", 0), ("bytes_received", 1)):
                size = re.search(r"\b%s:(\d+)" % word, line)
                if size:
                    both = list(found[key])
                    both[index] = int(size[1])
                    found[key] = (both[0], both[1])
    return found


def _plain(host: str) -> str:
    host = host.strip("[]").split("%")[0]
    try:
        read = ipaddress.ip_address(host)
    except ValueError:
        return host
    return str(getattr(read, "ipv4_mapped", None) or read)


def _asked(
    call: Call, ports: Dict[str, str], watch: _Watch, back: float, known: Set[str], recent: float
) -> Dict[str, Any]:
    """Port → what the log of its engine says. ``complete``: all of that time was read."""
    found: Dict[str, Any] = {}
    end = time.monotonic() + LOG_LIMIT
    for port, unit in ports.items():
        asked = Asked({*known, "127.0.0.1", "::1"}, watch.fleet, recent)
        left = max(1.0, end - time.monotonic())
        read = read_back(call, unit, time.time() - back, asked.add, MOST_LINES, left)
        found[port] = {**asked.told(), **read}
    return found


def _settings(words: List[List[Any]], leave_out: List[str]) -> List[Dict[str, Any]]:
    """Settings in PLACES that name an engine as an API's address."""
    if not words:
        return []
    hits = Hits()
    for place in PLACES:
        search(place, words, hits, api=True)
    names = set(leave_out)
    return [
        hit
        for hit in hits.found
        if not any(part in names or part.startswith("fleetctl-") for part in hit["path"].split("/"))
        and not any(part[:-2] in names for part in hit["path"].split("/") if part.endswith(".d"))
    ]
