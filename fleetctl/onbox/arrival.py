"""Weights that arrive on this box: into a folder beside, part by part, and to their place when all of it is proven.

The folder beside has ``goal.json`` (what is to arrive), ``jobs.json`` (the parts that are wanted) and ``files``. What a
transfer that was cut off has left there is not trusted: it is read, and what has the right checksum is kept.
"""

import hashlib
import json
import os
import stat
from typing import Any, Dict, List, Optional, Tuple

from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.manifests import looks_the_same, read_manifest
from fleetctl.onbox.partsums import PART, PIECE, Progress, at_once, data_end, part_count
from fleetctl.onbox.weightplaces import Place, place_of, room_of, safe
from fleetctl.onbox.weightsproof import allocated

SPARE = 64 * 2**20  # bytes that stay free on the disk
Goal = Dict[str, Any]
Job = Tuple[int, int, int]
"""Number of a file in the order of its name, number of a part, bytes of it that are there."""


def goal_place(asked: Dict[str, Any], goal: Goal) -> Place:
    """Where weights arrive. OpError for a goal that would leave it."""
    checked_names(goal)
    commit = goal["commit"] if "repo" in asked else ""
    place = place_of(asked, safe(commit) if commit else "", file=goal["one_file"])
    if place is None:
        raise OpError("the hub's cache here has no revision of %s, and none was named" % asked["repo"])
    return place


def checked_names(goal: Goal) -> None:
    """OpError for a goal with a name that would leave the place."""
    for name, one in goal["files"].items():
        safe(name)
        if one["blob"]:
            safe(one["blob"])
    for ref in goal["refs"]:
        safe(ref)


def existing(place: Place, name: str, blob: str) -> Optional[str]:
    """A file that may be, or may nearly be, what is to arrive."""
    if os.path.isfile(place.path(name)):
        return os.path.realpath(place.path(name))
    kept = os.path.join(place.repository, "blobs", blob) if blob and place.repository else ""
    return kept if kept and os.path.isfile(kept) else None


def known_there(place: Place, goal: Goal) -> List[str]:
    """Files that are at their place already, as the manifest of this box says."""
    manifest = read_manifest(place) or {"files": {}}
    there = []
    for name, due in goal["files"].items():
        known = manifest["files"].get(name)
        if known and known["sha256"] == due["sha256"] and looks_the_same(place, name, known):
            there.append(name)
    return there


@op("weights_room")
def weights_room(call: Call, place: Dict[str, Any], goal: Goal) -> Dict[str, Any]:
    """Whether the disk has room for what is to arrive: ``need`` and ``free`` bytes, ``wanted`` bytes of files.

    A file that is there and is not known to be right counts in full: it is replaced by one that arrives beside it.
    """
    where = goal_place(place, goal)
    there = set(known_there(where, goal))
    wanted = sum(one["size"] for name, one in goal["files"].items() if name not in there)
    free, _ = room_of(where.staging)
    need = max(0, wanted - allocated(where.staging))
    return {"need": need, "free": free, "wanted": wanted, "key": where.key, "enough": need + SPARE <= free or not need}


@op("weights_begin")
def weights_begin(call: Call, place: Dict[str, Any], goal: Goal) -> Dict[str, Any]:
    """Find out which parts have to come. ``parts`` and ``bytes`` of them, ``kept`` bytes that need not come again.

    What is there with the right checksums is taken from there. OpError when the disk has no room for the rest.
    """
    where = goal_place(place, goal)
    room = weights_room(call, place, goal)
    if not room["enough"]:
        raise OpError("the disk of %s has %d bytes free of %d needed" % (where.key, room["free"], room["need"] + SPARE))
    names = sorted(goal["files"])
    there = set(known_there(where, goal))
    rest = [name for name in names if name not in there]
    files = os.path.join(where.staging, "files")
    if os.path.lexists(where.staging):
        refuse_others(where.staging)
    os.makedirs(files, exist_ok=True)
    os.chmod(where.staging, 0o700)
    _remove_others(files, set(names))
    progress = Progress(call, sum(goal["files"][name]["size"] for name in rest), "what is there")
    jobs: Dict[str, List[Job]] = {}
    right: List[str] = []

    def one(name: str) -> None:
        due, number, staged = goal["files"][name], names.index(name), os.path.join(files, *name.split("/"))
        source = None if os.path.exists(staged) else existing(where, name, due["blob"])
        os.makedirs(os.path.dirname(staged), exist_ok=True)
        if source is not None:
            wrong = _wrong_parts(call, source, due, progress)
            if not wrong and os.path.getsize(source) == due["size"]:
                right.append(name)
                return
            _copy_right_parts(call, source, staged, due, set(wrong))
            jobs[name] = [(number, part, 0) for part in wrong]
        else:
            jobs[name] = _scan(call, staged, due, number, progress)

    at_once(rest, one)
    wanted = sorted(job for some in jobs.values() for job in some)
    dump(os.path.join(where.staging, "goal.json"), dict(goal, there=sorted(there), right=sorted(right)))
    dump(os.path.join(where.staging, "jobs.json"), wanted)
    size = sum(span(goal["files"][names[number]]["size"], part)[1] - ahead for number, part, ahead in wanted)
    total = sum(one["size"] for one in goal["files"].values())
    return {"parts": len(wanted), "bytes": size, "kept": total - size, "key": where.key}


