"""Proving weights on this box: a cheap look, checksums recorded once, and a look at every byte."""

import os
import re
from typing import Any, Dict, List, Optional

from fleetctl.onbox.fingerprints import fingerprint
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.manifests import (
    Manifest,
    entry,
    read_manifest,
    touched,
    write_manifest,
)
from fleetctl.onbox.partsums import PART, Progress, Sums, at_once, hash_all, hashed
from fleetctl.onbox.weightplaces import Place, blob_of, names_in, place_of, room_of

FOUND = "found"
SHA256 = re.compile(r"[0-9a-f]{64}")


@op("weights_look")
def weights_look(call: Call, places: List[Dict[str, Any]], commit: str = "") -> List[Dict[str, Any]]:
    """What is at each place, without reading weights.

    ``state``: missing; broken (its own headers or index say so, see ``broken``); unproven (no checksums yet);
    touched (files changed since, see ``touched``); proven. ``bytes`` and ``files`` that are there, ``staged`` bytes of
    a transfer that was cut off, ``free`` bytes of the file system and its ``device``.
    """
    return [_look(call, place_of(asked, commit if "repo" in asked else ""), asked) for asked in places]


def _look(call: Call, place: Optional[Place], asked: Dict[str, Any]) -> Dict[str, Any]:
    if place is None:
        from fleetctl.onbox.fingerprints import hub_repository

        free, device = room_of(hub_repository(asked["repo"], asked["env"]))
        return {"state": "missing", "key": "", "free": free, "device": device, "bytes": 0, "files": 0, "staged": 0}
    free, device = room_of(place.key)
    told: Dict[str, Any] = {"key": place.key, "commit": place.commit, "free": free, "device": device}
    told["staged"] = allocated(place.staging)
    names = names_in(place) if place.there() else []
    told["files"] = len(names)
    told["bytes"] = sum(os.path.getsize(place.path(name)) for name in names)
    if not names:
        return dict(told, state="missing")
    broken = fingerprint(call, place.key)["broken"]
    if broken:
        return dict(told, state="broken", broken=broken[:10])
    manifest = read_manifest(place)
    if manifest is None:
        return dict(told, state="unproven")
    changed = touched(place, manifest)
    more = {"tree": manifest["tree"], "by": manifest.get("by", FOUND), "at": manifest["at"]}
    if changed:
        return dict(told, state="touched", touched=changed[:20], **more)
    return dict(told, state="proven", **more)


def allocated(folder: str) -> int:
    """Bytes that the files of a folder take on the disk."""
    total = 0
    for inner, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(inner, name)).st_blocks * 512
            except OSError:
                continue  # it was moved to its place meanwhile
    return total


@op("weights_prove")
def weights_prove(call: Call, place: Dict[str, Any], by: str = FOUND) -> Dict[str, Any]:
    """Weights are whole, and what their manifest says. Without a manifest checksums are made and kept,
    with how they came in ``by``.

    Files that were touched are read again: as long as their bytes are the same, that is all. Returns ``tree``,
    ``commit``, ``bytes``, ``files``, and whether something was ``read``. OpError for weights that are missing, not
    whole, not what was recorded, or not what the hub says.
    """
    found = place_of(place)
    if found is None or not found.there() or not names_in(found):
        raise OpError("the weights %s are not there" % (place.get("folder") or place.get("repo")))
    broken = fingerprint(call, found.key)["broken"]
    if broken:
        raise OpError("weights are not complete: %s" % "; ".join(broken[:5]))
    manifest = read_manifest(found)
    if manifest is None:
        return _proven(record(call, found, by), found, True)
    changed = touched(found, manifest)
    if not changed:
        return _proven(manifest, found, False)
    states = compared(call, found, manifest, changed)
    wrong = {name: one for name, one in states.items() if one["state"] not in ("same", "new")}
    if wrong:
        doubt(call, found, manifest, wrong)
        raise OpError("weights are not what was recorded of them: %s" % said(found, wrong))
    return _proven(renewed(call, found, manifest, states), found, True)


def _proven(manifest: Manifest, place: Place, read: bool) -> Dict[str, Any]:
    size = sum(one["size"] for one in manifest["files"].values())
    told = {"tree": manifest["tree"], "commit": place.commit, "key": place.key, "by": manifest.get("by", FOUND)}
    return dict(told, bytes=size, files=len(manifest["files"]), read=read)


def record(call: Call, place: Place, by: str) -> Manifest:
    """Read all files of a place and keep their checksums. OpError where a hub's checksum says that one is damaged."""
    names = names_in(place)
    sums = hash_all(call, {name: place.path(name) for name in names})
    refuse_other_than_hub(place, sums)
    return write_manifest(call, place, {name: entry(sums[name]) for name in names}, by)


