"""Addresses of the box, and the keepalived that is not fleetctl's."""

import glob
import json
import re
from typing import Any, Dict, List, Optional

from fleetctl.onbox.main import Call, op
from fleetctl.onbox.process import run
from fleetctl.onbox.units import states

DISTRIBUTION = "keepalived.service"


@op("addresses")
def addresses(call: Call) -> List[str]:
    """Every global IP address that the box has now."""
    told = json.loads(run(call, ["ip", "-j", "address", "show", "scope", "global"])["out"] or "[]")
    return sorted({one["local"] for link in told for one in link.get("addr_info", []) if "local" in one})


def foreign_vrrp(call: Call) -> Optional[Dict[str, Any]]:
    """VRRP router ids and IP addresses in the files of the distribution's keepalived; None: it is off, or not there."""
    state = states(call, [DISTRIBUTION])[DISTRIBUTION]
    if state["load"] != "loaded" or (state["active"] != "active" and not state["enabled"].startswith("enabled")):
        return None
    text = ""
    for path in sorted(glob.glob("/etc/keepalived/**/*.conf", recursive=True)):
        try:
            with open(path, encoding="utf-8", errors="replace") as source:
                text += "".join(re.split(r"[#!]", line)[0] + "\n" for line in source)
        except OSError:
            continue
    ids = sorted({int(number) for number in re.findall(r"\bvirtual_router_id\s+(\d{1,3})\b", text)})
    found = sorted(set(re.findall(r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F]*:[0-9a-fA-F:]+)", text)))
    return {"router_ids": ids, "addresses": found}
