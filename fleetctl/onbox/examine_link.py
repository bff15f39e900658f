"""The direct link between boxes as this one has it: interfaces, ways to the others, RDMA, what engines were told."""

import glob
import json
import os
import random
import re
import shutil
import threading
from typing import Any, Callable, Dict, List, Optional

from fleetctl.onbox.link_probe import echo, knock, resolved, who_has
from fleetctl.onbox.main import PATH, Call, op
from fleetctl.onbox.process import run
from fleetctl.onbox.units import environment_of, states

NET, RDMA = "/sys/class/net", "/sys/class/infiniband"
MOST = 64  # interfaces, and RDMA ports, that are told
MOST_GIDS = 64  # entries of a GID table that are looked at
SMALL = 64  # bytes of a packet that passes everywhere
VARIABLES = (
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "UCX_NET_DEVICES",
    "NCCL_IB_HCA",
    "NCCL_IB_DISABLE",
    "NCCL_IB_GID_INDEX",
    "NCCL_NET",
    "VLLM_HOST_IP",
)
ERRORS = ("rx_errors", "tx_errors", "rx_crc_errors", "rx_missed_errors")
EPHEMERAL = (33000, 60000)  # NCCL and Gloo meet on ports that the kernel chooses: one of these is tried


@op("examine_link")
def examine_link(
    call: Call, own: str, peers: Dict[str, str], ports: Dict[str, List[int]], units: List[str]
) -> Dict[str, Any]:
    """What this box knows of its link.

    ``own`` is its link address, ``peers`` those of the other boxes, ``ports`` (box → ports) are knocked at there: none
    on which somebody listens. ``units`` are engines whose environment is told, of :data:`VARIABLES` alone.
    """
    address = resolved(own)
    every = interfaces(call)
    mine = next((name for name, one in every.items() if address in one["addresses"]), None)
    others = {box: resolved(peer) for box, peer in peers.items()}
    known = {box: peer for box, peer in others.items() if peer is not None}
    four = [peer for peer in known.values() if ":" not in peer]
    heard = None
    if mine is not None and address is not None and ":" not in address:
        heard = who_has(mine, every[mine]["mac"], address, sorted({address, *four}))
    call.check()
    ways: Dict[str, Dict[str, Any]] = {}
    threads = [
        threading.Thread(
            target=_way, args=(call, ways, box, address, peer, every, mine, ports.get(box, [])), daemon=True
        )
        for box, peer in known.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "address": address,
        "peers": others,
        "interfaces": dict(list(every.items())[:MOST]),
        "interface": mine,
        "heard": heard,
        "ways": ways,
        "rdma": rdma_ports()[:MOST],
        "environment": engine_environments(call, units),
    }


@op("link_interfaces")
def link_interfaces(call: Call, addresses: List[str]) -> Dict[str, Any]:
    """Interfaces and RDMA ports of this box, its CPUs, tools for measuring, and the IP addresses of names."""
    return {
        "interfaces": dict(list(interfaces(call).items())[:MOST]),
        "rdma": rdma_ports()[:MOST],
        "cpus": os.cpu_count() or 1,
        "tools": [name for name in ("ib_write_bw",) if shutil.which(name, path=PATH)],
        "resolved": {address: resolved(address) for address in addresses},
    }


def _way(
    call: Call,
    ways: Dict[str, Dict[str, Any]],
    box: str,
    own: Optional[str],
    peer: str,
    every: Dict[str, Dict[str, Any]],
    mine: Optional[str],
    ports: List[int],
) -> None:
    """How packets go to another box, and what comes back."""
    found: Dict[str, Any] = {"route": route_to(call, peer)}
    ways[box] = found
    if own is None or mine is None:
        return
    if ":" not in peer and ":" not in own:
        mtu = every[mine]["mtu"]
        found["small"] = echo(own, peer, SMALL)
        found["size"], found["full"] = mtu, echo(own, peer, mtu)
    free = random.SystemRandom().randint(*EPHEMERAL)
    found["ports"] = {str(port): knock(own, peer, port) for port in ports}
    found["any_port"] = [free, knock(own, peer, free)]


