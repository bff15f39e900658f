"""What loads on the layouts of the fleet measured, noted on the box that keeps the journal."""

from typing import Any, Dict, List

from fleetctl.onbox import jsonlines
from fleetctl.onbox.kept import VAR
from fleetctl.onbox.main import Call, op

FILE = VAR + "/benches.jsonl"
MOST = 1024 * 1024  # bytes that are read, and about what is kept: some 600 loads


@op("bench_note")
def bench_note(call: Call, record: Dict[str, Any]) -> Dict[str, Any]:
    """Append what one load measured; its fields are those of `fleetctl/bench/stored.py`."""
    jsonlines.append(FILE, record, MOST)
    return {}


@op("benches")
def benches(call: Call) -> List[Dict[str, Any]]:
    """What is kept of loads, oldest first."""
    return jsonlines.read(FILE, MOST)
