"""Long jobs of setup (apt, pip), each a unit of systemd: a connection that breaks does not cut them off half-way."""

import time
from typing import Dict, List, Optional

from fleetctl.onbox.main import Call, OpError, environment
from fleetctl.onbox.process import run

LOOK = 0.5  # seconds between looks at a job
WORD = 5.0  # seconds between two words of progress
TAIL = 12  # lines of its log that are shown when a job fails


def active(call: Call, unit: str) -> bool:
    """The job runs."""
    done = run(call, ["systemctl", "show", "-p", "ActiveState", "--value", "--", unit])
    return done["out"].strip() in ("active", "activating", "deactivating", "reloading")


def finish(call: Call, unit: str, limit: float) -> None:
    """Wait until a job that was begun before has ended."""
    end, told = time.monotonic() + limit, time.monotonic()
    while active(call, unit):
        call.check()
        if time.monotonic() > end:
            raise OpError("%s did not end within %g s: `journalctl -u %s` shows what it does" % (unit, limit, unit))
        if time.monotonic() - told > WORD:
            told = time.monotonic()
            call.event(log=_last(call, unit, 1) or "%s goes on" % unit)
        time.sleep(LOOK)


def job(call: Call, unit: str, argv: List[str], limit: float, env: Optional[Dict[str, str]] = None) -> None:
    """Run a command as a unit and wait for its end. OpError with its last lines when it fails."""
    finish(call, unit, limit)
    run(call, ["systemctl", "reset-failed", "--", unit])
    words = ["--setenv=%s=%s" % pair for pair in environment({"HOME": "/root", **(env or {})}).items()]
    options = ["--quiet", "--no-ask-password", "--unit=" + unit, "--service-type=exec"]
    word = "--description=fleetctl setup: " + argv[0]
    done = run(call, ["systemd-run", *options, word, "--property=RemainAfterExit=no", *words, "--", *argv])
    if done["rc"] != 0:
        raise OpError("systemd-run failed: %s" % done["err"].strip())
    finish(call, unit, limit)
    result = run(call, ["systemctl", "show", "-p", "Result", "--value", "--", unit])["out"].strip()
    if result not in ("success", ""):
        said = _last(call, unit, TAIL)
        run(call, ["systemctl", "reset-failed", "--", unit])
        raise OpError("%s failed (%s): %s" % (" ".join(argv[:3]), result, said))


def _last(call: Call, unit: str, lines: int) -> str:
    log = run(call, ["journalctl", "-u", unit, "-n", str(lines), "-o", "cat", "--no-pager"])
    return str(log["out"]).strip()
