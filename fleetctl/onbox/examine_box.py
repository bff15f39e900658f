"""What doctor wants to know of this box besides its memory: clock, disks, limits, versions, models, settings."""

import glob
import os
import platform
import re
import time
from typing import Any, Dict, List, Optional

from fleetctl.onbox import nvidia
from fleetctl.onbox.builds import image_build, venv_build
from fleetctl.onbox.examine_memory import in_container, text_of
from fleetctl.onbox.fingerprints import fingerprints, hub_fingerprints
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.process import run
from fleetctl.onbox.units import engine_processes

PLACES = (
    "/",
    "/etc/fleetctl",
    "/var/lib/fleetctl",
    "/var/log/journal",
    "/var/lib/docker",
    "/var/lib/containers/storage",
)
PACKAGES = re.compile(
    r"(vllm(?:_cpu)?|torch|ray|flashinfer_\w+|transformers|triton|nvidia_nccl_cu\d+|nvidia_cuda_runtime(?:_cu\d+)?)"
    r"-([^/]+)\.dist-info$"
)
SLEEP = ("sleep.target", "suspend.target", "hibernate.target", "hybrid-sleep.target", "suspend-then-hibernate.target")
LOGIND = ("IdleAction", "HandleLidSwitch", "HandleLidSwitchExternalPower")
DRIVERS = ("nvidia-driver-*", "nvidia-dkms-*", "nvidia-kernel-*", "libnvidia-compute-*", "linux-modules-nvidia-*")
CONTAINERS = ("docker.io", "docker-ce", "containerd", "containerd.io", "podman", "nvidia-container-toolkit")
THROTTLED = "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown"
MOST = 60_000  # characters that are told of any output


@op("examine_box")
def examine_box(
    call: Call,
    folders: List[str],
    binaries: List[str],
    images: List[List[str]],
    hub: Optional[List[Dict[str, Any]]] = None,
) -> Dict[str, Any]:
    """``folders`` are models, ``binaries`` programs of venvs, ``images`` a container engine and a reference each.

    ``hub`` are models of the hub: ``id``, ``revision`` (or nothing), and the engine's ``env`` as far as that goes.
    Outputs are as the tools print them; what a box does not have or does not tell is None.
    """
    begin = time.time()
    gpus = nvidia.query(call, "gpu", nvidia.GPUS)
    told = {
        "container": in_container(),
        "timedatectl": said(call, "timedatectl", "show"),
        "disks": disks([*PLACES, *folders]),
        "limits": limits(),
        "os_release": text_of("/etc/os-release"),
        "kernel": platform.release(),
        "driver": text_of("/proc/driver/nvidia/version"),
        "gpus": gpus,
        "throttled": throttled(call) if gpus and gpus["rc"] == 0 else None,
        "haproxy": said(call, "haproxy", "-v"),
        "venvs": {binary: packages(call, binary) for binary in binaries},
        "images": {image: image_build(call, engine, image) for engine, image in images},
        "models": {**fingerprints(call, folders), **hub_fingerprints(call, hub or [])},
        "sleep": sleep(call),
        "upgrades": upgrades(call),
        "journal": journal_kept(),
        "reboot": reboot_wanted(),
    }
    return {**told, "began": begin, "ended": time.time()}


def said(call: Call, *argv: str) -> Optional[str]:
    """What a command prints; None where there is none, or it fails."""
    try:
        done = run(call, list(argv), timeout=15)
    except OpError:
        return None
    return str(done["out"])[:MOST] if done["rc"] == 0 else None


def disks(paths: List[str]) -> List[Dict[str, Any]]:
    """File systems that the paths are on, with the ``paths``; bytes, what others than root may use as ``free``."""
    found: Dict[int, Dict[str, Any]] = {}
    for path in dict.fromkeys(paths):
        try:
            device, room = os.stat(path).st_dev, os.statvfs(path)
        except OSError:
            continue
        entry = found.setdefault(
            device,
            {
                "paths": [],
                "size": room.f_blocks * room.f_frsize,
                "free": room.f_bavail * room.f_frsize,  # as df has it: many engines are not root
                "inodes": room.f_files,
                "inodes_free": room.f_ffree,
                "read_only": bool(room.f_flag & os.ST_RDONLY),
            },
        )
        entry["paths"].append(path)
    return list(found.values())


def limits() -> List[Dict[str, Any]]:
    """Processes of engines with the line that /proc has of their open files."""
    found = []
    for process in engine_processes():
        text = text_of("/proc/%d/limits" % process["pid"]) or ""
        lines = [line for line in text.splitlines() if line.startswith("Max open files")]
        found += [dict(process, line=line) for line in lines]
    return found


