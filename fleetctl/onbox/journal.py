"""Journals of moves on a box: one folder per move, with plan.json, meta.json, journal.jsonl and what undo needs."""

import errno
import json
import os
import shutil
from typing import Any, Dict, List, Optional

from fleetctl.onbox.lock import require_claim
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.state import MOVES, private_folder, read_json, write_json

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


def _records(move: str) -> List[Dict[str, Any]]:
    try:
        with open("%s/%s/journal.jsonl" % (MOVES, move), "rb") as journal:
            lines = journal.read().split(b"\n")
    except FileNotFoundError:
        return []
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue  # cut off with the box; what it would have said is asked from the boxes again
        if isinstance(record, dict):
            records.append(record)
    return records


@op("journal_read")
def journal_read(call: Call, move: str) -> Optional[Dict[str, Any]]:
    """Plan, meta data and records of a move; None when this box does not have it."""
    plan = read_json("%s/%s/plan.json" % (MOVES, move))
    if plan is None:
        return None
    return {
        "plan": plan,
        "meta": read_json("%s/%s/meta.json" % (MOVES, move)),
        "records": _records(move),
    }


def _names() -> List[str]:
    try:
        return sorted(os.listdir(MOVES))
    except OSError:
        return []


def _end(name: str) -> Optional[Dict[str, Any]]:
    ends = [record for record in _records(name) if record.get("type") == "end"]
    return ends[-1] if ends else None


def moves(last: int = 20) -> List[Dict[str, Any]]:
    """The last moves of which this box has the journal, oldest first, with how each ended."""
    found = []
    for name in _names()[-last:]:
        meta = read_json("%s/%s/meta.json" % (MOVES, name))
        if meta is not None:
            found.append(dict(meta, move=name, end=_end(name)))
    return found


@op("moves_prune")
def moves_prune(call: Call, keep: int) -> Dict[str, List[str]]:
    """Remove the folders of all but the newest ``keep`` moves; an unfinished move stays."""
    gone = []
    for name in _names()[:-keep]:
        folder = "%s/%s" % (MOVES, name)
        if os.path.exists(folder + "/meta.json") and _end(name) is None:
            continue
        shutil.rmtree(folder, ignore_errors=True)
        gone.append(name)
    return {"removed": gone}


@op("fleet_text")
def fleet_text(call: Call) -> Optional[str]:
    """The text of fleet.yaml that belongs to what this box is in; None when fleetctl has put nothing here.

    That of the current generation; before the first one is current, that of the move that was cut off.
    """
    from fleetctl.onbox.state import current_generation, generation_folder

    number = current_generation()
    if number is not None:
        release = read_json(generation_folder(number) + "/release.json") or {}
        return release.get("spec") or None
    open_moves = [move["move"] for move in moves() if move["end"] is None]
    plan = read_json("%s/%s/plan.json" % (MOVES, open_moves[-1])) if open_moves else None
    return (plan or {}).get("release", {}).get("spec") or (plan or {}).get("source", {}).get("spec") or None
