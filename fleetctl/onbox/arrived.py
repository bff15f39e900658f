"""The end of a transfer: files that are proven go to their place at once, with owner, mode and manifest."""

import grp
import os
import pwd
import shutil
from typing import Any, Dict, List, Tuple

from fleetctl.onbox.arrival import Goal, load
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.manifests import write_manifest
from fleetctl.onbox.weightplaces import Place, place_of, safe

LAST = (".json", ".jinja", ".txt", ".model")
"""Endings of what tells an engine which weights to read: these files are replaced after the weights."""


@op("weights_arrive")
def weights_arrive(call: Call, place: Dict[str, Any], commit: str, one_file: bool, by: str) -> Dict[str, Any]:
    """Put what arrived in its place. A folder that was not there appears whole; else file after file is replaced.

    In the hub's cache files become blobs, and the revision appears as a whole after them. Returns ``files`` replaced.
    """
    where = place_of(place, safe(commit) if "repo" in place else "", file=one_file)
    if where is None:
        raise OpError("no revision was named for %s" % place["repo"])
    goal = load(where, "goal.json")
    if load(where, "jobs.json"):
        raise OpError("parts of %s are still missing" % where.key)
    there = {*goal["there"], *goal["right"]}
    new = [name for name in sorted(goal["files"]) if name not in there]
    owner = _owner(where, goal["owner"])
    for name in new:
        call.check()
        _finish(_staged(where, name), goal["files"][name], owner)
    if where.repository:
        _into_cache(where, goal, new, owner)
    else:
        _into_folder(where, goal, new, owner)
    manifest = {name: _entry(where, name, one) for name, one in goal["files"].items()}
    write_manifest(call, where, manifest, by)
    shutil.rmtree(where.staging)
    return {"files": len(new), "key": where.key}


def _staged(place: Place, name: str) -> str:
    return os.path.join(place.staging, "files", *name.split("/"))


def _finish(path: str, due: Dict[str, Any], owner: Tuple[int, int]) -> None:
    """A file that arrived is on the disk, and what it is to be but for its name."""
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        if os.fstat(handle).st_size != due["size"]:
            raise OpError("%s does not have the size it was sent with" % path)
        os.fchown(handle, *owner)
        os.fchmod(handle, due["mode"])
        os.utime(handle, ns=(due["mtime_ns"], due["mtime_ns"]))
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def _owner(place: Place, named: str) -> Tuple[int, int]:
    """Who is to own the files: in the hub's cache whom the cache belongs to, else whoever has the source's names here.

    A user or group that this box does not have is root.
    """
    if place.repository:
        folder = os.path.dirname(place.repository)
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        if folder != "/":
            found = os.stat(folder)
            return found.st_uid, found.st_gid
        return 0, 0
    user, _, group = named.partition(":")
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        uid = os.geteuid()
    try:
        return uid, grp.getgrnam(group).gr_gid
    except KeyError:
        return uid, os.getegid()


def _folders(path: str, mode: int, owner: Tuple[int, int]) -> None:
    """Make missing folders, with a mode and an owner."""
    missing: List[str] = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        os.mkdir(folder)
        os.chmod(folder, mode)
        os.chown(folder, *owner)


def _sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _into_folder(place: Place, goal: Goal, new: List[str], owner: Tuple[int, int]) -> None:
    files = os.path.join(place.staging, "files")
    if not os.path.exists(place.root):
        for folder, _, _ in os.walk(files):
            os.chmod(folder, goal["folder_mode"])
            os.chown(folder, *owner)
        _folders(os.path.dirname(place.root), 0o755, (0, 0))
        os.rename(files, place.root)
    else:
        for name in sorted(new, key=lambda name: (name.endswith(LAST), name)):
            target = place.path(name)
            _folders(os.path.dirname(target), goal["folder_mode"], owner)
            os.replace(_staged(place, name), target)
            _sync(os.path.dirname(target))
    _sync(os.path.dirname(place.root))


def _into_cache(place: Place, goal: Goal, new: List[str], owner: Tuple[int, int]) -> None:
    """Blobs first, which nobody looks at, then the revision with its links, then the names of it."""
    blobs = os.path.join(place.repository, "blobs")
    for folder in (blobs, os.path.dirname(place.root)):
        _folders(folder, 0o755, owner)
    fresh = os.path.join(place.staging, "snapshot")
    shutil.rmtree(fresh, ignore_errors=True)
    os.mkdir(fresh)
    whole = not os.path.exists(place.root)
    for name, one in goal["files"].items():
        put = os.path.join(fresh, *name.split("/"))
        if one["blob"]:
            if name in new:
                os.replace(_staged(place, name), os.path.join(blobs, one["blob"]))
            if whole or not os.path.exists(place.path(name)) or name in new:
                os.makedirs(os.path.dirname(put), exist_ok=True)
                up = [".."] * (2 + name.count("/"))
                os.symlink(os.path.join(*up, "blobs", one["blob"]), put)
        elif name in new:
            os.makedirs(os.path.dirname(put), exist_ok=True)
            os.replace(_staged(place, name), put)
    _sync(blobs)
    for folder, _, names in os.walk(fresh):
        os.chmod(folder, 0o755)
        os.chown(folder, *owner)
        for name in names:
            os.lchown(os.path.join(folder, name), *owner)
    if whole:
        os.rename(fresh, place.root)
    else:
        for folder, _, names in os.walk(fresh):
            for name in names:
                inner = os.path.relpath(os.path.join(folder, name), fresh)
                target = os.path.join(place.root, inner)
                _folders(os.path.dirname(target), 0o755, owner)
                os.replace(os.path.join(folder, name), target)
    _sync(os.path.dirname(place.root))
    for ref in goal["refs"]:
        _write_ref(place, safe(ref), owner)


def _write_ref(place: Place, ref: str, owner: Tuple[int, int]) -> None:
    path = os.path.join(place.repository, "refs", *ref.split("/"))
    _folders(os.path.dirname(path), 0o755, owner)
    with open(path + ".fleetctl-new", "w") as target:
        target.write(place.commit)
        os.fchown(target.fileno(), *owner)
    os.replace(path + ".fleetctl-new", path)


def _entry(place: Place, name: str, one: Dict[str, Any]) -> Dict[str, Any]:
    found = os.stat(place.path(name))
    if found.st_size != one["size"]:
        raise OpError("%s is not what arrived" % place.path(name))
    known = {key: one[key] for key in ("sha256", "parts")}
    return dict(known, size=found.st_size, mtime_ns=found.st_mtime_ns)