def refuse_other_than_hub(place: Place, sums: Dict[str, Sums]) -> None:
    """OpError for files whose SHA-256 is not the one that the hub's cache knows them by (its etag)."""
    wrong = [
        place.path(name)
        for name, one in sorted(sums.items())
        if SHA256.fullmatch(blob_of(place, name)) and one.sha256 != blob_of(place, name)
    ]
    if wrong:
        raise OpError("not what the hub has: the SHA-256 of %s is another" % ", ".join(wrong))


def renewed(call: Call, place: Place, manifest: Manifest, states: Dict[str, Dict[str, Any]]) -> Manifest:
    """The manifest with the new times of files whose bytes are the same, and with files that are new."""
    files = dict(manifest["files"])
    for name, one in states.items():
        if one["state"] in ("same", "new"):
            files[name] = one["entry"]
    return write_manifest(call, place, files, manifest.get("by", FOUND))


def doubt(call: Call, place: Place, manifest: Manifest, wrong: Dict[str, Any]) -> None:
    """Have the manifest say that these files are not as they were, also where their size and time do not tell."""
    known = manifest["files"]
    files = {name: dict(one, mtime_ns=0) if name in wrong else one for name, one in known.items()}
    write_manifest(call, place, files, manifest.get("by", FOUND))


def compared(call: Call, place: Place, manifest: Manifest, names: List[str]) -> Dict[str, Dict[str, Any]]:
    """Files read again and held against their manifest, by name.

    ``state``: same; changed (``parts``: the numbers of those that are other than recorded); missing; new.
    """
    known = manifest["files"]
    there = set(names_in(place))
    found: Dict[str, Dict[str, Any]] = {name: {"state": "missing"} for name in names if name not in there}
    progress = Progress(call, sum(os.path.getsize(place.path(n)) for n in names if n in there), "checksums")

    def one(name: str) -> None:
        sums = hashed(call, place.path(name), name not in known, progress.add)
        if name not in known:
            found[name] = {"state": "new", "entry": entry(sums)}
            return
        due = known[name]
        if (sums.size, sums.parts) == (due["size"], due["parts"]):
            found[name] = {"state": "same", "entry": dict(due, mtime_ns=sums.mtime_ns)}
            return
        several = max(len(sums.parts), len(due["parts"]))
        parts = [n for n in range(several) if sums.parts[n : n + 1] != due["parts"][n : n + 1]]
        found[name] = {"state": "changed", "parts": parts, "size": sums.size}

    at_once([name for name in names if name in there], one)
    return found


def said(place: Place, wrong: Dict[str, Dict[str, Any]]) -> str:
    """What is wrong with files, for people."""
    words = []
    for name, one in sorted(wrong.items()):
        if one["state"] == "missing":
            words.append("%s is missing" % place.path(name))
        else:
            count, size = len(one["parts"]), PART >> 20
            parts = ", ".join(map(str, one["parts"][:5])) + (", …" if count > 5 else "")
            words.append("%s differs in %d part(s) of %d MiB (%s)" % (place.path(name), count, size, parts))
    return "; ".join(words[:5]) + ("; and %d more" % (len(words) - 5) if len(words) > 5 else "")


@op("weights_verify")
def weights_verify(call: Call, place: Dict[str, Any], full: bool = False, accept: bool = False) -> Dict[str, Any]:
    """Hold the files of a place against their manifest: those that were touched, with ``full`` all of them.

    Without a manifest, or to ``accept`` what is there now, checksums are made and kept. ``state`` is as in
    ``weights_look``, with ``differs`` where bytes are other than recorded; ``wrong`` says of which files, and which
    parts of them. ``sums``: file → SHA-256, as recorded.
    """
    found = place_of(place)
    told = _look(call, found, place)
    if found is None or told["state"] in ("missing", "broken"):
        return told
    manifest = None if accept else read_manifest(found)
    if manifest is None:
        try:
            manifest = record(call, found, FOUND)
        except OpError as error:
            return dict(told, state="differs", why=str(error), wrong={})
        return dict(told, state="proven", read=True, **_sums(manifest))
    names = sorted({*manifest["files"], *names_in(found)}) if full else touched(found, manifest)
    states = compared(call, found, manifest, names)
    wrong = {name: one for name, one in states.items() if one["state"] not in ("same", "new")}
    if wrong:
        doubt(call, found, manifest, wrong)
        parts = {name: one.get("parts", []) for name, one in wrong.items()}
        return dict(told, state="differs", why=said(found, wrong), wrong=parts, **_sums(manifest))
    if touched(found, manifest):
        manifest = renewed(call, found, manifest, states)
    return dict(told, state="proven", read=bool(names), **_sums(manifest))


def _sums(manifest: Manifest) -> Dict[str, Any]:
    sums = {name: one["sha256"] for name, one in manifest["files"].items()}
    return {"tree": manifest["tree"], "sums": sums, "by": manifest.get("by", FOUND), "at": manifest["at"]}