def interfaces(call: Call, net: str = NET) -> Dict[str, Dict[str, Any]]:
    """Interface → how it is set and what it counted. Speed is in Mbit/s, None where the kernel does not say."""
    told = json.loads(run(call, ["ip", "-j", "address", "show"])["out"] or "[]")
    found = {}
    for one in told:
        name = str(one.get("ifname", ""))
        folder = os.path.join(net, name)
        if not name or name == "lo":
            continue
        found[name] = {
            "mtu": int(one.get("mtu", 0)),
            "mac": str(one.get("address", "")),
            "up": "UP" in one.get("flags", []),
            "carrier": "LOWER_UP" in one.get("flags", []),
            "addresses": {
                str(own["local"]): int(own.get("prefixlen", 0)) for own in one.get("addr_info", []) if "local" in own
            },
            "speed": positive(text(folder + "/speed")),
            "duplex": text(folder + "/duplex") or None,
            "errors": {key: int(text(folder + "/statistics/" + key) or 0) for key in ERRORS},
            "packets": sum(int(text(folder + "/statistics/%s_packets" % way) or 0) for way in ("rx", "tx")),
            "pci": os.path.basename(os.path.realpath(folder + "/device")) if os.path.exists(folder + "/device") else "",
            "pci_speed": text(folder + "/device/current_link_speed"),
            "pci_width": positive(text(folder + "/device/current_link_width")),
            "driver": os.path.basename(os.path.realpath(folder + "/device/driver")),
            "can": None,
        }
    if shutil.which("ethtool", path=PATH):
        for name, one in found.items():
            if one["pci"]:
                one["can"] = fastest(run(call, ["ethtool", name], timeout=5)["out"])
    return found


def fastest(said: str) -> Optional[int]:
    """The fastest of the link modes that ethtool says an interface supports, in Mbit/s; None: it does not say."""
    part = re.search(r"Supported link modes:(.*?)\n\s*Supported pause", said, re.DOTALL)
    return max((int(speed) for speed in re.findall(r"(\d+)base", part.group(1))), default=None) if part else None


def route_to(call: Call, peer: str) -> Optional[Dict[str, Any]]:
    """Interface, gateway and source that the kernel takes to an address; None where it knows no way."""
    done = run(call, ["ip", "-j", "route", "get", peer])
    if done["rc"] != 0:
        return None
    first = (json.loads(done["out"] or "[]") or [{}])[0]
    return {"dev": first.get("dev"), "gateway": first.get("gateway"), "source": first.get("prefsrc")}


def rdma_ports(folder: str = RDMA) -> List[Dict[str, Any]]:
    """Every port of every RDMA device, in the kernel's own words."""
    found = []
    for path in sorted(glob.glob(folder + "/*/ports/*")):
        device = path.split("/")[-3]
        gids = []
        for index in range(MOST_GIDS):
            gid, kind = text("%s/gids/%d" % (path, index)), text("%s/gid_attrs/types/%d" % (path, index))
            if gid and gid.strip("0:"):
                gids.append({"index": index, "gid": gid, "type": kind})
        nets = {text(one) for one in glob.glob(path + "/gid_attrs/ndevs/*")} - {""}
        nets |= {os.path.basename(one) for one in glob.glob("%s/%s/device/net/*" % (folder, device))}
        found.append(
            {
                "device": device,
                "port": int(path.split("/")[-1]),
                "state": text(path + "/state"),
                "phys_state": text(path + "/phys_state"),
                "rate": text(path + "/rate"),
                "link_layer": text(path + "/link_layer"),
                "netdevs": sorted(nets),
                "gids": gids,
                "board": text("%s/%s/sys_image_guid" % (folder, device)),
            }
        )
    return found


def engine_environments(
    call: Call, units: List[str], of: Callable[[int], Dict[str, str]] = environment_of
) -> Dict[str, Dict[str, str]]:
    """Unit that runs → what its process was told of networks."""
    told = {unit: of(state["pid"]) for unit, state in states(call, units).items() if state["pid"]}
    return {unit: {name: values[name] for name in VARIABLES if name in values} for unit, values in told.items()}


def text(path: str) -> str:
    """The one line of a file in /sys; nothing where there is none, or the driver does not say."""
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            return source.read(4096).strip()
    except OSError:
        return ""


def positive(value: str) -> Optional[int]:
    """A number above 0, or None: drivers say -1 for unknown, some of them as a number without a sign."""
    return int(value) if value.isdigit() and 0 < int(value) < 1 << 31 else None
