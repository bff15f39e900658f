"""What engines scored in suites of questions, noted on the box that keeps the journal."""

import json
import os
from typing import Any, Dict, List

from fleetctl.onbox.kept import VAR
from fleetctl.onbox.main import Call, OpError, op

FILE = VAR + "/scores.jsonl"
MOST = 256 * 1024  # bytes that are read, and about what is kept


def scores() -> Dict[str, Dict[str, Any]]:
    """``SUITE BUILD`` → its last record; a build is the FLEETCTL_ENGINE of its processes. Damaged lines say nothing."""
    found = {}
    for record in _records():
        found["%s %s" % (record["suite"], record["build"])] = record
    return found


def _records() -> List[Dict[str, Any]]:
    try:
        with open(FILE, "rb") as source:
            source.seek(max(0, os.fstat(source.fileno()).st_size - MOST))
            lines = source.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and {"suite", "build", "score", "at"} <= set(record):
            records.append(record)
    return records


@op("score_note")
def score_note(call: Call, record: Dict[str, Any]) -> Dict[str, Any]:
    """Append a score: `suite`, `build`, `score` (0 to 100), `at` (epoch seconds), `engine`; more of it is kept too."""
    kept = _records() if os.path.exists(FILE) and os.path.getsize(FILE) > MOST else None
    try:
        os.makedirs(VAR, mode=0o700, exist_ok=True)
        if kept is not None:  # only the newer half stays
            with open(FILE + ".new", "w", encoding="utf-8") as out:
                out.writelines(json.dumps(one) + "\n" for one in kept[len(kept) // 2 :])
            os.replace(FILE + ".new", FILE)
        with open(FILE, "a", encoding="utf-8") as out:
            out.write(json.dumps(record) + "\n")
    except OSError as error:
        raise OpError("%s cannot be written: %s" % (FILE, error)) from None
    return {}
