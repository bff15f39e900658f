"""What fleetctl keeps on a box: generations under /etc/fleetctl, journal and lock under /var/lib/fleetctl."""

import base64
import errno
import filecmp
import json
import os
import shutil
import time
from typing import Any, Dict, List, Optional

from fleetctl.onbox.files import write
from fleetctl.onbox.main import Call, OpError, op

ETC = "/etc/fleetctl"
VAR = "/var/lib/fleetctl"
GENERATIONS = ETC + "/generations"
CURRENT = ETC + "/current"
MOVES = VAR + "/moves"
LOCK = VAR + "/lock.json"
SUPERSEDED = VAR + "/superseded.json"


def read_json(path: str) -> Any:
    """The JSON in a file; None when there is no such file."""
    try:
        with open(path, encoding="utf-8") as source:
            return json.load(source)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise OpError("%s is damaged (%s)" % (path, error))


def write_json(call: Call, path: str, value: Any) -> None:
    """Replace a file by the JSON of a value, atomically, readable by root only."""
    content = json.dumps(value, sort_keys=True)
    write(call, [{"path": path, "content": content, "mode": 0o600, "private": True}])


def private_folder(path: str) -> None:
    """Make a folder that only root can read, and its parents."""
    os.makedirs(path, mode=0o700, exist_ok=True)


# Generations


def generation_folder(number: int) -> str:
    """Where a generation is kept."""
    return "%s/%d" % (GENERATIONS, number)


def current_generation() -> Optional[int]:
    """Number of the generation this box is in, or None."""
    try:
        return int(os.path.basename(os.readlink(CURRENT)))
    except (OSError, ValueError):
        return None


def generation_numbers() -> List[int]:
    """Numbers of the complete generations on this box."""
    try:
        names = os.listdir(GENERATIONS)
    except OSError:
        return []
    return sorted(
        int(name) for name in names if name.isdigit() and os.path.exists("%s/%s/meta.json" % (GENERATIONS, name))
    )


@op("generation_read")
def generation_read(call: Call, number: int) -> Optional[Dict[str, Any]]:
    """Meta data and release of one generation; None when this box does not have it."""
    folder = generation_folder(number)
    meta = read_json(folder + "/meta.json")
    return None if meta is None else {"meta": meta, "release": read_json(folder + "/release.json")}


@op("write_meta")
def write_meta(call: Call, number: int, meta: Dict[str, Any]) -> Dict[str, Any]:
    """Make a generation complete: its meta data are written last."""
    write_json(call, generation_folder(number) + "/meta.json", meta)
    return {}


@op("generation_current")
def generation_current(call: Call, number: Optional[int]) -> Dict[str, Any]:
    """Point ``current`` at a generation (None: at nothing); returns the number it pointed at before."""
    before = current_generation()
    if number is None:
        if os.path.islink(CURRENT):
            os.unlink(CURRENT)
        return {"before": before}
    if number not in generation_numbers():
        raise OpError("generation %d is not complete on this box" % number)
    temporary = CURRENT + ".new"
    if os.path.islink(temporary):
        os.unlink(temporary)
    os.symlink("generations/%d" % number, temporary)
    os.replace(temporary, CURRENT)
    return {"before": before}


@op("generation_remove")
def generation_remove(call: Call, number: int) -> Dict[str, Any]:
    """Remove a generation that is not current."""
    if number == current_generation():
        raise OpError("generation %d is current and stays" % number)
    shutil.rmtree(generation_folder(number), ignore_errors=True)
    return {}


def drift(number: Optional[int]) -> List[str]:
    """Live files that are no longer as the generation has them, edited or missing."""
    meta = None if number is None else read_json(generation_folder(number) + "/meta.json")
    folder = "" if number is None else generation_folder(number) + "/files"
    return _differing(folder, (meta or {}).get("paths", []))


def _differing(folder: str, paths: List[str]) -> List[str]:
    return [
        path
        for path in paths
        if not os.path.exists(path)
        or not os.path.exists(folder + path)
        or not filecmp.cmp(folder + path, path, shallow=False)
    ]


# Live files: installed from a generation, with what they replace kept for undo


def _prior_folder(move: str) -> str:
    return "%s/%s/prior" % (MOVES, move)


def _keep_prior(move: str, path: str) -> None:
    """Remember, once per move, what a live file was before the move."""
    kept = _prior_folder(move) + path
    missing = kept + ".missing"
    if os.path.lexists(kept) or os.path.exists(missing):
        return
    private_folder(os.path.dirname(kept))
    if os.path.exists(path):
        shutil.copy2(path, kept + ".new")
        os.replace(kept + ".new", kept)
    else:
        open(missing, "w").close()


def _put(call: Call, source: str, path: str) -> None:
    with open(source, "rb") as content:
        encoded = base64.b64encode(content.read()).decode()
    write(call, [{"path": path, "content_b64": encoded, "mode": os.stat(source).st_mode & 0o7777}])


@op("install")
def install(call: Call, move: str, folder: str, paths: List[str], remove: List[str]) -> Dict[str, Any]:
    """Make live files those under a folder, and remove others; both can be undone with ``uninstall``.

    A file is compared first and left alone when it is right already.
    """
    changed = []
    for path in paths:
        source = folder + path
        if not os.path.exists(source):
            raise OpError("%s has no %s" % (folder, path))
        same_mode = os.path.exists(path) and os.stat(path).st_mode == os.stat(source).st_mode
        if same_mode and filecmp.cmp(source, path, shallow=False):
            continue
        _keep_prior(move, path)
        _put(call, source, path)
        changed.append(path)
    removed = []
    for path in remove:
        if os.path.lexists(path):
            _keep_prior(move, path)
            os.unlink(path)
            removed.append(path)
    return {"changed": changed, "removed": removed}


