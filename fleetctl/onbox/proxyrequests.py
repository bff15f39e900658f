"""When clients sent requests and how long their answers were, from the proxy's log: numbers alone leave the box.

Addresses of clients, names of keys, paths and bodies are not among them. The log's line of a request is written when it
has ended; it began `%Ta` milliseconds before that.
"""

import json
import re
import time
from typing import Any, Dict, List

from fleetctl.onbox import kept
from fleetctl.onbox.journalctl import read_back
from fleetctl.onbox.main import Call, op

MOST_LINES = 5_000_000
_AT = re.compile(rb"([0-9]{1,12}\.[0-9]{1,9}) ")
_COUNTS = ("total_ms", "first_byte_ms", "bytes", "status")


@op("proxy_requests")
def proxy_requests(call: Call, since: float, most: int = 200_000, limit: float = 120) -> Dict[str, Any]:
    """The newest requests since so many seconds ago, oldest first.

    Each is a list: number of its backend, when it began and ended, its first byte, bytes and status. Times are epoch
    milliseconds, the first byte in milliseconds after HAProxy had the request (-1: none). ``backends`` has the names.
    ``proxy``: this box has a proxy.
    """
    proxy = (kept.current_facts()["release"] or {}).get("proxy") or {}
    backends = [backend["name"] for backend in proxy.get("backends", [])]
    found: List[List[int]] = []

    def take(line: bytes) -> None:
        if len(found) < most:
            told = _request(line, backends)
            if told is not None:
                found.append(told)

    if not proxy:
        return {"proxy": False, "backends": [], "requests": [], "complete": True, "why": None}
    read = read_back(call, proxy["unit"], time.time() - since, take, MOST_LINES, limit)
    return {"proxy": True, "backends": backends, "requests": found[::-1], **read}


def _request(line: bytes, backends: List[str]) -> Any:
    """One request of the log; None for any other line, and for a damaged one."""
    prefix, _, message = line.partition(b": ")
    at = _AT.match(prefix)
    if at is None or b'"method":"POST"' not in message:
        return None
    try:
        told = json.loads(message.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict) or told.get("backend") not in backends:
        return None
    numbers = [number for number in (told.get(key) for key in _COUNTS) if type(number) is int]
    if len(numbers) < len(_COUNTS) or not all(-1 <= number <= 10**12 for number in numbers):
        return None
    total, first, size, status = numbers
    ended = int(float(at[1]) * 1000)
    return [backends.index(told["backend"]), ended - max(0, total), ended, first, size, status]
