"""Packages by apt: which are there, what installing some would bring, and taking exactly those off again."""

import re
import shutil
from typing import Any, Callable, Dict, List, Optional

from fleetctl.onbox.main import Call, OpError
from fleetctl.onbox.process import run
from fleetctl.onbox.setup_jobs import job
from fleetctl.onbox.units import systemctl

UNIT = "fleetctl-setup-packages.service"
LIMIT = 1800.0  # seconds; a mirror may be slow
LISTS = 300.0  # seconds to fetch the lists of packages
QUIETLY = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_MODE": "l", "APT_LISTCHANGES_FRONTEND": "none"}
INSTALL = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]
OTHERS = {
    "dnf": "dnf install",
    "yum": "yum install",
    "zypper": "zypper install",
    "pacman": "pacman -S",
    "apk": "apk add",
}


def manager() -> Optional[str]:
    """The package manager of this box: ``apt``, or the command of another one; None where none is known."""
    if shutil.which("apt-get") and shutil.which("dpkg-query"):
        return "apt"
    return next((command for name, command in OTHERS.items() if shutil.which(name)), None)


def versions(call: Call, names: List[str]) -> Dict[str, Optional[str]]:
    """Package → its version; None for one that is not installed."""
    found: Dict[str, Optional[str]] = dict.fromkeys(names)
    if names and manager() == "apt":
        done = run(call, ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status} ${Version}\n", *names])
        for line in done["out"].splitlines():
            name, status, version = line.split(" ", 2)
            if status == "installed":
                found[name] = version
    return found


def offer(call: Call, names: List[str]) -> Dict[str, Any]:
    """What installing these would bring: ``new`` packages, and apt's own words on ``size``.

    ``unknown``: the box's lists do not have one of them yet.
    """
    if not names:
        return {"new": [], "size": "", "unknown": False}
    # Not --assume-no: apt asks nothing, and installs, where nothing but what was named is to come.
    argv = ["apt-get", "install", "--print-uris", "-y", "--no-install-recommends", "-o", "Debug::NoLocking=1", *names]
    done = run(call, argv, timeout=120, env=QUIETLY)
    if "Unable to locate package" in done["err"] or "has no installation candidate" in done["err"]:
        return {"new": list(names), "size": "", "unknown": True}
    sizes = re.findall(r"^(?:Need to get|After this operation).*$", done["out"], re.MULTILINE)
    return {
        "new": _simulated(call, ["install", "--no-install-recommends", *names], "Inst"),
        "size": " ".join(sizes),
        "unknown": False,
    }


def candidate(call: Call, name: str) -> Optional[str]:
    """Version that apt would install; None where its lists do not have the package."""
    done = run(call, ["apt-cache", "policy", name], timeout=60)
    found = re.search(r"Candidate: (\S+)", done["out"])
    return found.group(1) if found and found.group(1) != "(none)" else None


def _simulated(call: Call, words: List[str], *verbs: str) -> List[str]:
    """Packages that apt-get would treat so."""
    done = run(call, ["apt-get", "-s", "-o", "Debug::NoLocking=1", *words], timeout=120, env=QUIETLY)
    if done["rc"] != 0:
        raise OpError("apt-get %s: %s" % (" ".join(words), (done["err"].strip() or done["out"].strip())[-800:]))
    return [line.split()[1] for line in done["out"].splitlines() if line.startswith(tuple(v + " " for v in verbs))]


def install(call: Call, names: List[str], record: Dict[str, Any], keep: Callable[[], None]) -> None:
    """Install what is missing of these. Which packages that brings is in the record, and kept, before it begins."""
    missing = [name for name, version in versions(call, names).items() if version is None]
    if not missing:
        return
    if manager() != "apt":
        raise OpError("there is no apt here: install %s by hand" % " ".join(missing))
    if offer(call, missing)["unknown"]:
        call.event(log="apt-get update")
        job(call, UNIT, ["apt-get", "update", "-q"], LISTS, QUIETLY)
    new = _simulated(call, ["install", "--no-install-recommends", *missing], "Inst")
    there = versions(call, new)
    known = record.setdefault("packages", [])
    known += [name for name in new if there[name] is None and name not in known]
    keep()
    call.event(log="apt-get install %s" % " ".join(missing))
    try:
        job(call, UNIT, [*INSTALL, *missing], LIMIT, QUIETLY)
    except OpError as first:
        # Lists that are older than the mirror name files that are gone.
        job(call, UNIT, ["apt-get", "update", "-q"], LISTS, QUIETLY)
        try:
            job(call, UNIT, [*INSTALL, *missing], LIMIT, QUIETLY)
        except OpError:
            raise first from None


def off(call: Call, units: List[str]) -> None:
    """Stop the distribution's own services, now and at boot: fleetctl brings units of its own."""
    if units:
        systemctl(call, "disable", "--now", *units)


def purge(call: Call, names: List[str]) -> List[str]:
    """Take packages off with their configuration. Returns why they stay, where something else needs them by now."""
    there = [name for name, version in versions(call, names).items() if version is not None]
    rest = [name for name in names if name not in there and _has_configuration(call, name)]
    if not there + rest:
        return []
    others = sorted(set(_simulated(call, ["purge", *there, *rest], "Remv", "Purg")) - set(names))
    if others:
        return ["%s stays: %s, which setup did not install, needs it" % (" ".join(there), " ".join(others))]
    call.event(log="apt-get purge %s" % " ".join(there))
    job(call, UNIT, ["apt-get", "purge", "-y", "-q", "-o", "DPkg::Lock::Timeout=300", *there, *rest], LIMIT, QUIETLY)
    return []


def _has_configuration(call: Call, name: str) -> bool:
    done = run(call, ["dpkg-query", "-W", "-f", "${db:Status-Status}", name])
    return bool(done["out"].strip() in ("config-files", "half-configured", "unpacked", "half-installed"))
