"""systemd on the box: unit states, and starting and stopping with the effect verified."""

import os
import re
import time
from typing import Any, Dict, List, Optional, Sequence

from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.process import run

PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "FragmentPath",
    "DropInPaths",
    "MainPID",
    "InvocationID",
    "NRestarts",
    "Result",
    "ExecMainStatus",
    "NeedDaemonReload",
    "TriggeredBy",
    "StateChangeTimestamp",
    "Job",
)


def show(call: Call, units: Sequence[str]) -> Dict[str, Dict[str, str]]:
    """Unit name → its properties. A unit that does not exist has LoadState=not-found."""
    if not units:
        return {}
    done = run(call, ["systemctl", "show", "--no-pager", "-p", ",".join(PROPERTIES), "--", *units])
    if done["rc"] != 0:
        raise OpError("systemctl show failed: " + done["err"].strip())
    blocks = [
        dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        for block in done["out"].strip("\n").split("\n\n")
    ]
    return dict(zip(units, blocks))  # noqa: B905 - strict= came with Python 3.10


def environment_of(pid: int) -> Dict[str, str]:
    """Environment a process was started with; empty when it is gone."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as source:
            pairs = source.read().split(b"\0")
    except OSError:
        return {}
    return dict(pair.decode("utf-8", "replace").split("=", 1) for pair in pairs if b"=" in pair)


def unit_of(pid: int) -> Optional[str]:
    """The systemd service whose control group a process is in."""
    try:
        with open("/proc/%d/cgroup" % pid) as source:
            found = re.findall(r"/([^/\n]+\.(?:service|scope))", source.read())
    except OSError:
        return None
    return found[-1] if found else None


def engine_processes() -> List[Dict[str, Any]]:
    """Every process that carries FLEETCTL_ENGINE: started by one of our units, wherever it ended up."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        pid = int(name)
        engine = environment_of(pid).get("FLEETCTL_ENGINE")
        if engine:
            found.append({"pid": pid, "engine": engine, "unit": unit_of(pid), "comm": comm_of(pid)})
    return found


@op("engine_processes")
def list_engine_processes(call: Call) -> List[Dict[str, Any]]:
    """Every process that carries FLEETCTL_ENGINE."""
    return engine_processes()


def comm_of(pid: int) -> str:
    """The kernel's short name of a process (at most 15 characters)."""
    try:
        with open("/proc/%d/comm" % pid) as source:
            return source.read().strip()
    except OSError:
        return ""


def states(call: Call, units: Sequence[str]) -> Dict[str, Dict[str, Any]]:
    """Unit → what fleetctl wants to know of it, ``engine`` being the FLEETCTL_ENGINE of the running process."""
    found = {}
    for unit, properties in show(call, units).items():
        pid = int(properties.get("MainPID") or 0)
        found[unit] = {
            "load": properties.get("LoadState", ""),
            "active": properties.get("ActiveState", ""),
            "sub": properties.get("SubState", ""),
            "enabled": properties.get("UnitFileState", ""),
            "fragment": properties.get("FragmentPath", ""),
            "drop_ins": properties.get("DropInPaths", "").split(),
            "pid": pid,
            "invocation": properties.get("InvocationID", ""),
            "restarts": int(properties.get("NRestarts") or 0),
            "result": properties.get("Result", ""),
            "status": properties.get("ExecMainStatus", ""),
            "reload": properties.get("NeedDaemonReload") == "yes",
            "triggered_by": properties.get("TriggeredBy", "").split(),
            "since": properties.get("StateChangeTimestamp", ""),
            "job": int(properties.get("Job") or 0),
            "engine": environment_of(pid).get("FLEETCTL_ENGINE") if pid else None,
        }
    return found


@op("unit_states")
def unit_states(call: Call, units: List[str]) -> Dict[str, Dict[str, Any]]:
    """States of the units named."""
    return states(call, units)


def pushed_out_by(call: Call, unit: str) -> List[str]:
    """Services that run and that this one cannot run beside: starting one of them stopped it."""
    done = run(call, ["systemctl", "show", "-P", "Conflicts", "--", unit])
    others = sorted(name for name in done["out"].split() if name.endswith(".service"))
    return [name for name, state in states(call, others).items() if state["active"] in ("active", "activating")]