def span(size: int, part: int) -> Tuple[int, int]:
    """Where a part begins, and its length."""
    return part * PART, min(PART, size - part * PART)


def _remove_others(files: str, names: "set[str]") -> None:
    for folder, _, found in os.walk(files):
        for name in found:
            path = os.path.join(folder, name)
            if os.path.relpath(path, files) not in names:
                os.unlink(path)


def _digest(call: Call, descriptor: int, start: int, length: int, progress: Progress) -> str:
    digest, at = hashlib.sha256(), start
    while at < start + length:
        call.check()
        piece = os.pread(descriptor, min(PIECE, start + length - at), at)
        if not piece:
            break
        digest.update(piece)
        at += len(piece)
        progress.add(len(piece))
    return digest.hexdigest()


def _wrong_parts(call: Call, path: str, due: Dict[str, Any], progress: Progress) -> List[int]:
    """Numbers of the parts of a file that are not what they are to be."""
    wrong = []
    with open(path, "rb", buffering=0) as source:
        for part in range(part_count(due["size"])):
            start, length = span(due["size"], part)
            if _digest(call, source.fileno(), start, length, progress) != due["parts"][part]:
                wrong.append(part)
    return wrong


def _copy_right_parts(call: Call, source: str, staged: str, due: Dict[str, Any], wrong: "set[int]") -> None:
    """Take all parts but the wrong ones from a file on the same disk; a file system that can shares their blocks."""
    with open(source, "rb", buffering=0) as old, open(staged, "wb", buffering=0) as new:
        os.ftruncate(new.fileno(), due["size"])
        for part in range(part_count(due["size"])):
            at, length = span(due["size"], part)
            if part in wrong:
                continue
            os.lseek(new.fileno(), at, os.SEEK_SET)
            end = at + length
            while at < end:
                call.check()
                piece = os.pread(old.fileno(), min(PIECE, end - at), at)
                if not piece:
                    raise OpError("%s changed while it was read" % source)
                new.write(piece)
                at += len(piece)


def _scan(call: Call, staged: str, due: Dict[str, Any], number: int, progress: Progress) -> List[Job]:
    """Parts of a file that arrives which are not there, or only begun, as far as its data go."""
    handle = os.open(staged, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    jobs: List[Job] = []
    try:
        if os.fstat(handle).st_size != due["size"]:
            os.ftruncate(handle, due["size"])
        for part in range(part_count(due["size"])):
            start, length = span(due["size"], part)
            end, whole = data_end(handle, start, start + length)
            if whole and _digest(call, handle, start, length, progress) == due["parts"][part]:
                continue
            # The last block may be half of what came: it is asked for again.
            ahead = 0 if whole else max(0, (end - start - 1) // 4096 * 4096) if end > start else 0
            jobs.append((number, part, ahead))
    finally:
        os.close(handle)
    return jobs


def dump(path: str, value: Any) -> None:
    """Write JSON to a file, whole or not at all."""
    with open(path + ".new", "w", encoding="utf-8") as target:
        json.dump(value, target)
    os.replace(path + ".new", path)


def load(place: Place, name: str) -> Any:
    """``goal.json`` or ``jobs.json`` of a transfer that was begun. OpError where none was."""
    try:
        with open(os.path.join(place.staging, name), encoding="utf-8") as source:
            value = json.load(source)
    except (OSError, ValueError) as error:
        raise OpError("the transfer to %s was not begun: %s" % (place.key, error)) from None
    refuse_others(place.staging)
    if name == "goal.json":
        checked_names(value)
    return value


def refuse_others(staging: str) -> None:
    """OpError unless the folder beside is one that fleetctl made: whose folder it is in may put another there."""
    found = os.lstat(staging)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise OpError("%s is in the way, and is not fleetctl's: look at it, and remove it" % staging)
