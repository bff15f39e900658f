"""What ``doctor --fix`` does on a box: commands whose effect is verified, and ending a process that was left over."""

import contextlib
import os
import signal
import time
from typing import Any, Callable, Dict, Iterator, List

from fleetctl.onbox.examine_processes import started
from fleetctl.onbox.lock import require_claim
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.process import run
from fleetctl.onbox.units import environment_of, states

LIMIT = 180.0  # seconds of one command: a foreign service may take its time to stop
TERM_LIMIT = 15.0  # seconds between SIGTERM and SIGKILL
GONE_LIMIT = 15.0  # seconds after SIGKILL


@op("remedy")
def remedy(call: Call, commands: List[List[str]]) -> Dict[str, Any]:
    """Run commands one after the other and verify what systemctl did. OpError names the first that did not work."""
    require_claim()
    for argv in commands:
        if argv[0] == "mv" and not os.path.lexists(argv[-2]):
            continue  # it was moved already, before this was cut off; or never, and does not have to come back
        done = run(call, argv, timeout=LIMIT)
        if done["rc"] != 0:
            said = done["err"].strip() or done["out"].strip() or "status %s" % done["rc"]
            raise OpError("%s: %s" % (" ".join(argv), said[-500:]))
        if argv[0] == "systemctl":
            _verify(call, argv)
    return {"ran": [" ".join(argv) for argv in commands]}


def _verify(call: Call, argv: List[str]) -> None:
    units = [os.path.basename(word) for word in argv[2:] if not word.startswith("-")]  # or by the path of its file
    for unit, state in states(call, units).items():
        enabled = state["enabled"] in ("enabled", "enabled-runtime")
        down = state["active"] in ("inactive", "failed")
        wrong = {
            "enable": not enabled and state["enabled"] != "linked",
            "disable": enabled or ("--now" in argv and not down),
            "stop": not down,
            "start": down and state["result"] != "success",
        }
        if wrong.get(argv[1]):
            raise OpError("%s is %s and %s after %s" % (unit, state["active"], state["enabled"], " ".join(argv)))


@op("end_process")
def end_process(call: Call, pid: int, began: int, engine: str) -> Dict[str, Any]:
    """End a process that carries FLEETCTL_ENGINE: SIGTERM, then SIGKILL. One that is gone already is nothing to do.

    ``began`` is when it began, in clock ticks: another process may have its number by now.
    """
    require_claim()
    with _held(pid) as send:
        return _end(call, pid, began, engine, send)


@contextlib.contextmanager
def _held(pid: int) -> Iterator[Callable[[int], None]]:
    """How to signal a process and no other: between a look and a signal its number can become another's.

    Where this python or kernel has no such hold, by the number.
    """
    try:
        descriptor = os.pidfd_open(pid)  # type: ignore[attr-defined,unused-ignore] # Python 3.9
    except (AttributeError, OSError):
        yield lambda number: os.kill(pid, number)
        return
    try:
        yield lambda number: signal.pidfd_send_signal(descriptor, number)  # type: ignore[attr-defined,unused-ignore]
    finally:
        os.close(descriptor)


def _end(call: Call, pid: int, began: int, engine: str, send: Callable[[int], None]) -> Dict[str, Any]:
    if started(pid) != began:
        return {"ended": False}
    if environment_of(pid).get("FLEETCTL_ENGINE") != engine:
        raise OpError("process %d is no process of %s any more: it is left alone" % (pid, engine))
    begin = time.monotonic()
    for number, limit in ((signal.SIGTERM, TERM_LIMIT), (signal.SIGKILL, GONE_LIMIT)):
        with contextlib.suppress(ProcessLookupError):
            send(number)
        deadline = time.monotonic() + limit
        while started(pid) == began and time.monotonic() < deadline:
            call.check()
            time.sleep(0.05)
        if started(pid) != began:
            return {"ended": True, "took": round(time.monotonic() - begin, 3)}
    raise OpError("process %d does not end, not even by SIGKILL: the kernel or a driver holds it" % pid)
