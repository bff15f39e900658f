"""What the services of this box take of its memory: from control groups (v1 and v2), or else process by process.

A service's use is what cannot be taken back from it: the page cache that the kernel charges to it does not count.
Engines of fleetctl are no services here: their units are left out, and every group with a process that carries
FLEETCTL_ENGINE (a container of Docker's has a group of its own).

The guard lands on a box with this module too: it imports nothing but the standard library.
"""

import json
import os
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

SYSTEM = "/"  # where proc and sys are; tests have a tree of their own
FOREIGN_ENGINE = re.compile(r"\bvllm\b|\bsglang\b|llama-server|text-embeddings-router|infinity_emb|VLLM::")
DOCKER = "var/lib/docker/containers/%s/config.v2.json"
PODMAN = "var/lib/containers/storage/overlay-containers/containers.json"
CONTAINER = re.compile(r"(?:docker-|libpod-|crio-|cri-containerd-)?([0-9a-f]{64})(?:\.scope)?")
OUR_SERVICES = (
    "fleetctl-proxy.service",
    "fleetctl-guard.service",
    "fleetctl-vrrp.service",
    "fleetctl-firewall.service",
    "fleetctl-nats.service",
    "fleetctl-gateway.service",
    "fleetctl-worker.service",
    "fleetctl-batch.service",
)
AS_ONE = ("user.slice", "init.scope")
SAMPLED_PROCESSES = 8  # of a group, to tell an engine from a service


class Use(NamedTuple):
    """What one service takes, in bytes; ``engine``: it looks like an engine that is not fleetctl's."""

    now: int
    peak: Optional[int] = None
    """The most since it began, page cache included; None: this kernel does not say."""
    engine: bool = False


class Services:
    """Looks at the services of a box, again and again; what does not change is remembered."""

    def __init__(self, system: str = SYSTEM) -> None:
        self._system = system
        self._known: Dict[Tuple[str, int], Tuple[str, str]] = {}  # group → its name and kind

    def look(self) -> Dict[str, Use]:
        """Service → its use. Never raises: what cannot be read is not there."""
        found: Dict[str, Use] = {}
        group = memory_group(self._system)
        uses = self._of_groups(*group) if group else self._of_processes()
        for name, use in uses:
            # Instances with one name (containers that were made anew) count together.
            before = found.get(name)
            if before is not None:
                peak = None if use.peak is None or before.peak is None else use.peak + before.peak
                use = Use(use.now + before.now, peak, use.engine or before.engine)
            found[name] = use
        return found

    def _of_groups(self, root: str, version: int) -> Iterator[Tuple[str, Use]]:
        seen = set()
        for path in _leaves(root):
            try:
                key = (path, os.stat(path).st_ino)
                now = _charged(path, version)
            except (OSError, ValueError, KeyError):
                continue  # it has ended
            seen.add(key)
            name, kind = self._known.get(key, ("", ""))
            if kind not in (
                "ours",
                "foreign",
            ):  # a process that has only just been forked does not show what it will be
                name, kind = name or self._name(path), self._kind(path)
                self._known[key] = (name, kind)
            if kind != "ours":
                yield name, Use(now, _peak(path, version), kind == "foreign")
        self._known = {key: value for key, value in self._known.items() if key in seen}

    def _name(self, path: str) -> str:
        """The unit, or the name of a container where Docker or Podman tells it."""
        base = os.path.basename(path)
        container = CONTAINER.fullmatch(base)
        if container is None:
            return base
        identity = container.group(1)
        try:
            with open(os.path.join(self._system, DOCKER % identity), encoding="utf-8") as source:
                return "container " + str(json.load(source)["Name"]).lstrip("/")
        except (OSError, ValueError, KeyError, TypeError):
            pass
        try:
            with open(os.path.join(self._system, PODMAN), encoding="utf-8") as source:
                for entry in json.load(source):
                    if entry["id"] == identity and entry["names"]:
                        return "container " + str(entry["names"][0])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return "container " + identity[:12]

    def _kind(self, path: str) -> str:
        """Of a group: ``ours`` for an engine of fleetctl, ``foreign`` for another, ``service`` for all else."""
        if _is_engine(os.path.basename(path)):
            return "ours"
        kinds = [_kind_of(self._system, pid) for pid in _pids(path)]
        return next((kind for kind in ("ours", "foreign") if kind in kinds), "service")

    def _of_processes(self) -> Iterator[Tuple[str, Use]]:
        """Without control groups for memory: what is no file in each process. Shared memory counts once a service."""
        private: Dict[str, int] = {}
        shared: Dict[str, int] = {}
        kinds: Dict[str, List[str]] = {}
        for name in _listed(os.path.join(self._system, "proc")):
            if not name.isdigit():
                continue
            try:
                with open(os.path.join(self._system, "proc", name, "status"), encoding="utf-8", errors="replace") as s:
                    rows = dict(line.split(":", 1) for line in s if line.startswith("Rss"))
                if not rows:
                    continue  # a thread of the kernel
                unit = _unit(self._system, name)
                anonymous, shmem = (int(rows[key].split()[0]) * 1024 for key in ("RssAnon", "RssShmem"))
            except (OSError, ValueError, KeyError, IndexError):
                continue
            kinds.setdefault(unit, []).append(_kind_of(self._system, name))
            private[unit] = private.get(unit, 0) + anonymous
            shared[unit] = max(shared.get(unit, 0), shmem)
        for unit in private:
            if "ours" not in kinds[unit] and not _is_engine(unit):
                yield unit, Use(private[unit] + shared[unit], None, "foreign" in kinds[unit])


