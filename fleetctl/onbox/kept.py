"""Reading what fleetctl keeps on a box, where a file may be missing, or damaged together with the box."""

import json
import os
from typing import Any, Dict, Iterable, List, Optional

from fleetctl.onbox.main import OpError

ETC = "/etc/fleetctl"
VAR = "/var/lib/fleetctl"
GENERATIONS = ETC + "/generations"
CURRENT = ETC + "/current"
MOVES = VAR + "/moves"
SUPERSEDED = VAR + "/superseded.json"
DRAINED = VAR + "/drained.json"

PUT_BACK = "then `fleetctl cutover --to LAYOUT` puts a layout in place again"


def read_object(path: str, advice: str, needs: Iterable[str] = ()) -> Optional[Dict[str, Any]]:
    """The JSON object in a file; None when there is no such file.

    OpError, which ends in the ``advice``, when it cannot be read, is no object or lacks one of the keys it ``needs``.
    """
    try:
        with open(path, encoding="utf-8") as source:
            value = json.load(source)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise OpError("%s is damaged (%s): %s" % (path, error, advice)) from None
    if not isinstance(value, dict):
        raise OpError("%s is damaged (no JSON object): %s" % (path, advice))
    missing = [key for key in needs if key not in value]
    if missing:
        raise OpError("%s is damaged (without %s): %s" % (path, ", ".join(missing), advice))
    return value


def superseded() -> Dict[str, Any]:
    """Foreign units that fleetctl replaced here, with the state they had before."""
    advice = (
        "remove the file; what it said of units that fleetctl replaced here is lost, so a rollback to before fleetctl "
        "does not bring them back"
    )
    return read_object(SUPERSEDED, advice) or {}


def drained() -> Optional[Dict[str, Any]]:
    """Since when and by whom this box is drained; None when it is not."""
    return read_object(DRAINED, "remove the file, and drain the box again if it shall stay drained", ("since", "by"))


# Generations


def generation_folder(number: int) -> str:
    """Where a generation is kept."""
    return "%s/%d" % (GENERATIONS, number)


def _advice(number: int) -> str:
    return "remove %s, %s" % (generation_folder(number), PUT_BACK)


def generation_meta(number: int) -> Optional[Dict[str, Any]]:
    """Meta data of a generation; None when it is not complete. OpError when they are damaged."""
    return read_object(generation_folder(number) + "/meta.json", _advice(number), ("paths",))


def generation_release(number: int) -> Dict[str, Any]:
    """Release of a complete generation. OpError when it is missing or damaged."""
    path = generation_folder(number) + "/release.json"
    release = read_object(path, _advice(number))
    if not release:
        raise OpError("%s is %s: %s" % (path, "missing" if release is None else "empty", _advice(number)))
    return release


def generations() -> Dict[int, Dict[str, Any]]:
    """Number of each complete generation on this box → its meta data. One that is damaged counts as not there."""
    try:
        names = os.listdir(GENERATIONS)
    except OSError:
        return {}
    found = {}
    for number in sorted(int(name) for name in names if name.isdecimal()):
        try:
            meta = generation_meta(number)
        except OpError:
            continue
        if meta is not None:
            found[number] = meta
    return found


def pointed_at() -> Optional[int]:
    """Number of the generation that ``current`` points at, there or not; None when it points at none."""
    try:
        return int(os.path.basename(os.readlink(CURRENT)))
    except (OSError, ValueError):
        return None


def current_generation() -> Optional[int]:
    """Number of the generation this box is in; None when there is none, or it is not complete."""
    number = pointed_at()
    try:
        return None if number is None or generation_meta(number) is None else number
    except OpError:
        return None


def current_facts() -> Dict[str, Any]:
    """``generation`` and ``release`` this box is in, None each when in none, and ``notes`` on what is odd about it.

    OpError, with the way out, when the current generation is there and damaged.
    """
    number = pointed_at()
    notes: List[str] = []
    if number is not None and generation_meta(number) is None:
        folder = generation_folder(number)
        notes.append("%s points at a generation that is not there: %s has no meta.json" % (CURRENT, folder))
        number = None
    release = None if number is None else generation_release(number)
    return {"generation": number, "release": release, "notes": notes}
