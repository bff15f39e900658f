"""The address of the direct link, on trial first: unless it is kept meanwhile, the box takes it back by itself.

On trial it lives in /run alone, so that a box which is rebooted meanwhile does not have it either.
"""

import contextlib
import errno
import json
import os
import shlex
import socket
import time
from typing import Any, Dict, List, Optional

from fleetctl.onbox.lock import require_claim
from fleetctl.onbox.main import PATH, Call, OpError, op
from fleetctl.onbox.process import run
from fleetctl.onbox.setup_record import give_all_back, is_so, keep, note, put, records
from fleetctl.onbox.units import show

BACK = "fleetctl-link-back"  # name of the timer and service that take a link back
SCRIPT = "/run/fleetctl-link-back.sh"
APPEAR = 20.0  # seconds until what manages the interface has given it the address
REACH = 15.0  # seconds until a neighbour on the link answers: it may be getting its address now
SSH_PORT = 22


def state(call: Call, interface: str) -> Optional[Dict[str, Any]]:
    """Addresses (with prefix), MTU, the largest MTU and whether it is up; None where there is no such interface."""
    told = run(call, ["ip", "-j", "-d", "address", "show", "dev", interface])
    if told["rc"] != 0:
        return None
    link = next((one for one in json.loads(told["out"] or "[]") if one), None)
    if link is None:
        return None
    return {
        "addresses": ["%s/%d" % (a["local"], a["prefixlen"]) for a in link.get("addr_info", []) if "local" in a],
        "mtu": link["mtu"],
        "most": link.get("max_mtu") or 65535,
        "up": "UP" in link.get("flags", []),
    }


def manager(call: Call, interface: str) -> Dict[str, Any]:
    """What manages an interface: ``kind`` (None: nothing that is known), and the file or connection it uses for it."""
    if _there("netplan") and any(os.path.isdir(d) and os.listdir(d) for d in ("/etc/netplan", "/run/netplan")):
        return {"kind": "netplan", "uses": None}
    if _active(call, "NetworkManager.service") and _there("nmcli"):
        done = run(call, ["nmcli", "-t", "-f", "GENERAL.STATE,GENERAL.CONNECTION", "device", "show", interface])
        told = dict(line.split(":", 1) for line in done["out"].splitlines() if ":" in line)
        if done["rc"] == 0 and "unmanaged" not in told.get("GENERAL.STATE", "unmanaged"):
            return {"kind": "NetworkManager", "uses": told.get("GENERAL.CONNECTION") or None}
    if _active(call, "systemd-networkd.service"):
        done = run(call, ["networkctl", "status", "--no-pager", interface])
        lines = [line.split(":", 1)[1].strip() for line in done["out"].splitlines() if "Network File:" in line]
        uses = lines[0] if lines and lines[0].startswith("/") else None
        return {"kind": "systemd-networkd", "uses": uses}
    if _there("ifup") and os.path.isfile("/etc/network/interfaces"):
        with open("/etc/network/interfaces", encoding="utf-8", errors="replace") as source:
            sourced = any(
                line.split()[:1] in (["source"], ["source-directory"]) and "interfaces.d" in line for line in source
            )
        return {"kind": "ifupdown" if sourced else None, "uses": None}
    return {"kind": None, "uses": None}


def _there(program: str) -> bool:
    return any(os.access(os.path.join(folder, program), os.X_OK) for folder in PATH.split(":"))


def _active(call: Call, unit: str) -> bool:
    return show(call, [unit])[unit].get("ActiveState") == "active"


def is_there(call: Call, part: Dict[str, Any]) -> bool:
    """The interface has the address and the MTU now, and the file that gives them to it at the next boot is there."""
    return _live(call, part) and is_so(part["file"])


def _live(call: Call, part: Dict[str, Any]) -> bool:
    now = state(call, part["interface"])
    return now is not None and part["address"] in now["addresses"] and part["mtu"] in (None, now["mtu"])


@op("setup_link_tried")
def setup_link_tried(call: Call, part: Dict[str, Any]) -> bool:
    """The link is there, on trial or for good."""
    return _live(call, part) and (_timer(call) or is_so(part["file"]))


@op("setup_link_try")
def setup_link_try(call: Call, part: Dict[str, Any], limit: float) -> Dict[str, Any]:
    """Give the interface the address for ``limit`` seconds; then what was before comes back, unless it is kept."""
    require_claim()
    _take_back(call)
    before = state(call, part["interface"])
    if before is None:
        raise OpError("there is no interface %s" % part["interface"])
    record = records().get(part["part"]) or {}
    record.setdefault("before", before)
    record["wanted"] = part
    note(call, part["part"], record)
    put(call, {"path": SCRIPT, "content": _script(part, before), "mode": 0o700})
    timer = ["--on-active=%gs" % limit, "--timer-property=AccuracySec=100ms", "--unit=" + BACK, "--collect"]
    word = "--description=fleetctl takes back a link that was not proved"
    done = run(call, ["systemd-run", "--quiet", *timer, word, "--", "/bin/sh", SCRIPT])
    if done["rc"] != 0:
        raise OpError("systemd-run failed, so the link was not touched: %s" % done["err"].strip())
    try:
        if part["trial"] is not None:
            put(call, part["trial"])
        _run_all(call, part["apply"])
        end = time.monotonic() + APPEAR
        while not _live(call, part):
            if time.monotonic() > end:
                raise OpError(_not_there(call, part))
            call.check()
            time.sleep(0.2)
    except OpError:
        _take_back(call)
        raise
    return {}


