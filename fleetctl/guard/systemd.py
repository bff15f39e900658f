"""systemd as the guard uses it: states of units, and starting, stopping and killing one. Nothing here waits long."""

import subprocess
from typing import Dict, List, Sequence, Tuple

PATIENCE = 10.0  # seconds for systemctl itself; jobs are queued and not waited for
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


def systemctl(*words: str) -> Tuple[int, str]:
    """Exit status and output; 1 and the reason when systemctl does not answer."""
    try:
        done = subprocess.run(
            ["systemctl", "--no-ask-password", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
            env=ENVIRONMENT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace").strip()


def states(units: Sequence[str]) -> Dict[str, Dict[str, str]]:
    """Unit → its ActiveState and InvocationID; nothing when systemd does not answer."""
    if not units:
        return {}
    status, told = systemctl("show", "--no-pager", "-p", "Id,ActiveState,InvocationID", "--", *units)
    if status != 0:
        return {}
    blocks = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in told.split("\n\n")]
    return {block["Id"]: block for block in blocks if "Id" in block}


def act(kind: str, unit: str) -> str:
    """Do one thing to a unit; what went wrong, or nothing. The unit's own limits and orderings hold."""
    commands: Dict[str, List[List[str]]] = {
        "stop": [["stop", "--no-block", unit]],
        "kill": [["kill", "--signal=SIGKILL", unit]],
        "start": [["reset-failed", unit], ["start", "--no-block", unit]],
        # After SIGTERM a hung engine would keep its requests for as long as it may take to stop; and connections that
        # break before the first byte of an answer are what lets the proxy ask another engine.
        "kill_and_restart": [["kill", "--signal=SIGKILL", unit], ["restart", "--no-block", unit]],
    }
    problem = ""
    for words in commands[kind]:
        status, told = systemctl(*words)
        if status != 0 and words[0] not in ("reset-failed", "kill"):
            problem = told or "systemctl %s: status %d" % (words[0], status)
    return problem