def throttled(call: Call) -> Optional[Dict[str, Any]]:
    """Reasons for which the clocks of GPUs are held down, by the newer names of the fields or the older."""
    for word in ("clocks_event_reasons", "clocks_throttle_reasons"):
        told = nvidia.query(call, "gpu", ",".join(["index", *(word + "." + name for name in THROTTLED)]))
        if told is not None and told["rc"] == 0:
            return told
    return None


def packages(call: Call, binary: str) -> Optional[Dict[str, Any]]:
    """Versions in the venv of a program, without importing anything; None where there is none."""
    venv = os.path.dirname(os.path.dirname(binary))
    found: Dict[str, str] = {}
    for path in glob.glob(glob.escape(venv) + "/lib/python3*/site-packages/*.dist-info"):
        named = PACKAGES.match(os.path.basename(path))
        if named:
            found[named.group(1).replace("_", "-")] = named.group(2)
    for path in glob.glob(glob.escape(venv) + "/lib/python3*"):
        found["python"] = os.path.basename(path)[len("python") :]
    build = venv_build(call, binary) if os.path.exists(binary) else None
    return {"versions": found, "digest": build["digest"]} if build else None


def sleep(call: Call) -> Dict[str, Any]:
    """Whether this box can sleep, and what would send it there; ``settings`` are path, key and value, in order."""
    folders = ["/usr/lib/systemd", "/run/systemd", "/etc/systemd"]
    drop_ins = [path for folder in folders for path in glob.glob(folder + "/logind.conf.d/*.conf")]
    last = {os.path.basename(path): path for path in drop_ins}  # one in /etc stands for one of its name in /usr/lib
    mains = [folder + "/logind.conf" for folder in folders if os.path.isfile(folder + "/logind.conf")]
    paths = mains[-1:] + [last[name] for name in sorted(last)]
    gdm = "/etc/gdm3/greeter.dconf-defaults"
    return {
        "targets": said(call, "systemctl", "show", "--no-pager", "-p", "Id,LoadState", "--", *SLEEP),
        "states": (text_of("/sys/power/state") or "").split(),
        "settings": [[path, key, value] for path in paths for key, value in settings(path) if key in LOGIND],
        "lid": bool(glob.glob("/proc/acpi/button/lid/*")),
        "desktop": said(
            call, "systemctl", "show", "--no-pager", "-p", "Id,ActiveState", "--", "display-manager.service"
        ),
        "greeter": [[gdm, key, value] for key, value in settings(gdm) if key.startswith("sleep-inactive-ac")],
    }


def settings(path: str) -> List[List[str]]:
    """Keys and values of a file, in order; without what is commented out."""
    lines = [line.strip() for line in (text_of(path) or "").splitlines()]
    pairs = [line.split("=", 1) for line in lines if "=" in line and not line.startswith(("#", ";"))]
    return [[key.strip(), value.strip()[:200]] for key, value in pairs]


def upgrades(call: Call) -> Dict[str, Any]:
    """What upgrades itself here, and what is done after it."""
    config = said(call, "apt-config", "dump") or ""
    wanted = [line for line in config.splitlines() if line.startswith(("APT::Periodic", "Unattended-Upgrade"))]
    files = sorted(glob.glob("/etc/needrestart/needrestart.conf") + glob.glob("/etc/needrestart/conf.d/*.conf"))
    lines = [[path, line.strip()] for path in files for line in (text_of(path) or "").splitlines()]
    query = ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}|${Package}|${Version}\\n", *DRIVERS, *CONTAINERS]
    try:
        known = str(run(call, query, timeout=20)["out"])  # it fails where one of the names is not there
    except OpError:
        known = ""
    return {
        "unattended": os.access("/usr/bin/unattended-upgrade", os.X_OK),
        "timer": said(call, "systemctl", "show", "-p", "Id,LoadState,ActiveState", "--", "apt-daily-upgrade.timer"),
        "apt": "\n".join(wanted)[:MOST],
        "packages": [line for line in known.splitlines() if line[1:2] == "i"][:200],
        "needrestart": os.access("/usr/sbin/needrestart", os.X_OK),
        "nrconf": [[path, line[:300]] for path, line in lines if line.startswith("$nrconf")][:100],
    }


def journal_kept() -> Dict[str, Any]:
    """``kept``: the journal is on the disk. ``storage`` has path and value of each Storage= that is set."""
    machine = (text_of("/etc/machine-id") or "").strip()
    files = ["/etc/systemd/journald.conf", *sorted(glob.glob("/etc/systemd/journald.conf.d/*.conf"))]
    found = [[path, value] for path in files for key, value in settings(path) if key == "Storage"]
    return {"kept": bool(machine) and bool(glob.glob("/var/log/journal/%s/*.journal" % machine)), "storage": found}


def reboot_wanted() -> Optional[List[str]]:
    """Packages for which the distribution wants a reboot; None: it does not."""
    if not os.path.exists("/run/reboot-required"):
        return None
    return list(dict.fromkeys((text_of("/run/reboot-required.pkgs") or "").split()))[:50]
