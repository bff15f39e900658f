"""What `fleetctl tune` measured, noted on the box that keeps the journal."""

from typing import Any, Dict, List

from fleetctl.onbox import jsonlines
from fleetctl.onbox.kept import VAR
from fleetctl.onbox.main import Call, op

FILE = VAR + "/tuned.jsonl"
MOST = 1024 * 1024  # bytes that are read, and about what is kept
KEYS = ("engine", "box", "mix", "at", "answer", "points")


@op("tuning_note")
def tuning_note(call: Call, record: Dict[str, Any]) -> Dict[str, Any]:
    """Append a result: `engine`, `box`, `mix`, `at` (epoch seconds), `answer`, `points`; more of it is kept too."""
    jsonlines.append(FILE, record, MOST)
    return {}


@op("tunings")
def tunings(call: Call) -> List[Dict[str, Any]]:
    """All results that are kept, oldest first."""
    return [record for record in jsonlines.read(FILE, MOST) if set(KEYS) <= set(record)]
