"""What a first look at a box finds: memory, addresses, engines, models, and units that run engines today."""

import glob
import json
import os
import re
import socket
from typing import Any, Dict, List

from fleetctl.onbox.facts import PROGRAMS
from fleetctl.onbox.kinds import box_kind, model_of
from fleetctl.onbox.main import Call, op
from fleetctl.onbox.process import run
from fleetctl.onbox.units import states
from fleetctl.onbox.waits import meminfo

ENGINE = re.compile(r"\bvllm\b|\bsglang\b|llama-server|text-embeddings-router|infinity_emb|VLLM::")
VENV_PLACES = ("/opt/*", "/srv/*", "/home/*/*", "/root/*", "/opt/*/*")
MODEL_PLACES = ("/models/*", "/models/*/*", "/srv/models/*", "/opt/models/*", "/data/models/*", "/home/*/models/*")


def addresses(call: Call) -> List[Dict[str, Any]]:
    """Global IPv4 addresses: interface, address with prefix length, and whether the default route leaves there."""
    links = json.loads(run(call, ["ip", "-j", "-4", "address", "show", "scope", "global"])["out"] or "[]")
    routes = json.loads(run(call, ["ip", "-j", "-4", "route", "show", "default"])["out"] or "[]")
    out = {route.get("dev") for route in routes}
    return [
        {
            "interface": link["ifname"],
            "address": entry["local"],
            "prefix": entry["prefixlen"],
            "default": link["ifname"] in out,
        }
        for link in links
        for entry in link.get("addr_info", [])
        if "local" in entry and not link["ifname"].startswith(("docker", "br-", "veth", "cni", "podman"))
    ]


def venvs() -> List[str]:
    """Python environments that have vLLM."""
    found = {os.path.dirname(os.path.dirname(path)) for place in VENV_PLACES for path in glob.glob(place + "/bin/vllm")}
    return sorted(found)


def models() -> List[Dict[str, Any]]:
    """Folders that hold a model: path, context length, and what `model_of` tells."""
    found = []
    for path in sorted({os.path.dirname(p) for place in MODEL_PLACES for p in glob.glob(place + "/config.json")}):
        told = model_of(path)
        if told is not None:
            found.append(dict(told, path=path, context=told["config"].get("max_position_embeddings")))
    return found


def engine_units(call: Call) -> List[Dict[str, Any]]:
    """Services that run an engine, and units that name one of those: watchdogs, timers."""
    texts: Dict[str, str] = {}
    for folder in ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system"):
        for path in sorted(glob.glob(folder + "/*.service") + glob.glob(folder + "/*.timer")):
            try:
                with open(path, encoding="utf-8", errors="replace") as source:
                    texts.setdefault(os.path.basename(path), source.read())
            except OSError:
                continue
    texts = {name: text for name, text in texts.items() if not name.startswith("fleetctl-")}
    engines = {name for name, text in texts.items() if any(_starts_engine(line) for line in text.splitlines())}
    watching = {
        name for name, text in texts.items() if name not in engines and any(_stem(unit) in text for unit in engines)
    }
    timers = {name for name in texts if name.endswith(".timer") and name[:-6] + ".service" in watching | engines}
    names = sorted(engines | watching | timers)
    return [{"unit": name, "active": state["active"]} for name, state in states(call, names).items()]


def _starts_engine(line: str) -> bool:
    return line.startswith("ExecStart=") and ENGINE.search(line) is not None


def _stem(unit: str) -> str:
    return unit.rsplit(".", 1)[0]


def resident_of_others() -> int:
    """Bytes resident in processes that are not engines."""
    total = 0
    page = os.sysconf("SC_PAGE_SIZE")
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/cmdline" % name, "rb") as source:
                command = source.read().replace(b"\0", b" ").decode("utf-8", "replace")
            with open("/proc/%s/statm" % name) as source:
                resident, shared = (int(field) for field in source.read().split()[1:3])
        except OSError:
            continue
        if not ENGINE.search(command):
            total += (resident - shared) * page
    return total


@op("survey")
def survey(call: Call) -> Dict[str, Any]:
    """Everything that a first fleet.yaml can be written from."""
    return {
        "hostname": socket.gethostname().split(".")[0],
        "memory": meminfo()["MemTotal"],
        "kind": box_kind(call),
        "others": resident_of_others(),
        "addresses": addresses(call),
        "venvs": venvs(),
        "models": models(),
        "units": engine_units(call),
        "haproxy": any(os.access(folder + "/haproxy", os.X_OK) for folder in PROGRAMS.split(":")),
    }
