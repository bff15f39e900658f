"""Journals of moves on a box: one folder per move, with plan.json, meta.json, journal.jsonl and what undo needs."""

import errno
import json
import os
import shutil
from typing import Any, Dict, List, Optional

from fleetctl.onbox.kept import MOVES, current_generation, generation_release, read_object
from fleetctl.onbox.lock import require_claim
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.state import private_folder, write_json

TAIL = 256 * 1024  # bytes at the end of a journal in which a record that is sent again can be


@op("journal_open")
def journal_open(call: Call, move: str, plan: Dict[str, Any], meta: Dict[str, Any]) -> Dict[str, Any]:
    """Begin the journal of a move: the whole plan is kept with it, so that anyone can finish or undo it.

    The meta data are written last: without them the move does not count as begun.
    """
    require_claim()
    folder = "%s/%s" % (MOVES, move)
    private_folder(folder)
    write_json(call, folder + "/plan.json", plan)
    write_json(call, folder + "/meta.json", meta)
    return {}


@op("journal_append")
def journal_append(call: Call, move: str, record: Dict[str, Any]) -> Dict[str, Any]:
    """Append one record and have it on disk before answering.

    A record that is there already is not written again: a client whose connection broke does not know that it was.
    """
    require_claim()
    line = json.dumps(record, sort_keys=True).encode() + b"\n"
    path = "%s/%s/journal.jsonl" % (MOVES, move)
    try:
        with open(path, "ab+") as journal:
            journal.seek(max(0, journal.seek(0, os.SEEK_END) - TAIL))
            tail = journal.read()
            if line in tail.splitlines(keepends=True):
                return {}
            if tail and not tail.endswith(b"\n"):
                line = b"\n" + line  # the last line was cut off with the box: it must not swallow this one
            journal.write(line)
            journal.flush()
            os.fsync(journal.fileno())
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise OpError("no space left for the journal in %s" % MOVES) from None
        raise
    return {}


def records(move: str) -> List[Dict[str, Any]]:
    """What the journal of a move has, in order; a line that was cut off with the box is left out."""
    try:
        with open("%s/%s/journal.jsonl" % (MOVES, move), "rb") as journal:
            lines = journal.read().split(b"\n")
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue  # cut off with the box; what it would have said is asked from the boxes again
        if isinstance(record, dict):
            found.append(record)
    return found


def _object(path: str) -> Optional[Dict[str, Any]]:
    """The JSON object in a file of a move; None when it is missing or damaged."""
    try:
        return read_object(path, "")
    except OpError:
        return None


@op("journal_read")
def journal_read(call: Call, move: str) -> Optional[Dict[str, Any]]:
    """Plan, meta data and records of a move; None when this box does not have it.

    The plan, and the meta data, are None when they are missing or damaged.
    """
    folder = "%s/%s" % (MOVES, move)
    if not os.path.isdir(folder):
        return None
    return {
        "folder": folder,
        "plan": _object(folder + "/plan.json"),
        "meta": _object(folder + "/meta.json"),
        "records": records(move),
    }


def _written(name: str) -> float:
    """When this box, by its own clock, began a move: names carry the clock of the operator's machine."""
    folder = "%s/%s" % (MOVES, name)
    for path in (folder + "/meta.json", folder):
        try:
            return os.stat(path).st_mtime
        except OSError:
            continue
    return 0.0


def names() -> List[str]:
    """Moves of which this box has a folder, in the order in which they were begun here."""
    try:
        found = os.listdir(MOVES)
    except OSError:
        return []
    return sorted(found, key=lambda name: (_written(name), name))


def end(name: str) -> Optional[Dict[str, Any]]:
    """The record with which a move ended. Only lines that can be it are parsed: journals are long, and many."""
    try:
        with open("%s/%s/journal.jsonl" % (MOVES, name), "rb") as journal:
            lines = journal.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines):
        if b'"end"' not in line:
            continue
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("type") == "end":
            return record
    return None


def is_begun(name: str) -> bool:
    """Its meta data were written: with them it counts."""
    return os.path.lexists("%s/%s/meta.json" % (MOVES, name))


def begun() -> List[str]:
    """Moves that were begun, in the order in which that happened on this box."""
    return [name for name in names() if is_begun(name)]


def plan(name: str) -> Dict[str, Any]:
    """The plan of a move; empty when it is missing or damaged."""
    return _object("%s/%s/plan.json" % (MOVES, name)) or {}


def told(name: str, end: Optional[Dict[str, Any]]) -> Dict[str, Any]:
    """What is known of a move. Meta data that were damaged must not hide it: the plan says most of it too."""
    folder = "%s/%s" % (MOVES, name)
    meta = _object(folder + "/meta.json") or {}
    known: Dict[str, Any] = {"operation": "move", "from_layout": None, "to_layout": None, "who": "somebody"}
    if not meta.keys() >= known.keys():
        known.update((key, value) for key, value in plan(name).items() if key in known)
    written = _written(name)
    return dict({**known, "started": written, **meta}, move=name, end=end, written=written)


def moves(last: int = 20) -> List[Dict[str, Any]]:
    """The moves that were cut off and the ``last`` that ended, in the order in which they were begun on this box.

    Where all of these stayed in a generation the last one that did not is told too: a rollback rests on it. Each with
    its ``end`` record (None: cut off, or under way) and when it was ``written``.
    """
    found = [(name, end(name)) for name in begun()]
    ended = [(name, record) for name, record in found if record is not None]
    shown = {name for name, _ in ended[-last:]}
    shown.add(next((name for name, record in reversed(ended) if _moved(name, record)), ""))
    return [told(name, record) for name, record in found if record is None or name in shown]


def _moved(name: str, end: Dict[str, Any]) -> bool:
    """It came to its end, in another generation than it began in."""
    meta = (_object("%s/%s/meta.json" % (MOVES, name)) or {}) if end.get("result") == "done" else {}
    return meta.get("from_generation") != meta.get("generation")


def remove(name: str) -> None:
    """Remove all that is kept of a move."""
    shutil.rmtree("%s/%s" % (MOVES, name), ignore_errors=True)


@op("fleet_text")
def fleet_text(call: Call) -> Optional[str]:
    """The text of fleet.yaml that belongs to what this box is in; None when fleetctl has put nothing here.

    That of the current generation; before the first one is current, that of the move that was cut off.
    """
    number = current_generation()
    if number is not None:
        return generation_release(number).get("spec") or None
    for move in reversed(moves()):
        if move["end"] is None:
            kept_plan = plan(move["move"])
            return kept_plan.get("release", {}).get("spec") or kept_plan.get("source", {}).get("spec") or None
    return None
