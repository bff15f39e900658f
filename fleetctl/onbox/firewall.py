"""The table that closes engines' ports: looked at as it is loaded, tried with a way back, kept, and taken away.

A table that is tried goes away by itself: a timer of systemd puts back what was before, whatever becomes of the client,
unless the table is kept first.
"""

import os
import re
import shutil
import socket
import time
from typing import Any, Dict, List, Optional

from fleetctl.onbox.files import write
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.process import run
from fleetctl.onbox.units import show

TABLE = "inet fleetctl"
FILE = "/etc/fleetctl/firewall.nft"
BEFORE = "/run/fleetctl/firewall-before.nft"
REVERT = "fleetctl-firewall-revert"
PROGRAMS = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin"
EMPTY = "table %s\ndelete table %s\n" % (TABLE, TABLE)  # right whether it is there or not
REFUSED = re.compile(r"(set refused_ip[46] \{[^{}]*?)\t\telements = \{([^{}]*)\}\n")
CONNECT_LIMIT = 2.0  # seconds for one connection


def nft() -> Optional[str]:
    """Path of the program; None where nftables is not installed."""
    return shutil.which("nft", path=PROGRAMS)


def _nft(call: Call, *words: str, stdin: str = "") -> None:
    """Run nft; OpError with its own words when it fails."""
    done = run(call, ["nft", *words], stdin=stdin)
    if done["rc"] != 0:
        said = " ".join(line.strip() for line in done["err"].splitlines()[:2])
        raise OpError("nft does not do as asked: %s" % (said or "status %s" % done["rc"]))


def listing(call: Call) -> Optional[str]:
    """The loaded table as nft tells it, with those who were refused; None when there is none."""
    if nft() is None:
        return None
    done = run(call, ["nft", "list", "table", *TABLE.split()])
    return done["out"] if done["rc"] == 0 else None


def without_refused(table: str) -> str:
    """A listed table as it was loaded: nobody has been refused yet."""
    return REFUSED.sub(r"\1", table)


def refused(table: str) -> List[str]:
    """Addresses in a listed table that were refused."""
    return [element.split()[0] for found in REFUSED.finditer(table) for element in found.group(2).split(",")]


def listing_of(call: Call, path: str) -> Optional[str]:
    """What ``listing`` would tell of the table in a file: it is loaded where no packet comes by. None: it cannot be."""
    load_and_list = 'nft -f "$0" && exec nft list table ' + TABLE
    done = run(call, ["unshare", "--net", "sh", "-c", load_and_list, path])
    return done["out"] if done["rc"] == 0 else None


def look(call: Call, path: str = FILE) -> Dict[str, Any]:
    """The table that is loaded: its ``mark``, and whether it is ``intact``, exactly the one in the file.

    ``tried``: it goes away by itself unless it is kept. ``refused`` are the addresses it turned away within a day.
    """
    there = listing(call)
    mark = re.search(r'comment "fleetctl ([0-9a-f]+)"', there or "")
    return {
        "loaded": there is not None,
        "mark": mark.group(1) if mark else None,
        "intact": there is not None and os.path.exists(path) and without_refused(there) == listing_of(call, path),
        "tried": _timer(call) if there is not None else False,
        "refused": refused(there or ""),
    }


def _timer(call: Call) -> bool:
    """The timer that takes a table back is running."""
    return show(call, [REVERT + ".timer"])[REVERT + ".timer"].get("ActiveState") == "active"


@op("firewall_look")
def firewall_look(call: Call, path: str) -> Dict[str, Any]:
    """The table that is loaded, compared with that in a file."""
    return look(call, path)


@op("firewall_before")
def firewall_before(call: Call) -> str:
    """A script for nft that brings back what is loaded now; a table that is only tried does not count."""
    if _timer(call) and os.path.exists(BEFORE):
        with open(BEFORE, encoding="utf-8") as source:
            return source.read()
    return EMPTY + without_refused(listing(call) or "")


@op("firewall_try")
def firewall_try(call: Call, path: str, limit: float) -> Dict[str, Any]:
    """Load the table in a file, for ``limit`` seconds: then what was before comes back, unless it is kept meanwhile.

    OpError, with nothing changed, when nft does not accept it.
    """
    if nft() is None:
        raise OpError("there is no nft here: apt-get install nftables")
    _nft(call, "-c", "-f", path)
    if listing_of(call, path) is None:
        raise OpError("what is loaded could not be compared with the file: `unshare --net nft -f %s` fails here" % path)
    before = firewall_before(call)
    _disarm(call)
    write(call, [{"path": BEFORE, "content": before, "mode": 0o600, "private": True}])
    timer = ["--on-active=%gs" % limit, "--timer-property=AccuracySec=100ms", "--unit=" + REVERT, "--collect"]
    word = "--description=fleetctl takes back a firewall that was not proved"
    done = run(call, ["systemd-run", "--quiet", *timer, word, "--", str(nft()), "-f", BEFORE])
    if done["rc"] != 0:
        raise OpError("systemd-run failed, so the firewall was not loaded: %s" % done["err"].strip())
    try:
        _nft(call, "-f", path)
        if not look(call, path)["intact"]:
            raise OpError("the table that is loaded is not the one in %s; it was taken back" % path)
    except OpError:
        _take_back(call)
        raise
    return {}


@op("firewall_keep")
def firewall_keep(call: Call, path: str) -> Dict[str, Any]:
    """The table stays. OpError when it was taken back already."""
    _disarm(call)
    if not look(call, path)["intact"]:
        raise OpError("the firewall was not proved in time, and took itself back")
    if os.path.exists(BEFORE):
        os.unlink(BEFORE)
    return {}


@op("firewall_take_back")
def firewall_take_back(call: Call) -> Dict[str, Any]:
    """Bring back at once what was before a table that is tried."""
    _take_back(call)
    return {}


def _take_back(call: Call) -> None:
    if _timer(call):
        _nft(call, "-f", BEFORE)
    _disarm(call)


@op("firewall_restore")
def firewall_restore(call: Call, script: str = EMPTY) -> Dict[str, Any]:
    """Load what ``firewall_before`` told, by default no table at all; nothing takes it back."""
    _disarm(call)
    if nft() is not None:
        _nft(call, "-f", "-", stdin=script)
    return {}


def _disarm(call: Call) -> None:
    """From the return on nothing changes the table any more: neither the timer nor what it has started."""
    units = [REVERT + ".timer", REVERT + ".service"]
    if any(state.get("LoadState") == "loaded" for state in show(call, units).values()):
        run(call, ["systemctl", "--no-ask-password", "stop", "--", *units])
        run(call, ["systemctl", "--no-ask-password", "reset-failed", "--", *units])


@op("connects")
def connects(call: Call, targets: List[List[Any]], limit: float = 0.0) -> List[Dict[str, Any]]:
    """For each ``[address, port]`` whether a connection from here is taken, and the ``source`` it comes from.

    One that is not is tried again for so many seconds. ``source`` is None where no route leads there.
    """
    end = time.monotonic() + limit
    return [
        {"address": address, "port": port, "taken": _taken(call, address, port, end), "source": _source(address)}
        for address, port in targets
    ]


def _taken(call: Call, address: str, port: int, end: float) -> bool:
    while True:
        try:
            socket.create_connection((address, port), timeout=CONNECT_LIMIT).close()
            return True
        except OSError:
            if time.monotonic() > end:
                return False
        call.check()
        time.sleep(0.1)


def _source(address: str) -> Optional[str]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((address, 9))  # nothing is sent
            return str(asking.getsockname()[0])
        except OSError:
            return None
