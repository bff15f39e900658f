"""What engines scored in suites of questions, noted on the box that keeps the journal."""

from typing import Any, Dict

from fleetctl.onbox import jsonlines
from fleetctl.onbox.kept import VAR
from fleetctl.onbox.main import Call, op

FILE = VAR + "/scores.jsonl"
MOST = 256 * 1024  # bytes that are read, and about what is kept


def scores() -> Dict[str, Dict[str, Any]]:
    """``SUITE BUILD`` → its last record; a build is the FLEETCTL_ENGINE of its processes. Damaged lines say nothing."""
    found = {}
    for record in jsonlines.read(FILE, MOST):
        if {"suite", "build", "score", "at"} <= set(record):
            found["%s %s" % (record["suite"], record["build"])] = record
    return found


@op("score_note")
def score_note(call: Call, record: Dict[str, Any]) -> Dict[str, Any]:
    """Append a score: `suite`, `build`, `score` (0 to 100), `at` (epoch seconds), `engine`; more of it is kept too."""
    jsonlines.append(FILE, record, MOST)
    return {}
