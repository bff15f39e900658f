"""What fleetctl keeps on a box: generations under /etc/fleetctl, and the live files that come from them."""

import base64
import filecmp
import json
import os
import shutil
from typing import Any, Dict, List, Optional

from fleetctl.onbox.files import write
from fleetctl.onbox.main import Call, OpError, op

ETC = "/etc/fleetctl"
VAR = "/var/lib/fleetctl"
GENERATIONS = ETC + "/generations"
CURRENT = ETC + "/current"
MOVES = VAR + "/moves"
SUPERSEDED = VAR + "/superseded.json"


def read_json(path: str) -> Any:
    """The JSON in a file; None when there is no such file."""
    try:
        with open(path, encoding="utf-8") as source:
            return json.load(source)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise OpError("%s is damaged (%s)" % (path, error)) from None


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


@op("generations_prune")
def generations_prune(call: Call, keep: int, protect: List[int]) -> Dict[str, List[int]]:
    """Remove all but the newest ``keep`` generations; the current one and those in ``protect`` stay in any case."""
    current = current_generation()
    old = generation_numbers()[:-keep]
    gone = [number for number in old if number != current and number not in protect]
    for number in gone:
        # Without its meta data a generation does not count: a removal that is cut off leaves nothing half valid.
        os.unlink(generation_folder(number) + "/meta.json")
        shutil.rmtree(generation_folder(number), ignore_errors=True)
    return {"removed": gone}


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
