"""All that a command wants to know of a box, in one round trip."""

import os
import platform
import shutil
import socket
import time
from typing import Any, Dict, List, Optional

from fleetctl.onbox import (
    adapters,
    firewall,
    floating,
    guard,
    haproxy,
    journal,
    kept,
    lock,
    others,
    scores,
    state,
    waits,
)
from fleetctl.onbox import units as unit_states
from fleetctl.onbox.acting import Target
from fleetctl.onbox.boot import boot_of
from fleetctl.onbox.builds import image_facts
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.manifests import read_manifest, touched
from fleetctl.onbox.ports import port_owners
from fleetctl.onbox.superseded import FOLDERS
from fleetctl.onbox.unitfiles import told_of, unit_files
from fleetctl.onbox.weightplaces import Place

PROGRAMS = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"


def folder_size(path: str) -> int:
    """Bytes of the weight files in a folder; of all files when none has a known ending."""
    sizes = [(entry.name, entry.stat().st_size) for entry in os.scandir(path) if entry.is_file()]
    weights = [size for name, size in sizes if name.endswith((".safetensors", ".bin", ".gguf", ".pt"))]
    return sum(weights) if weights else sum(size for _, size in sizes)


def path_facts(path: str) -> Dict[str, Any]:
    """Whether something is there, what, and how large."""
    if os.path.isdir(path):
        return {"kind": "folder", "size": folder_size(path), "proven": is_proven(path)}
    if os.path.exists(path):
        return {"kind": "file", "size": os.path.getsize(path), "executable": os.access(path, os.X_OK)}
    return {"kind": "missing", "size": 0}


def is_proven(path: str) -> bool:
    """Checksums of a model's folder were made, and nothing in it was touched since."""
    place = Place(os.path.normpath(path))
    try:
        manifest = read_manifest(place)
        return manifest is not None and not touched(place, manifest)
    except (OpError, OSError):
        return False


def written_units(paths: List[str]) -> List[str]:
    """Units among the files that a generation puts on this box: these are fleetctl's own."""
    return [os.path.basename(path) for path in paths if os.path.dirname(path) == "/etc/systemd/system"]


def free_space(path: str) -> int:
    """Bytes free for root on the file system that a path will be on."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return shutil.disk_usage(path).free


def mentions(names: List[str], ours: List[str]) -> List[Dict[str, str]]:
    """Units of administrators that start or stop one of the units: supervisors that may do so behind our back."""
    found = []
    target = Target(names, [], [])
    for name, paths in unit_files(FOLDERS).items():
        told = None if name in names or name in ours else told_of(name, paths, target)
        for act in told["acts"] if told else []:
            one = {"unit": name, "names": act["on"], "where": act["where"]}
            if act["on"] in names and one not in found:
                found.append(one)
    return found


@op("facts")
def facts(
    call: Call,
    foreign: List[str],
    units: List[str],
    paths: List[str],
    ports: List[int],
    socket_path: str,
    secrets: Optional[Dict[str, Dict[str, str]]] = None,
    firewall_wanted: bool = False,
    floating_addresses: Optional[List[str]] = None,
    images: Optional[List[List[str]]] = None,
) -> Dict[str, Any]:
    """Facts of this box.

    ``foreign`` are superseded units, ``units`` those that a layout wants, ``paths`` programs and weights.
    ``secrets`` are files to be compared as `state.stale` does, ``floating_addresses`` those that no machine may have.
    ``images`` are container engines, each with the image that it is to have. The firewall is looked at where one is
    wanted, or should be.
    """
    now = kept.current_facts()
    current = now["generation"]
    generations = kept.generations()
    known = kept.superseded()
    ours = sorted({unit for meta in generations.values() for unit in written_units(meta["paths"])})
    meta = generations.get(current) or {}
    guarded = firewall_wanted or firewall.FILE in meta.get("paths", []) or os.path.exists(firewall.FILE)
    foreign = sorted({*foreign, *known, *meta.get("superseded", [])})
    memory = waits.meminfo()
    return {
        "hostname": socket.gethostname(),
        "boot": boot_of(),
        "time": time.time(),
        "python": platform.python_version(),
        "memory": {"total": memory["MemTotal"], "available": memory["MemAvailable"]},
        "others": others.look(),
        "free": {path: free_space(path) for path in ("/etc/fleetctl", "/var/lib/fleetctl")},
        "units": unit_states.states(call, sorted({*ours, *units, *foreign})),
        "ours": ours,
        "processes": unit_states.engine_processes(),
        "mentions": mentions(foreign, ours) if foreign else [],
        "paths": {path: path_facts(path) for path in paths},
        "images": image_facts(call, images or []),
        "ports": port_owners(ports),
        "proxy": haproxy.look(socket_path),
        **now,
        "generations": {str(number): meta for number, meta in generations.items()},
        "drift": state.drift(current),
        "stale": state.stale(current, secrets or {}),
        "drained": kept.drained(),
        "superseded": known,
        "moves": journal.moves(),
        "scores": scores.scores(),
        "adapters": adapters.look(),
        "lock": lock.lock_state(),
        "firewall": firewall.look(call) if guarded else None,
        "nft": firewall.nft(),
        "guard_out": guard.out(),
        "moving": (lock.moving() or {}).get("move"),
        "haproxy": shutil.which("haproxy", path=PROGRAMS),
        "keepalived": shutil.which("keepalived", path=PROGRAMS),
        "vrrp": floating.foreign_vrrp(call),
        "addresses": floating.addresses(call),
        "answering": floating.answering(call, floating_addresses or []),
    }