def _not_there(call: Call, part: Dict[str, Any]) -> str:
    now = state(call, part["interface"]) or {}
    return "%s did not get %s within %g s (it has %s, MTU %s); it was taken back" % (
        part["interface"],
        part["address"] + (" with MTU %d" % part["mtu"] if part["mtu"] else ""),
        APPEAR,
        ", ".join(now.get("addresses", [])) or "no address",
        now.get("mtu"),
    )


def _run_all(call: Call, commands: List[List[str]]) -> None:
    for argv in commands:
        done = run(call, argv, timeout=60)
        if done["rc"] != 0:
            last = (done["err"].strip() or done["out"].strip()).splitlines()[-1:]
            raise OpError("%s: %s" % (" ".join(argv), "".join(last) or "status %s" % done["rc"]))


def _script(part: Dict[str, Any], before: Dict[str, Any]) -> str:
    """What brings back the state before, whatever has happened meanwhile."""
    quote = shlex.quote
    lines = ["#!/bin/sh", "PATH=%s" % PATH]
    if part["trial"] is not None:
        lines.append("rm -f %s" % quote(part["trial"]["path"]))
    lines += [" ".join(map(quote, argv)) for argv in part["leave"]]
    lines += _live_back(part, before)
    return "\n".join(lines) + "\nexit 0\n"


def _live_back(part: Dict[str, Any], before: Dict[str, Any]) -> List[str]:
    interface = shlex.quote(part["interface"])
    lines = []
    if part["address"] not in before["addresses"]:
        lines.append("ip address del %s dev %s 2>/dev/null" % (shlex.quote(part["address"]), interface))
    lines += [
        "ip address replace %s dev %s" % (shlex.quote(a), interface)
        for a in before["addresses"]
        if not a.startswith("fe80:")
    ]
    lines.append("ip link set %s mtu %d" % (interface, before["mtu"]))
    if not before["up"]:
        lines.append("ip link set %s down" % interface)
    return lines


def _timer(call: Call) -> bool:
    return show(call, [BACK + ".timer"])[BACK + ".timer"].get("ActiveState") == "active"


def _disarm(call: Call) -> None:
    units = [BACK + ".timer", BACK + ".service"]
    if any(state.get("LoadState") == "loaded" for state in show(call, units).values()):
        run(call, ["systemctl", "--no-ask-password", "stop", "--", *units])
        run(call, ["systemctl", "--no-ask-password", "reset-failed", "--", *units])


@op("setup_link_back")
def setup_link_back(call: Call) -> Dict[str, Any]:
    """Take back at once a link that is on trial."""
    require_claim()
    _take_back(call)
    return {}


def _take_back(call: Call) -> None:
    if _timer(call):
        _disarm(call)
        run(call, ["/bin/sh", SCRIPT], timeout=60)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SCRIPT)


@op("setup_link_keep")
def setup_link_keep(call: Call, part: Dict[str, Any]) -> Dict[str, Any]:
    """The link stays, also after a boot. OpError when it was taken back already."""
    require_claim()
    _disarm(call)
    if not _live(call, part):
        raise OpError("the link was not proved in time, and the box has taken it back")
    _write(call, part)
    return {}


def _write(call: Call, part: Dict[str, Any]) -> None:
    """The file in its place for good."""
    record = records().get(part["part"]) or {"wanted": part}
    keep(record, part["file"])
    note(call, part["part"], record)
    put(call, part["file"])
    if part["trial"] is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part["trial"]["path"])
    _run_all(call, part["kept"])
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SCRIPT)


def make(call: Call, part: Dict[str, Any], record: Dict[str, Any]) -> None:
    """Bring back a link that was taken down: it was proved when it was set up."""
    if not is_there(call, part):
        setup_link_try(call, part, 120.0)
        setup_link_keep(call, part)


def take_down(call: Call, part: Dict[str, Any], record: Dict[str, Any]) -> List[str]:
    """Take the file away and the address off the interface; what was before comes back."""
    _take_back(call)
    left = give_all_back(record)
    if left or "before" not in record:
        return left
    for argv in part["leave"]:
        run(call, argv, timeout=60)
    for line in _live_back(part, record["before"]):
        run(call, ["/bin/sh", "-c", line])
    return left


@op("setup_link_reach")
def setup_link_reach(call: Call, interface: str, address: str, peers: List[str], mtu: Optional[int]) -> List[str]:
    """What does not work on the link, a sentence each: neighbours that do not answer, or not to packets of its MTU."""
    source, wrong = address.split("/")[0], []
    for peer in peers:
        why = _unreached(call, source, peer)
        if why is None and mtu is not None and _there("ping"):
            size = mtu - (48 if ":" in peer else 28)
            done = run(
                call,
                ["ping", "-n", "-c", "3", "-i", "0.3", "-W", "1", "-M", "do", "-s", str(size), "-I", interface, peer],
                timeout=20,
            )
            if done["rc"] != 0:
                why = "%s answers, but not to packets of %d bytes: has its end, or a switch between, a smaller MTU?" % (
                    peer,
                    mtu,
                )
        if why is not None:
            wrong.append(why)
    return wrong


def _unreached(call: Call, source: str, peer: str) -> Optional[str]:
    end = time.monotonic() + REACH
    while True:
        try:
            socket.create_connection((peer, SSH_PORT), timeout=2.0, source_address=(source, 0)).close()
            return None
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                return None  # it is there, and its SSH listens elsewhere
            if time.monotonic() > end:
                return "%s does not answer at %s: %s" % (peer, source, error.strerror or error)
        call.check()
        time.sleep(0.3)
