"""Manifests: what the weights of a model on this box are known to be, file by file, with checksums of parts.

A manifest is what was proven once. Whether files still are what it says is told by size and time of change, which
costs nothing, or by reading them.
"""

import hashlib
import json
import os
import re
import time
from typing import Any, Dict, List, Optional

from fleetctl.onbox.files import write
from fleetctl.onbox.fingerprints import READ, WEIGHTS
from fleetctl.onbox.kept import VAR, read_object
from fleetctl.onbox.main import Call
from fleetctl.onbox.partsums import PART, Sums
from fleetctl.onbox.weightplaces import Place, names_in

FOLDER = VAR + "/weights"
NEEDS = ("key", "files", "part", "tree", "at")
Manifest = Dict[str, Any]
"""``files``: name → ``size``, ``mtime_ns``, ``sha256``, ``parts``. ``by``: how it came (found, pull, push from BOX)."""


def manifest_path(place: Place) -> str:
    """Where the manifest of a place is kept."""
    words = re.sub(r"[^A-Za-z0-9.-]+", "-", place.key).strip("-.")[-80:]
    return "%s/%s-%s.json" % (FOLDER, words, hashlib.sha256(place.key.encode()).hexdigest()[:12])


def read_manifest(place: Place) -> Optional[Manifest]:
    """The manifest of a place; None where there is none, or one that other parts were made with."""
    path = manifest_path(place)
    found = read_object(path, "remove the file; `fleetctl weights verify` makes it anew", NEEDS)
    return found if found is not None and found["part"] == PART and found["key"] == place.key else None


def write_manifest(call: Call, place: Place, files: Dict[str, Dict[str, Any]], by: str) -> Manifest:
    """Keep what the files of a place were just proven to be."""
    manifest = {
        "key": place.key,
        "repository": place.repository,
        "commit": place.commit,
        "part": PART,
        "files": files,
        "tree": tree_of(files),
        "by": by,
        "at": round(time.time(), 3),
    }
    text = json.dumps(manifest, separators=(",", ":"), sort_keys=True)
    write(call, [{"path": manifest_path(place), "content": text, "mode": 0o600, "private": True}])
    return manifest


def all_manifests() -> List[Manifest]:
    """Every manifest of this box; those that are damaged are left out."""
    found = []
    try:
        names = sorted(os.listdir(FOLDER))
    except OSError:
        return []
    for name in names:
        try:
            with open(os.path.join(FOLDER, name), encoding="utf-8") as source:
                one = json.load(source)
        except (OSError, ValueError):
            continue
        if isinstance(one, dict) and all(key in one for key in NEEDS):
            found.append(one)
    return found


def place_of_manifest(manifest: Manifest) -> Place:
    """The place that a manifest is about."""
    key, repository = manifest["key"], manifest.get("repository", "")
    if repository:
        return Place(key, repository=repository, commit=manifest.get("commit", ""))
    if list(manifest["files"]) == [os.path.basename(key)] and not os.path.isdir(key):
        return Place(os.path.dirname(key), only=os.path.basename(key))
    return Place(key)


def entry(sums: Sums) -> Dict[str, Any]:
    """What a manifest says of one file."""
    return {"size": sums.size, "mtime_ns": sums.mtime_ns, "sha256": sums.sha256, "parts": sums.parts}


def tree_of(files: Dict[str, Dict[str, Any]]) -> str:
    """One digest for what an engine reads of a model: boxes with the same one have the same bytes in the same files."""
    read = {name: files[name] for name in read_of(list(files))}
    lines = ["%s\0%d\0%s\n" % (name, one["size"], one["sha256"]) for name, one in sorted(read.items())]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def read_of(names: List[str]) -> List[str]:
    """Those of a model's files that an engine reads: weights in one format, and the small files beside them.

    Boxes may have fetched other files of a repository, a README or the same weights in another format.
    """
    mine = [name for name in names if name.endswith(READ) and not name.startswith(("original/", "consolidated"))]
    first = next((end for end in WEIGHTS if any(name.endswith(end) for name in mine)), "")
    return [name for name in mine if name.endswith(first) or not name.endswith(WEIGHTS)] or names


def looks_the_same(place: Place, name: str, known: Dict[str, Any]) -> bool:
    """A file has the size and the time of change that its manifest says."""
    try:
        found = os.stat(place.path(name))
    except OSError:
        return False
    return (found.st_size, found.st_mtime_ns) == (known["size"], known["mtime_ns"])


def touched(place: Place, manifest: Manifest) -> List[str]:
    """Names of files that are not as their manifest says: missing, new, or changed since. Costs no reading."""
    known = manifest["files"]
    new = [name for name in names_in(place) if name not in known]
    return sorted(new + [name for name, one in known.items() if not looks_the_same(place, name, one)])
