"""Addresses of the box, whether somebody else has one, and the keepalived that is not fleetctl's."""

import contextlib
import glob
import ipaddress
import json
import re
import socket
import time
from typing import Any, Dict, List, Optional

from fleetctl.onbox.main import Call, op
from fleetctl.onbox.process import run
from fleetctl.onbox.units import states

DISTRIBUTION = "keepalived.service"
PATIENCE = 0.5  # seconds for a machine of the same network to say that it has an address
DISCARD = 9  # port of a datagram that nobody has to take: the kernel has to find the machine first


@op("addresses")
def addresses(call: Call) -> List[str]:
    """Every global IP address that the box has now."""
    told = json.loads(run(call, ["ip", "-j", "address", "show", "scope", "global"])["out"] or "[]")
    return sorted({one["local"] for link in told for one in link.get("addr_info", []) if "local" in one})


def answering(call: Call, wanted: List[str]) -> Dict[str, str]:
    """Address → hardware address of the machine of this network that has it; not those that are free or this box's."""
    mine = addresses(call) if wanted else []
    found = {address: _neighbour(call, address) for address in wanted if address not in mine}
    return {address: hardware for address, hardware in found.items() if hardware}


def _neighbour(call: Call, address: str) -> str:
    """What the kernel finds when it has to send something to an address now; nothing for one that is free."""
    run(call, ["ip", "neigh", "flush", "to", address])
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.sendto(b"", (address, DISCARD))
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        told = json.loads(run(call, ["ip", "-j", "neigh", "show", "to", address])["out"] or "[]")
        hardware = [one["lladdr"] for one in told if "lladdr" in one]
        if hardware:
            return str(hardware[0])
        time.sleep(0.05)
    return ""


def foreign_vrrp(call: Call) -> Optional[Dict[str, Any]]:
    """VRRP router ids and IP addresses in the files of the distribution's keepalived; None: it is off, or not there."""
    state = states(call, [DISTRIBUTION])[DISTRIBUTION]
    if state["load"] != "loaded" or (state["active"] != "active" and not state["enabled"].startswith("enabled")):
        return None
    text = ""
    for path in sorted(glob.glob("/etc/keepalived/**/*.conf", recursive=True)):
        try:
            with open(path, encoding="utf-8", errors="replace") as source:
                text += source.read() + "\n"
        except OSError:
            continue
    return mentioned(text)


def mentioned(text: str) -> Dict[str, Any]:
    """Router ids and IP addresses in the text of a keepalived.conf, without its comments."""
    text = re.sub(r"[#!].*", "", text)
    ids = sorted({int(number) for number in re.findall(r"\bvirtual_router_id\s+(\d{1,3})\b", text)})
    words = {word.split("/")[0] for word in re.findall(r"[0-9A-Fa-f:.]+(?:/\d+)?", text)}
    return {"router_ids": ids, "addresses": sorted(word for word in words if _is_address(word))}


def _is_address(word: str) -> bool:
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True
