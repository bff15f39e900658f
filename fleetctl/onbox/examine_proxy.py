"""The proxy of this box as it runs, what its log tells, and what else may stand in its way."""

import json
import time
from typing import Any, Dict, List, Optional

from fleetctl.onbox import haproxy
from fleetctl.onbox.journalctl import read_back
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.otherproxies import other_proxies
from fleetctl.onbox.process import run
from fleetctl.onbox.proxytraffic import Traffic

BACK = 3600.0  # seconds of the log
MOST_LINES = 400_000
LOG_LIMIT = 10.0  # seconds for reading them
SETTLED = 2.0  # seconds after a server came up from which on it has to get its share


@op("examine_proxy")
def examine_proxy(
    call: Call, socket_path: Optional[str], unit: str, config: Optional[str] = None, back: float = BACK
) -> Dict[str, Any]:
    """Facts for doctor. ``socket_path`` None: the proxy is not on this box; ``config``: a file whose text is wanted."""
    running = _running(socket_path) if socket_path is not None else None
    return {
        "running": running,
        "traffic": _traffic(call, unit, running["servers"], running["uptime"], back) if running else None,
        "states": _states() if socket_path is not None else [],
        "networks": _networks(call),
        "others": other_proxies(call),
        "config": _text(config) if config else None,
    }


def _running(path: str) -> Optional[Dict[str, Any]]:
    """Servers of the running HAProxy; None when it does not run. ``uptime`` is that of its process, in seconds."""
    try:
        rows = haproxy.rows(path)
        uptime = float(haproxy.info(path).get("Uptime_sec") or 0)
        states = {"%s/%s" % (row["be_name"], row["srv_name"]): row for row in haproxy.server_states(path)}
    except OpError:
        return None
    found = []
    for row in rows:
        name = "%s/%s" % (row["pxname"], row["svname"])
        if row["svname"] in ("FRONTEND", "BACKEND") or name not in states:
            continue
        found.append(
            {
                "backend": row["pxname"],
                "server": row["svname"],
                "status": row["status"],
                "check": row.get("check_status", ""),
                "weight": int(row["weight"] or 0),
                "changed": float(row["lastchg"] or 0),
                "total": int(row["stot"] or 0),
                "maxconn": int(row["slim"] or 0),
                "address": states[name].get("srv_addr", ""),
                "port": int(states[name].get("srv_port") or 0),
                "name": states[name].get("srv_fqdn", "-"),
            }
        )
    return {"uptime": uptime, "servers": found}


def _traffic(call: Call, unit: str, servers: List[Dict[str, Any]], uptime: float, back: float) -> Dict[str, Any]:
    """Requests of each server since all that are up were, and who reads metrics through the proxy."""
    now = time.time()
    since: Dict[str, float] = {}
    for server in servers:
        if server["status"].startswith("UP"):
            from_here = now - min(server["changed"], uptime) + SETTLED
            since[server["backend"]] = max(since.get(server["backend"], now - back), from_here)
    traffic = Traffic(since)
    read = read_back(call, unit, now - back, traffic.add, MOST_LINES, LOG_LIMIT)
    return {**traffic.told(), **read, "since": since, "now": now}


def _states() -> List[Dict[str, Any]]:
    """What the file says that servers are like after a start of HAProxy."""
    rows = haproxy.state_rows(_text(haproxy.STATES) or "")
    return [
        {
            "backend": row["be_name"],
            "server": row["srv_name"],
            "address": row.get("srv_addr", ""),
            "port": int(row.get("srv_port") or 0),
            "admin": int(row.get("srv_admin_state") or 0),
        }
        for row in rows
    ]


def _networks(call: Call) -> List[Dict[str, Any]]:
    """Address, length of its network's prefix and interface of each global address."""
    try:
        told = json.loads(run(call, ["ip", "-j", "address", "show", "scope", "global"])["out"] or "[]")
    except (OpError, ValueError):
        return []
    return [
        {"interface": link.get("ifname", ""), "address": one["local"], "prefix": one["prefixlen"]}
        for link in told
        for one in link.get("addr_info", [])
        if "local" in one and "prefixlen" in one
    ]


def _text(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            return source.read(1 << 20)
    except OSError:
        return None