def memory_group(system: str = SYSTEM) -> Optional[Tuple[str, int]]:
    """The folder below which the groups of this box are, and 1 or 2; None where the memory controller has none."""
    base = os.path.join(system, "sys/fs/cgroup")
    paths = {}
    try:
        with open(os.path.join(system, "proc/1/cgroup"), encoding="utf-8") as source:
            for line in source:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                paths[controllers] = path
        with open(base + "/cgroup.controllers", encoding="utf-8") as source:
            unified = "memory" in source.read().split()
    except (OSError, ValueError):
        unified = False
    folder, path = (base, paths.get("", "/")) if unified else (base + "/memory", paths.get("memory", "/"))
    # PID 1 is in init.scope; where a container sees its host's groups its own are below that path.
    own = path[: -len("/init.scope")] if path.endswith("/init.scope") else path
    for root in (folder + own.rstrip("/"), folder):
        if os.path.isdir(root + "/system.slice"):
            return root, 2 if unified else 1
    return None


def _leaves(root: str) -> Iterator[str]:
    """Groups of services: slices are looked into, but not sessions of users, nor what a service has below it."""
    for name in _listed(root):
        path = os.path.join(root, name)
        if not os.path.isdir(path):
            continue
        if name.endswith(".slice") and name not in AS_ONE:
            yield from _leaves(path)
        elif name in ("docker", "libpod_parent"):  # containers that systemd does not know, each in a group of its own
            yield from (os.path.join(path, one) for one in _listed(path) if os.path.isdir(os.path.join(path, one)))
        elif name.endswith((".service", ".scope", ".slice")) or name == "kubepods":
            yield path


def _listed(path: str) -> List[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _charged(path: str, version: int) -> int:
    """Bytes of a group and those below it that are not page cache."""
    with open(path + ("/memory.current" if version == 2 else "/memory.usage_in_bytes")) as source:
        total = int(source.read())
    with open(path + "/memory.stat") as source:
        rows = dict(line.split() for line in source)
    prefix = "" if version == 2 else "total_"
    cache = int(rows[prefix + "active_file"]) + int(rows[prefix + "inactive_file"])
    return max(0, total - cache - int(rows.get("slab_reclaimable", 0)))


def _peak(path: str, version: int) -> Optional[int]:
    try:
        with open(path + ("/memory.peak" if version == 2 else "/memory.max_usage_in_bytes")) as source:
            return int(source.read())
    except (OSError, ValueError):
        return None


def _pids(path: str) -> List[str]:
    """The first processes of a group, or of those just below it."""
    for folder in [path, *(os.path.join(path, name) for name in _listed(path))]:
        try:
            with open(folder + "/cgroup.procs") as source:
                pids = source.read().split()
        except OSError:
            continue
        if pids:
            return pids[:SAMPLED_PROCESSES]
    return []


def _kind_of(system: str, pid: str) -> str:
    try:
        with open(os.path.join(system, "proc", pid, "environ"), "rb") as source:
            if any(entry.startswith(b"FLEETCTL_ENGINE=") for entry in source.read().split(b"\0")):
                return "ours"
        with open(os.path.join(system, "proc", pid, "cmdline"), "rb") as source:
            words = source.read().split(b"\0")[:3]
    except OSError:
        return "service"
    programs = b" ".join(os.path.basename(word) for word in words).decode("utf-8", "replace")
    return "foreign" if FOREIGN_ENGINE.search(programs) else "service"


def _is_engine(unit: str) -> bool:
    return unit.startswith("fleetctl-") and unit not in OUR_SERVICES


def _unit(system: str, pid: str) -> str:
    """The service that a process belongs to, from any hierarchy that systemd keeps."""
    with open(os.path.join(system, "proc", pid, "cgroup"), encoding="utf-8") as source:
        rows = [line.rstrip("\n").split(":", 2) for line in source]
    named = [row[2] for row in rows if row[1] == "name=systemd"] + [row[2] for row in rows if row[1] == ""]
    for path in named:
        parts = [part for part in path.split("/") if part]
        if "user.slice" in parts:
            return "user.slice"
        for part in parts:
            if part.endswith((".service", ".scope")):
                return part
    return "(no service)"