@op("uninstall")
def uninstall(call: Call, move: str, paths: List[str]) -> Dict[str, Any]:
    """Put live files back to what they were before the move."""
    restored = []
    for path in paths:
        kept = _prior_folder(move) + path
        if os.path.lexists(kept):
            _put(call, kept, path)
            restored.append(path)
        elif os.path.exists(kept + ".missing") and os.path.lexists(path):
            os.unlink(path)
            restored.append(path)
    return {"restored": restored}


@op("installed")
def installed(call: Call, folder: str, paths: List[str], absent: List[str]) -> Dict[str, Any]:
    """Which live files differ from those under a folder, and which that should be gone are there."""
    return {
        "differ": _differing(folder, paths),
        "present": [path for path in absent if os.path.lexists(path)],
    }


@op("superseded_read")
def superseded_read(call: Call) -> Dict[str, Any]:
    """Foreign units that fleetctl replaced here, with the state they had before."""
    return dict(read_json(SUPERSEDED) or {})


@op("superseded_record")
def superseded_record(call: Call, states: Dict[str, Any]) -> Dict[str, Any]:
    """Remember how foreign units were before fleetctl replaced them; the first record of a unit stays."""
    known = read_json(SUPERSEDED) or {}
    for unit, state in states.items():
        known.setdefault(unit, state)
    write_json(call, SUPERSEDED, known)
    return known


@op("superseded_forget")
def superseded_forget(call: Call, units: List[str]) -> Dict[str, Any]:
    """Forget units that were given back."""
    known = read_json(SUPERSEDED) or {}
    write_json(call, SUPERSEDED, {unit: state for unit, state in known.items() if unit not in units})
    return {}


# Journal: one folder per move, plan.json and journal.jsonl


@op("journal_open")
def journal_open(call: Call, move: str, plan: Dict[str, Any], meta: Dict[str, Any]) -> Dict[str, Any]:
    """Begin the journal of a move: the whole plan is kept with it, so that anyone can finish or undo it."""
    folder = "%s/%s" % (MOVES, move)
    private_folder(folder)
    write_json(call, folder + "/plan.json", plan)
    write_json(call, folder + "/meta.json", meta)
    return {}


@op("journal_append")
def journal_append(call: Call, move: str, record: Dict[str, Any]) -> Dict[str, Any]:
    """Append one record and have it on disk before answering."""
    line = json.dumps(record, sort_keys=True).encode() + b"\n"
    path = "%s/%s/journal.jsonl" % (MOVES, move)
    try:
        with open(path, "ab") as journal:
            journal.write(line)
            journal.flush()
            os.fsync(journal.fileno())
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise OpError("no space left for the journal in %s" % MOVES)
        raise
    return {}


def _records(move: str) -> List[Dict[str, Any]]:
    try:
        with open("%s/%s/journal.jsonl" % (MOVES, move), "rb") as journal:
            lines = journal.read().split(b"\n")
    except OSError:
        return []
    records = []
    for line in lines:
        try:
            records.append(json.loads(line))
        except ValueError:
            continue  # the last line may have been cut off with the box
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


def moves(last: int = 20) -> List[Dict[str, Any]]:
    """The last moves of which this box has the journal, oldest first, with how each ended."""
    try:
        names = sorted(os.listdir(MOVES))[-last:]
    except OSError:
        return []
    found = []
    for name in names:
        meta = read_json("%s/%s/meta.json" % (MOVES, name))
        if meta is None:
            continue
        ends = [record for record in _records(name) if record.get("type") == "end"]
        end = ends[-1] if ends else None
        found.append({"move": name, "end": end, **meta})
    return found


# Lock


def lock_state() -> Optional[Dict[str, Any]]:
    """Who holds the fleet, with ``age`` and ``silent`` (since the last heartbeat) in seconds; None: nobody."""
    lock = read_json(LOCK)
    if lock is None:
        return None
    now = time.time()
    return dict(lock, age=round(now - lock["since"], 1), silent=round(now - lock["beat"], 1))


@op("lock_take")
def lock_take(call: Call, holder: Dict[str, Any], take_over: bool = False) -> Dict[str, Any]:
    """Take the fleet's lock. ``{"taken": False, "lock": …}`` when somebody else has it.

    ``holder`` has token, who, host, pid, command. Taking over replaces a lock whose owner is gone.
    """
    private_folder(VAR)
    record = dict(holder, since=time.time(), beat=time.time())
    staged = "%s.%s" % (LOCK, holder["token"])
    write_json(call, staged, record)
    try:
        if take_over:
            os.replace(staged, LOCK)
            return {"taken": True, "lock": record}
        try:
            os.link(staged, LOCK)  # fails when the lock exists: two takers cannot both succeed
        except FileExistsError:
            return {"taken": False, "lock": lock_state()}
        return {"taken": True, "lock": record}
    finally:
        if os.path.exists(staged):
            os.unlink(staged)


@op("lock_beat")
def lock_beat(call: Call, token: str) -> Dict[str, Any]:
    """Say that the holder is alive; OpError when the lock is no longer the holder's."""
    lock = read_json(LOCK)
    if lock is None or lock["token"] != token:
        raise OpError("the lock was taken over by %s" % ((lock or {}).get("who") or "nobody"))
    write_json(call, LOCK, dict(lock, beat=time.time()))
    return {}


@op("lock_release")
def lock_release(call: Call, token: str) -> Dict[str, Any]:
    """Give the lock back if it is the holder's own."""
    lock = read_json(LOCK)
    if lock is not None and lock["token"] == token:
        os.unlink(LOCK)
        return {"released": True}
    return {"released": False}
