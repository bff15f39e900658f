"""Every change that this box still knows of: its moves, a line of each that was removed since, and what the guard did.

A move's folder has its whole plan and every step, and goes when there are many. One line of it stays, in a log that is
only appended to and never grows beyond two files of ``LIMIT``: some 1,500 moves.
"""

import errno
import json
import os
from typing import Any, Dict, List, Optional, Set

from fleetctl.onbox import guard, journal, kept, lock
from fleetctl.onbox.main import Call, op

LOG = "history"  # .jsonl, and .1.jsonl with what is older
LIMIT = 256 * 1024  # bytes of one file
LATEST = 1e11  # epoch seconds; no clock says so much
LONGEST = 500  # characters of what a move says of itself that its line keeps

META = ("operation", "from_layout", "to_layout", "who", "command", "started", "fleetctl")
NUMBERS = ("from_generation", "generation")
ACTS = ("stop", "kill", "start", "kill_and_restart")
TURNS = ("out of the proxy", "back in the proxy")  # the guard's words for what it does without a command


@op("history")
def history(call: Call, last: int) -> Dict[str, Any]:
    """The ``last`` moves that this box has the journal or a line of, and as many acts of its guard, oldest first.

    ``generations`` are those that it keeps, with layout and move; ``current`` is the number of the live one.
    """
    names = journal.begun()
    told = [told_of(name) for name in names[-last:]]
    shown = {move["move"] for move in told}
    lines = [line for line in _lines() if line["move"] not in shown and line["move"] not in names]
    moves = sorted([*lines, *told], key=lambda move: float(move["written"]))
    return {
        "moves": moves[-last:],
        "acts": [event for event in guard.records("events") if _is_act(event)][-last:],
        "generations": {
            str(number): {"layout": meta.get("layout"), "move": meta.get("move")}
            for number, meta in kept.generations().items()
        },
        "current": kept.current_generation(),
        "lock": lock.lock_state(),
    }


def told_of(name: str) -> Dict[str, Any]:
    """A move in a few words: who did what and when, and how it ended. ``result`` is None while it has no end."""
    move = journal.told(name, journal.end(name))
    end = move["end"] or {}
    found = {key: move.get(key) for key in ("move", "written", *META)}
    found.update({key: move.get(key) for key in NUMBERS})
    if not all(key in move for key in NUMBERS):  # an earlier version wrote them into the plan alone
        plan = journal.plan(name)
        found.update({key: plan.get(key) for key in NUMBERS})
    found.update({key: end.get(key) for key in ("result", "why", "by", "gap", "cut", "scores")}, ended=end.get("at"))
    if not end:
        undoing = [record for record in journal.records(name) if record.get("type") == "undoing"]
        found["why"] = undoing[-1].get("why") if undoing else None
    return {key: value[:LONGEST] if isinstance(value, str) else value for key, value in found.items()}


def _is_act(event: Dict[str, Any]) -> bool:
    """The guard changed something, and did not only see it."""
    turned = event.get("kind") == "note" and event.get("unit") and str(event.get("why", "")).startswith(TURNS)
    return event.get("kind") in ACTS or bool(turned)


# The log of what was removed


@op("moves_prune")
def moves_prune(call: Call, keep: int) -> Dict[str, List[str]]:
    """Remove the folders of all but the newest ``keep`` moves; of each a line stays. Unfinished ones are left."""
    gone: List[str] = []
    old = journal.names()[:-keep]
    known = _logged() if old else set()
    for name in old:
        begun = journal.is_begun(name)
        if begun and journal.end(name) is None:
            continue
        if begun and name not in known and not _write_down(told_of(name)):
            break  # what is not written down is not removed: the next move tries again
        journal.remove(name)
        gone.append(name)
    return {"removed": gone}


def _path(older: bool = False) -> str:
    return "%s/%s%s.jsonl" % (kept.VAR, LOG, ".1" if older else "")


def _write_down(line: Dict[str, Any]) -> bool:
    """Append a line and have it on disk. False: there was no room for it."""
    path = _path()
    try:
        if os.path.exists(path) and os.path.getsize(path) > LIMIT:
            os.replace(path, _path(older=True))
        with open(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "ab+") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(0, end - 1))
            torn = end > 0 and log.read(1) != b"\n"  # cut off with the box: it must not swallow this one
            log.write((b"\n" if torn else b"") + json.dumps(line, sort_keys=True).encode() + b"\n")
            log.flush()
            os.fsync(log.fileno())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            return False
        raise
    return True


def _lines() -> List[Dict[str, Any]]:
    """The lines of moves that were removed, each move once, oldest first."""
    found: Dict[str, Dict[str, Any]] = {}
    for older in (True, False):
        for line in _read(_path(older)):
            found.pop(line["move"], None)
            found[line["move"]] = line
    return list(found.values())


def _logged() -> Set[str]:
    return {line["move"] for line in _lines()}


def _read(path: str) -> List[Dict[str, Any]]:
    try:
        with open(path, "rb") as source:
            text = source.read(2 * LIMIT)
    except OSError:
        return []
    lines = [_parsed(line) for line in text.split(b"\n")]
    return [line for line in lines if line is not None]


def _parsed(text: bytes) -> Optional[Dict[str, Any]]:
    """The move of a line; None for one that was damaged."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    good = isinstance(line, dict) and isinstance(line.get("move"), str)
    written = line.get("written") if good else None
    return line if isinstance(written, (int, float)) and 0 <= written < LATEST else None
