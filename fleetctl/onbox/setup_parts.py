"""The parts of a set-up box, each with a way to see that it is so, to make it so, and to take it back.

A part is a dict with ``part`` (its name), ``kind`` and what the kind takes. The record of what a part changed is on the
disk before the change (onbox/setup_record.py).
"""

import glob
import os
import shutil
from typing import Any, Callable, Dict, List, Tuple

from fleetctl.onbox import imagepull, setup_keys, setup_link, setup_packages, setup_venv
from fleetctl.onbox.lock import require_claim
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.process import run
from fleetctl.onbox.setup_record import forget, give_all_back, is_so, keep, note, put, records

Part = Dict[str, Any]
COMMAND_LIMIT = 120.0  # seconds of one command of a part


@op("setup_so")
def setup_so(call: Call, parts: List[Part]) -> List[bool]:
    """For each part whether the box is so already."""
    return [KINDS[part["kind"]][0](call, part) for part in parts]


@op("setup_do")
def setup_do(call: Call, part: Part) -> Dict[str, Any]:
    """Make a part so. What is there already stays; OpError says what did not work."""
    require_claim()
    record = records().get(part["part"]) or {}
    record["wanted"] = _without_long(part)
    KINDS[part["kind"]][1](call, part, record)
    if not KINDS[part["kind"]][0](call, part):
        raise OpError("%s was carried out, and the box is not as it should be" % part["part"])
    return {}


@op("setup_fetch")
def setup_fetch(call: Call, part: Part) -> Dict[str, Any]:
    """The same for a part that is only fetched, and on which nothing rests before it is whole: it may be cut short."""
    return setup_do(call, part)


def _without_long(part: Part) -> Part:
    """The part as it is kept: a file whose digest says all needs no second copy."""
    files = [
        {key: file[key] for key in file if key != "content" or "sha256" not in file} for file in part.get("files", [])
    ]
    return {**part, **({"files": files} if files else {})}


@op("setup_undo")
def setup_undo(call: Call, part: str) -> Dict[str, Any]:
    """Take a part back by its record. ``left`` says what stays and why; no record: nothing to take back."""
    require_claim()
    record = records().get(part)
    if record is None:
        return {"left": []}
    left = KINDS[record["wanted"]["kind"]][2](call, record["wanted"], record)
    forget(call, part)
    return {"left": left}


@op("setup_record")
def setup_record(call: Call) -> Dict[str, Any]:
    """What setup has put on this box: part → its record."""
    return records()


# Files, packages and commands


def _things_so(call: Call, part: Part) -> bool:
    names = part.get("packages", [])
    there = setup_packages.versions(call, names)
    return all(there[name] is not None for name in names) and all(is_so(file) for file in part.get("files", []))


def _do_things(call: Call, part: Part, record: Dict[str, Any]) -> None:
    names = part.get("packages", [])
    if names:
        setup_packages.install(call, names, record, lambda: note(call, part["part"], record))
        setup_packages.off(call, [unit for unit in part.get("off", []) if _is_new(record, unit)])
    for file in part.get("files", []):
        keep(record, file)
    note(call, part["part"], record)
    for file in part.get("files", []):
        _verified(call, file)
        put(call, file)
    if "sweep" in part:
        _sweep(**part["sweep"])
    _commands(call, part.get("after", []))


def _sweep(pattern: str, named_in: str) -> None:
    """Remove files of earlier versions that no line of a file names any more."""
    with open(named_in, encoding="utf-8") as source:
        named = source.read().split()
    for path in glob.glob(pattern):
        if path not in named:
            os.unlink(path)


def _is_new(record: Dict[str, Any], unit: str) -> bool:
    """Its package came with setup: one that was there before is somebody's."""
    return unit.rsplit(".", 1)[0] in record.get("packages", [])


def _verified(call: Call, file: Dict[str, Any]) -> None:
    """Have the program that will read a file look at it before it is in its place."""
    if not file.get("verify"):
        return
    trial = "/run/fleetctl-setup.check"
    put(call, {**file, "path": trial})
    try:
        done = run(call, [*file["verify"], trial])
    finally:
        os.unlink(trial)
    if done["rc"] != 0:
        said = (done["err"].strip() or done["out"].strip())[-500:]
        raise OpError("%s does not accept %s: %s" % (file["verify"][0], file["path"], said))


def _undo_things(call: Call, part: Part, record: Dict[str, Any]) -> List[str]:
    left = give_all_back(record)
    if record.get("packages"):
        left += setup_packages.purge(call, record["packages"])
    _commands(call, part.get("back", []))
    return left


def _commands(call: Call, commands: List[List[str]]) -> None:
    for argv in commands:
        done = run(call, argv, timeout=COMMAND_LIMIT)
        if done["rc"] != 0:
            raise OpError("%s: %s" % (" ".join(argv), (done["err"].strip() or done["out"].strip())[-500:]))


# A container image


def _image_so(call: Call, part: Part) -> bool:
    if shutil.which(part["engine"]) is None:
        return False
    return bool(run(call, [part["engine"], "image", "inspect", part["image"]], timeout=60)["rc"] == 0)


def _do_image(call: Call, part: Part, record: Dict[str, Any]) -> None:
    if _image_so(call, part):
        return
    note(call, part["part"], record)
    call.event(log="%s pull %s" % (part["engine"], part["image"]))
    done = imagepull.image_pull(call, part["engine"], part["image"], part["limit"])
    if done["rc"] != 0:
        said = (done["err"].strip() or done["out"].strip()).splitlines()[-1:]
        raise OpError("%s cannot pull %s: %s" % (part["engine"], part["image"], "".join(said)))


def _undo_image(call: Call, part: Part, record: Dict[str, Any]) -> List[str]:
    imagepull.sweep()
    if not _image_so(call, part):
        return []
    done = run(call, [part["engine"], "image", "rm", part["image"]], timeout=COMMAND_LIMIT)
    return [] if done["rc"] == 0 else ["image %s stays: %s" % (part["image"], done["err"].strip()[-300:])]


Ways = Tuple[
    Callable[[Call, Part], bool],
    Callable[[Call, Part, Dict[str, Any]], None],
    Callable[[Call, Part, Dict[str, Any]], List[str]],
]

KINDS: Dict[str, Ways] = {
    "things": (_things_so, _do_things, _undo_things),
    "key": (setup_keys.is_there, setup_keys.add, setup_keys.take_back),
    "link": (setup_link.is_there, setup_link.make, setup_link.take_down),
    "venv": (setup_venv.is_there, setup_venv.make, setup_venv.take_back),
    "image": (_image_so, _do_image, _undo_image),
}
