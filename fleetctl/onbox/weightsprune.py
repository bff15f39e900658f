"""Weights that nothing uses: what is here of them, putting one aside, bringing it back, and removing it for good."""

import contextlib
import os
import shutil
from typing import Any, Dict, List, Set

from fleetctl.onbox.fingerprints import hub_repository
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.manifests import all_manifests, manifest_path, place_of_manifest, touched
from fleetctl.onbox.weightplaces import Place, names_in, place_of, refs_of
from fleetctl.onbox.weightsproof import allocated

OURS = ("pull", "push")
"""Beginnings of how weights came that fleetctl put here."""


@op("weights_kept")
def weights_kept(call: Call, needed: List[Dict[str, Any]], stagings: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Weights that may be removed, and those that are needed all the same.

    Those that fleetctl put here, and every revision in the hub's caches that the places in ``needed`` lie in. Each has
    ``key``, ``repository``, ``commit``, ``repo`` (its id), ``bytes``, ``by``, and ``needed``: by what. ``stagings`` are
    places at which a transfer may have been cut off.
    """
    uses: Dict[str, List[str]] = {}
    caches: Set[str] = set()
    for one in needed:
        place = place_of(one["place"])
        if place is not None:
            uses.setdefault(place.key, []).append(one["why"])
        if "repo" in one["place"]:
            caches.add(os.path.dirname(hub_repository(one["place"]["repo"], one["place"]["env"])))
    found: Dict[str, Dict[str, Any]] = {}
    for manifest in all_manifests():
        place = place_of_manifest(manifest)
        # A folder in which somebody else changed something since is not fleetctl's to remove.
        theirs = not place.repository and bool(touched(place, manifest))
        if manifest.get("by", "").startswith(OURS) and place.there() and not theirs:
            found[place.key] = _told(place, manifest["by"], uses)
    for cache in sorted(caches):
        for place in _revisions(cache):
            found.setdefault(place.key, _told(place, "", uses))
    left = [_staged(place) for asked in stagings if (place := place_of(asked)) is not None]
    return [*found.values(), *(one for one in left if one["bytes"])]


def _told(place: Place, by: str, uses: Dict[str, List[str]]) -> Dict[str, Any]:
    size = sum(os.path.getsize(place.path(name)) for name in names_in(place))
    return {
        "key": place.key,
        "only": place.only,
        "repository": place.repository,
        "commit": place.commit,
        "repo": os.path.basename(place.repository).partition("--")[2].replace("--", "/"),
        "bytes": size,
        "by": by,
        "needed": uses.get(place.key, []),
        "staging": False,
    }


def _staged(place: Place) -> Dict[str, Any]:
    told = {"key": place.key, "only": place.only, "repository": place.repository, "commit": place.commit, "repo": ""}
    return dict(told, bytes=allocated(place.staging), by="a transfer that was cut off", needed=[], staging=True)


def _revisions(cache: str) -> List[Place]:
    found = []
    for name in sorted(os.listdir(cache)) if os.path.isdir(cache) else []:
        repository = os.path.join(cache, name)
        snapshots = os.path.join(repository, "snapshots")
        if name.startswith("models--") and os.path.isdir(snapshots):
            for commit in sorted(os.listdir(snapshots)):
                if not commit.startswith("."):
                    found.append(Place(os.path.join(snapshots, commit), repository=repository, commit=commit))
    return found


def _place(one: Dict[str, Any]) -> Place:
    root = os.path.dirname(one["key"]) if one["only"] else one["key"]
    return Place(root, only=one["only"], repository=one["repository"], commit=one["commit"])


@op("weights_aside")
def weights_aside(call: Call, one: Dict[str, Any]) -> Dict[str, Any]:
    """Put weights aside, on the same disk, so that nobody finds them and they can come back."""
    place = _place(one)
    if one["staging"] or (os.path.lexists(place.retired) and not place.there()):
        return {}
    if os.path.lexists(place.retired):
        raise OpError("%s is in the way: look at it, and remove it" % place.retired)
    try:
        os.rename(place.key, place.retired)
    except OSError as error:
        raise OpError("cannot put %s aside: %s" % (place.key, error.strerror or error)) from None
    return {}


@op("weights_back")
def weights_back(call: Call, one: Dict[str, Any]) -> Dict[str, Any]:
    """Bring weights back that were put aside."""
    place = _place(one)
    if not one["staging"] and os.path.lexists(place.retired) and not place.there():
        os.rename(place.retired, place.key)
    return {}


@op("weights_delete")
def weights_delete(call: Call, one: Dict[str, Any]) -> Dict[str, Any]:
    """Remove what was put aside: in the hub's cache with the blobs that no other revision has, and its names."""
    place = _place(one)
    if one["staging"]:
        shutil.rmtree(place.staging, ignore_errors=True)
        return {"freed": one["bytes"]}
    blobs = _blobs(place.repository, os.path.basename(place.retired)) if place.repository else set()
    if os.path.isdir(place.retired) and not os.path.islink(place.retired):
        shutil.rmtree(place.retired)
    elif os.path.lexists(place.retired):
        os.unlink(place.retired)
    if place.repository:
        for ref in refs_of(place):
            os.unlink(os.path.join(place.repository, "refs", ref))
        for blob in blobs - _all_blobs(place.repository):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(place.repository, "blobs", blob))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(manifest_path(place))
    return {"freed": one["bytes"]}


def _blobs(repository: str, folder: str) -> Set[str]:
    """Blobs that the links in a folder lead to."""
    found = set()
    for inner, _, names in os.walk(os.path.join(repository, folder)):
        for name in names:
            path = os.path.join(inner, name)
            if os.path.islink(path):
                found.add(os.path.basename(os.readlink(path)))
    return found


def _all_blobs(repository: str) -> Set[str]:
    """Blobs that some revision has, those that are arriving or put aside included."""
    found = _blobs(repository, "snapshots")
    for name in os.listdir(repository):
        if name.startswith("."):
            found |= _blobs(repository, name)
    return found
