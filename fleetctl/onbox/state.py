"""What fleetctl keeps on a box: generations under /etc/fleetctl, and the live files that come from them."""

import base64
import contextlib
import filecmp
import hmac
import json
import os
import shutil
from typing import Any, Dict, List, Optional

from fleetctl.onbox.files import write
from fleetctl.onbox.kept import (
    CURRENT,
    DRAINED,
    MOVES,
    SUPERSEDED,
    current_generation,
    drained,
    generation_folder,
    generation_meta,
    generation_release,
    generations,
    pointed_at,
    superseded,
)
from fleetctl.onbox.main import Call, OpError, op

GUARD_FOLDER = "/etc/fleetctl/guard"


def write_json(call: Call, path: str, value: Any) -> None:
    """Replace a file by the JSON of a value, atomically, readable by root only."""
    content = json.dumps(value, sort_keys=True)
    write(call, [{"path": path, "content": content, "mode": 0o600, "private": True}])


def private_folder(path: str) -> None:
    """Make a folder that only root can read; parents that are missing are made as usual."""
    os.makedirs(path, mode=0o700, exist_ok=True)


# Generations


@op("generation_read")
def generation_read(call: Call, number: int) -> Optional[Dict[str, Any]]:
    """Meta data and release of one generation; None when this box does not have it, or its meta data are damaged."""
    meta = generations().get(number)
    return None if meta is None else {"meta": meta, "release": generation_release(number)}


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
    if number not in generations():
        raise OpError("generation %d is not complete on this box" % number)
    temporary = CURRENT + ".new"
    if os.path.islink(temporary):
        os.unlink(temporary)
    os.symlink("generations/%d" % number, temporary)
    os.replace(temporary, CURRENT)
    return {"before": before}


@op("generations_prune")
def generations_prune(call: Call, keep: int, protect: List[int]) -> Dict[str, List[int]]:
    """Remove all but the newest ``keep`` generations; the current one and those in ``protect`` stay in any case."""
    current = pointed_at()
    old = list(generations())[:-keep]
    gone = [number for number in old if number != current and number not in protect]
    for number in gone:
        _discard(number)
    return {"removed": gone}


@op("generation_remove")
def generation_remove(call: Call, number: int) -> Dict[str, Any]:
    """Remove a generation that is not current."""
    if number == pointed_at():
        raise OpError("generation %d is current and stays" % number)
    _discard(number)
    return {}


def _discard(number: int) -> None:
    """Without its meta data a generation does not count: a removal that is cut off leaves nothing half valid."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(generation_folder(number) + "/meta.json")
    shutil.rmtree(generation_folder(number), ignore_errors=True)


def drift(number: Optional[int]) -> List[str]:
    """Live files that are no longer as the generation has them, edited or missing."""
    meta = None if number is None else generation_meta(number)
    folder = "" if number is None else generation_folder(number) + "/files"
    return _differing(folder, (meta or {}).get("paths", []))


def _differing(folder: str, paths: List[str]) -> List[str]:
    return [
        path
        for path in paths
        if not os.path.exists(path) or not os.path.exists(folder + path) or not _alike(folder + path, path)
    ]


def _alike(one: str, other: str) -> bool:
    """The same content and mode: a file of secrets that anybody may read is not as it should be."""
    return os.stat(one).st_mode == os.stat(other).st_mode and filecmp.cmp(one, other, shallow=False)


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
        if os.path.exists(path) and _alike(source, path):
            continue
        _keep_prior(move, path)
        _put(call, source, path)
        changed.append(path)
    removed = []
    for path in remove:
        if os.path.lexists(path):
            _keep_prior(move, path)
            os.unlink(path)
            _tidy(path)
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
            _tidy(path)
            restored.append(path)
    return {"restored": restored}


def _tidy(path: str) -> None:
    """Remove the folders that are there for such files only, once they are empty: drop-ins of a unit, the guard."""
    folder = os.path.dirname(path)
    while folder.endswith(".d") or folder.startswith(GUARD_FOLDER):
        try:
            os.rmdir(folder)
        except OSError:
            return
        folder = os.path.dirname(folder)


@op("move_close")
def move_close(call: Call, move: str) -> Dict[str, Any]:
    """Remove what was kept to undo a move: after its end nothing needs it, and old files may have secrets in them."""
    for kept in (_prior_folder(move), "%s/%s/transition" % (MOVES, move)):
        shutil.rmtree(kept, ignore_errors=True)
    return {}


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
    return superseded()


@op("superseded_record")
def superseded_record(call: Call, states: Dict[str, Any]) -> Dict[str, Any]:
    """Remember how foreign units were before fleetctl replaced them; the first record of a unit stays."""
    known = superseded()
    for unit, state in states.items():
        known.setdefault(unit, state)
    write_json(call, SUPERSEDED, known)
    return known


@op("superseded_forget")
def superseded_forget(call: Call, units: List[str]) -> Dict[str, Any]:
    """Forget units that were given back."""
    known = superseded()
    write_json(call, SUPERSEDED, {unit: state for unit, state in known.items() if unit not in units})
    return {}


@op("drained_read")
def drained_read(call: Call) -> Optional[Dict[str, Any]]:
    """Since when and by whom this box is drained; None when it is not."""
    return drained()


@op("drained_write")
def drained_write(call: Call, note: Optional[Dict[str, Any]]) -> Dict[str, Any]:
    """Note that this box is drained, or (None) that it is not."""
    if note is not None:
        write_json(call, DRAINED, note)
    elif os.path.exists(DRAINED):
        os.unlink(DRAINED)
    return {}


def stale(number: Optional[int], secrets: Dict[str, Dict[str, str]]) -> List[str]:
    """Files whose secrets are not what they are now: live, or as the generation keeps them.

    ``secrets`` has for each path a ``salt`` and the HMAC-SHA256 (``mac``) of the content with the secrets of now, so
    that they need not travel to be compared. A path that is not there is another matter.
    """
    folder = None if number is None else generation_folder(number) + "/files"
    found = []
    for path, wanted in secrets.items():
        places = [path] if folder is None else [path, folder + path]
        if not all(_has_mac(place, **wanted) for place in places if os.path.exists(place)):
            found.append(path)
    return found


def _has_mac(path: str, salt: str, mac: str) -> bool:
    with open(path, "rb") as source:
        told = hmac.new(salt.encode("ascii"), source.read(), "sha256").hexdigest()
    return hmac.compare_digest(told, mac)
