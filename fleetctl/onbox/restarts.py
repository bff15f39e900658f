"""How often systemd started a unit again, and what stopped it from doing so: from the journal's own records."""

import json
from typing import Any, Dict, List

from fleetctl.onbox.main import Call, OpError
from fleetctl.onbox.process import run
from fleetctl.onbox.redacted import redacted

SCHEDULED = "5eb03494b6584870a536b337290809b3"  # systemd's SD_MESSAGE_UNIT_RESTART_SCHEDULED
WINDOW = 3600  # seconds
LINES = 2000
TOO_QUICKLY = "Start request repeated too quickly."
IN_USE = "is already in use by"
ZOMBIE = "container PID is zombie and can not be killed"


def restarts_of(call: Call, unit: str) -> Dict[str, Any]:
    """Epoch seconds of the automatic restarts within the last hour, oldest first, and whether its starts came too fast.

    ``refused``: the last that systemd said of its starts is that they are too many. ``collisions`` are lines of the
    container engine that a name is still taken. ``known`` is false when the journal cannot be read.
    """
    argv = [
        "journalctl",
        "--unit",
        unit,
        "--since",
        "-%ds" % WINDOW,
        "-n",
        str(LINES),
        "-o",
        "json",
        "--no-pager",
        "-q",
    ]
    argv.append("--output-fields=MESSAGE,MESSAGE_ID,_PID,JOB_TYPE,JOB_RESULT")
    try:
        done = run(call, argv, timeout=20)
    except OpError:
        return {"known": False, "times": [], "refused": False, "collisions": []}
    times: List[float] = []
    collisions: List[str] = []
    refused = False
    for line in done["out"].splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        message = record.get("MESSAGE")
        if not isinstance(message, str):
            continue  # bytes that are no text
        if record.get("_PID") == "1":
            if record.get("MESSAGE_ID") == SCHEDULED:
                times.append(int(record["__REALTIME_TIMESTAMP"]) / 1e6)
                refused = False
            elif TOO_QUICKLY in message:
                refused = True
            elif message.startswith(("Starting ", "Started ")):
                refused = False
        elif (IN_USE in message and "container name" in message) or ZOMBIE in message:
            collisions.append(redacted(message))
    return {"known": done["rc"] == 0, "times": times, "refused": refused, "collisions": collisions[-3:]}