@op("logs")
def logs(call: Call, unit: str, lines: int = 20) -> List[str]:
    """The last lines that a unit logged, without time stamps."""
    done = run(call, ["journalctl", "-u", unit, "-n", str(lines), "-o", "cat", "--no-pager"])
    return [line for line in done["out"].splitlines() if line.strip()]


MEMORY_WORDS = re.compile(
    "KV [Cc]ache|oading (model weights )?took|Maximum concurrency|API server version|LLM engine|block size"
)


@op("memory_lines")
def memory_lines(call: Call, unit: str) -> List[str]:
    """What the engine that a unit runs now said of its memory since it started: at most 40 lines of 300 characters."""
    invocation = states(call, [unit])[unit]["invocation"]
    if not invocation:
        return []
    argv = ["journalctl", "_SYSTEMD_INVOCATION_ID=" + invocation, "-n", "5000", "-o", "cat", "--no-pager", "--quiet"]
    done = run(call, argv)
    return [line[:300] for line in done["out"].splitlines() if MEMORY_WORDS.search(line)][:40]


def systemctl(call: Call, *words: str, timeout: float = 60) -> Dict[str, Any]:
    """Run systemctl; OpError with its own words when it fails."""
    done = run(call, ["systemctl", "--no-ask-password", *words], timeout=timeout)
    if done["rc"] != 0:
        raise OpError("systemctl %s: %s" % (" ".join(words), done["err"].strip() or "status %s" % done["rc"]))
    return done


@op("daemon_reload")
def daemon_reload(call: Call) -> Dict[str, Any]:
    """Make systemd read the unit files again."""
    systemctl(call, "daemon-reload")
    return {}


@op("unit_start")
def unit_start(call: Call, unit: str, wait: bool = False, limit: float = 60) -> Dict[str, Any]:
    """Start a unit; without ``wait`` the job is queued and the state that it has reached is returned."""
    before = states(call, [unit])[unit]
    if before["load"] != "loaded":
        raise OpError("%s is not a unit that systemd can load (%s)" % (unit, before["load"]))
    # systemd counts starts that were asked for against StartLimitBurst= too. A unit that is not loaded has no count:
    # the status of this is nothing to look at.
    run(call, ["systemctl", "--no-ask-password", "reset-failed", "--", unit])
    at = time.time()
    systemctl(call, *(["start"] if wait else ["start", "--no-block"]), unit, timeout=limit)
    return dict(states(call, [unit])[unit], at=at)


@op("unit_stop")
def unit_stop(call: Call, unit: str, limit: float = 120) -> Dict[str, Any]:
    """Stop a unit and verify that it is down: no longer active, not about to restart. ``took`` is in seconds."""
    begin = time.monotonic()
    before = states(call, [unit])[unit]
    if before["load"] == "not-found" and before["active"] == "inactive":
        return dict(before, took=0.0)
    systemctl(call, "stop", unit, timeout=limit)
    after = states(call, [unit])[unit]
    if after["active"] == "failed":
        systemctl(call, "reset-failed", unit)
        after = states(call, [unit])[unit]
    if after["active"] != "inactive":
        raise OpError("%s is %s/%s after systemctl stop" % (unit, after["active"], after["sub"]))
    return dict(after, took=round(time.monotonic() - begin, 3))


@op("unit_enable")
def unit_enable(call: Call, enable: List[str], disable: List[str]) -> Dict[str, Dict[str, Any]]:
    """Set what starts at boot, and verify it."""
    present = states(call, enable + disable)
    enable_now = [unit for unit in enable if present[unit]["enabled"] != "enabled"]
    disable_now = [unit for unit in disable if present[unit]["enabled"] in ("enabled", "enabled-runtime", "linked")]
    if enable_now:
        systemctl(call, "enable", *enable_now)
    if disable_now:
        systemctl(call, "disable", *disable_now)
    after = states(call, enable + disable)
    wrong = [unit for unit in enable if after[unit]["enabled"] != "enabled"]
    wrong += [unit for unit in disable if after[unit]["enabled"] in ("enabled", "enabled-runtime")]
    if wrong:
        raise OpError("enablement did not take: " + ", ".join(wrong))
    return after
