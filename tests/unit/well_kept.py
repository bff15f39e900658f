"""Two well kept DGX Spark boxes by hand, as they tell of their memory and of themselves; changes make them ill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planned import COPY, GIB, boxes_in, layout, office

from fleetctl.doctor.box import family as box_family
from fleetctl.doctor.box.told import BoxTold
from fleetctl.doctor.finding import Finding
from fleetctl.doctor.memory import family as memory_family
from fleetctl.doctor.memory.told import MemoryTold
from fleetctl.doctor.scene import Scene
from fleetctl.facts.types import BoxFacts

NOW = 1_796_040_000.0
DAY = 86_400.0
KIB = 1024
TOTAL = 127_600_748 * KIB
"""MemTotal of a GB10."""

GPUS = {"rc": 0, "out": "0, NVIDIA GB10, [N/A], [N/A], 580.95.05\n"}
SERVED = 83_000  # MiB that the engine has on the GPU
APPS = {"rc": 0, "out": f"4711, VLLM::EngineCore, {SERVED}\n"}
MEMINFO = {
    "MemTotal": TOTAL,
    "MemFree": 9 * GIB,
    "MemAvailable": 30 * GIB,
    "Cached": 22 * GIB,
    "SwapTotal": 16 * GIB,
    "SwapFree": 16 * GIB,
}
CALM = "some avg10=0.00 avg60=0.00 avg300=0.00 total=812345\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=790012\n"
SWAPS = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/swap.img             file\t\t16777212\t0\t\t-2\n"


def engine_process(**more: Any) -> dict[str, Any]:
    """The engine's core: 3 GiB besides what it has on the GPU."""
    own = {"pid": 4711, "comm": "VLLM::EngineCor", "unit": COPY, "engine": "replicas/qwen@1", "anonymous": 3 * GIB}
    return {**own, "shared": GIB // 4, "swap": 0, **more}


def memory_told(**more: Any) -> MemoryTold:
    """What a healthy box tells of its memory."""
    told = {
        "meminfo": MEMINFO,
        "swaps": SWAPS,
        "swappiness": 60,
        "pressure": CALM,
        "processes": [engine_process()],
        "gpus": GPUS,
        "apps": APPS,
        "owners": {4711: {"unit": COPY, "comm": "VLLM::EngineCor"}},
        "answered_at": NOW,
    }
    return MemoryTold.model_validate({**told, **more})


SHOWN = "".join(
    f"Id={name}\nLoadState=loaded\n\n"
    for name in ("sleep.target", "suspend.target", "hibernate.target", "hybrid-sleep.target")
)
MASKED = SHOWN.replace("loaded", "masked")
APT = """\
APT::Periodic "";
APT::Periodic::Update-Package-Lists "1";
APT::Periodic::Unattended-Upgrade "1";
Unattended-Upgrade "";
Unattended-Upgrade::Allowed-Origins "";
Unattended-Upgrade::Allowed-Origins:: "${distro_id}:${distro_codename}-security";
Unattended-Upgrade::Package-Blacklist "";
Unattended-Upgrade::Package-Blacklist:: "nvidia-";
Unattended-Upgrade::Package-Blacklist:: "libnvidia-";
"""
NOBLE = 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\nNAME="Ubuntu"\nVERSION_ID="24.04"\nID=ubuntu\nID_LIKE=debian\n'
DRIVER = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build  "
    "(dvs-builder@U22-I3-AM02-24-3)  Tue Sep 23 10:11:46 UTC 2025\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
)
VLLM = {"python": "3.12", "vllm": "0.11.0", "torch": "2.9.0+cu130", "nvidia-nccl-cu13": "2.28.3", "ray": "2.51.1"}
MODEL = {
    "config.json": [1200, "aa"],
    "tokenizer.json": [7_000_000, "bb"],
    "model-00001-of-00002.safetensors": [4_000_000_000, "cc"],
    "model-00002-of-00002.safetensors": [3_000_000_000, "dd"],
}
LIMIT = "Max open files            1048576              1048576              files     "


def box_told(**more: Any) -> BoxTold:
    """What a well kept box tells of itself."""
    told = {
        "asked_at": NOW,
        "began": NOW + 0.2,
        "ended": NOW + 1.2,
        "answered_at": NOW + 1.4,
        "timedatectl": "Timezone=Etc/UTC\nLocalRTC=no\nCanNTP=yes\nNTP=yes\nNTPSynchronized=yes\n",
        "disks": [disk()],
        "limits": [{"pid": 4711, "comm": "VLLM::EngineCor", "unit": COPY, "line": LIMIT}],
        "os_release": NOBLE,
        "kernel": "6.11.0-1016-nvidia",
        "driver": DRIVER,
        "gpus": GPUS,
        "throttled": {"rc": 0, "out": "0, Not Active, Not Active, Not Active\n"},
        "haproxy": "HAProxy version 2.8.5-1ubuntu3.3 2025/10/03 - https://haproxy.org/\nStatus: long-term\n",
        "venvs": {"/opt/vllm/bin/vllm": {"versions": VLLM, "digest": "d1"}},
        "models": {"/models/qwen": {"files": MODEL}},
        "sleep": {"targets": MASKED, "states": ["freeze", "mem"]},
        "upgrades": {
            "unattended": True,
            "timer": "Id=apt-daily-upgrade.timer\nLoadState=loaded\nActiveState=active\n",
            "apt": APT,
            "packages": ["ii |nvidia-driver-580-open|580.95.05", "ii |docker-ce|5:28.5.1"],
            "needrestart": True,
            "nrconf": [["/etc/needrestart/conf.d/fleetctl.conf", "$nrconf{override_rc}{qr(^fleetctl-)} = 0;"]],
        },
        "journal": {"kept": True},
    }
    return BoxTold.model_validate({**told, **more})


def disk(*paths: str, **more: Any) -> dict[str, Any]:
    """A disk of 1 TB with half of it free."""
    told = {"paths": paths or ("/", "/etc/fleetctl", "/var/lib/fleetctl", "/models/qwen")}
    return {**told, "size": 931 * GIB, "free": 460 * GIB, "inodes": 61_000_000, "inodes_free": 60_000_000, **more}


def scene(live: str = "replicas", facts: Mapping[str, Any] | None = None, **changes: Any) -> Scene:
    """The office in a layout; its boxes have the memory of a GB10, ``facts`` are of box a, changes of the file."""
    changes = {f"boxes__{box}__memory": "119GiB" for box in ("a", "b")} | changes
    release = layout(live, **changes)
    own = {"memory": {"total": TOTAL, "available": 30 * GIB}}
    observed = boxes_in(release, a={**own, **(facts or {})}, b=own)
    assert all(isinstance(seen, BoxFacts) for seen in observed.values())
    fleet = office(**changes)
    return Scene(fleet, tuple(layout(name, **changes) for name in fleet.layouts), release, observed, {})


def memory_findings(told: MemoryTold, seen: Scene | None = None) -> list[Finding]:
    """Findings about memory where box a tells so and box b is well."""
    return list(memory_family.find(seen or scene(), {"a": told, "b": memory_told()}))


def box_findings(told: BoxTold, seen: Scene | None = None, other: BoxTold | None = None) -> list[Finding]:
    """Findings about boxes where box a tells so, and b is well or as ``other``."""
    return list(box_family.find(seen or scene(), {"a": told, "b": other or box_told()}))
