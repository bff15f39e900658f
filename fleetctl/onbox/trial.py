"""An engine is started once to be measured: its memory is looked at five times a second, and what it logs is read."""

import os
import subprocess
import time
from typing import Any, Dict, Optional

from fleetctl.onbox.main import Call, CancelledError, OpError, environment, op
from fleetctl.onbox.process import run
from fleetctl.onbox.startlog import start_lines
from fleetctl.onbox.units import environment_of, logs, states, systemctl
from fleetctl.onbox.waits import meminfo, probe

FOLDER = "/run/systemd/system"  # gone after a reboot
LOOK_EVERY = 0.2  # seconds
PROBE_EVERY = 1.0  # seconds
GROUPS = "/sys/fs/cgroup"


@op("trial_run")
def trial_run(call: Call, unit: str, content: str, url: str, limit: float) -> Dict[str, Any]:
    """Start a unit of the text ``content`` and watch it until ``url`` answers 200; it is left running.

    ``before``, ``least`` and ``ready`` are MemAvailable in bytes: before the start, at its lowest, and at the end.
    ``group`` is the most that the kernel charged to the unit's control group (None: it does not tell); ``lines`` are
    those of the log that tell of memory. Whoever ends before that stops the unit: with the client gone, too.
    """
    os.makedirs(FOLDER, exist_ok=True)
    with open(os.path.join(FOLDER, unit), "w") as target:
        target.write(content)
    systemctl(call, "daemon-reload")
    before = meminfo()["MemAvailable"]
    start = time.monotonic()
    well = False
    try:
        systemctl(call, "start", "--no-block", unit)
        seen = _watch(call, unit, url, start + limit)
        well = True
    finally:
        if not well:
            argv = ["systemctl", "--no-ask-password", "stop", "--no-block", "--", unit]
            subprocess.run(argv, stdin=subprocess.DEVNULL, env=environment(), timeout=20)  # also when cancelled
    told = start_lines(call, unit)
    took = round(time.monotonic() - start, 2)
    return dict(seen, before=before, seconds=took, lines=told["lines"])


def _watch(call: Call, unit: str, url: str, end: float) -> Dict[str, Any]:
    least, group = meminfo()["MemAvailable"], None  # type: int, Optional[int]
    begun = time.monotonic()
    next_probe = begun + PROBE_EVERY
    while True:
        if call.cancelled.is_set():
            raise CancelledError("measuring %s was cancelled" % unit)
        now = time.monotonic()
        available = meminfo()["MemAvailable"]
        least = min(least, available)
        if now >= next_probe:
            next_probe = now + PROBE_EVERY
            state = states(call, [unit])[unit]
            group = _most(group, charged(state["pid"]))
            if state["active"] in ("failed", "inactive") and not state["job"]:
                raise OpError("it ended (%s, exit status %s)" % (state["result"], state["status"]))
            # Not any answer: something else may listen there.
            if probe(url, 2.0) == 200 and "FLEETCTL_ENGINE" in environment_of(state["pid"]):
                return {"least": least, "ready": meminfo()["MemAvailable"], "group": group}
            call.event(waited=round(now - begun, 1), available=available, log="".join(logs(call, unit, 1))[-200:])
        if now > end:
            raise OpError("it is not ready after %.0f s" % (now - begun))
        time.sleep(LOOK_EVERY)


def _most(one: Optional[int], other: Optional[int]) -> Optional[int]:
    return max((found for found in (one, other) if found is not None), default=None)


def charged(pid: int, groups: str = GROUPS) -> Optional[int]:
    """The most memory in bytes that the control group of a process had at one time; None where no kernel file says."""
    try:
        with open("/proc/%d/cgroup" % pid) as source:
            rows = [line.rstrip("\n").split(":", 2) for line in source]
    except OSError:
        return None
    for _, controllers, path in rows:
        if controllers == "":
            files = [groups + path + "/memory.peak", groups + path + "/memory.current"]
        elif "memory" in controllers.split(","):
            files = [groups + "/memory" + path + "/memory.max_usage_in_bytes"]
        else:
            continue
        for name in files:
            try:
                with open(name) as source:
                    return int(source.read())
            except (OSError, ValueError):
                continue
    return None


@op("memory_left")
def memory_left(call: Call) -> Dict[str, int]:
    """MemAvailable and MemTotal in bytes."""
    found = meminfo()
    return {"available": found["MemAvailable"], "total": found["MemTotal"]}


@op("trial_end")
def trial_end(call: Call, unit: str, limit: float) -> Dict[str, Any]:
    """Stop the unit and remove it; nothing to do where there is none."""
    path = os.path.join(FOLDER, unit)
    state = states(call, [unit])[unit]
    if state["load"] != "not-found" or state["active"] != "inactive":
        systemctl(call, "stop", unit, timeout=limit)
        run(call, ["systemctl", "--no-ask-password", "reset-failed", "--", unit])
    if os.path.exists(path):
        os.unlink(path)
        systemctl(call, "daemon-reload")
    return {}
