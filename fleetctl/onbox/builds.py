"""Which build of an engine a box has. A generation notes it: the same layout need not be the same bytes."""

import glob
import hashlib
import json
import os
import re
from typing import Any, Dict, List, Optional, Sequence

from fleetctl.onbox.files import digest
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.process import run

INSPECT_LIMIT = 30  # seconds
OLDEST = {"podman": 4, "docker": 20}
"""Versions that have what a unit asks of them: --log-driver=passthrough, and --pull=never."""


def venv_build(call: Call, binary: str, packages: Sequence[str] = ()) -> Optional[Dict[str, str]]:
    """Version of the package that a venv's program comes from, and a digest over the list of its files.

    ``packages`` are names that it may have, by default that of the program.

    pip writes the checksum of every file of a package to RECORD, so that one checksum of it stands for all. A program
    that pip did not install has no version and the digest of its own file; None when it is not there.
    """
    program = os.path.basename(binary)
    wanted = {name.replace("_", "-") for name in packages or (program, program + "-cpu")}
    venv = os.path.dirname(os.path.dirname(binary))
    for record in sorted(glob.glob("%s/lib/python3*/site-packages/*.dist-info/RECORD" % venv)):
        name, _, version = os.path.basename(os.path.dirname(record))[: -len(".dist-info")].partition("-")
        if name.replace("_", "-") in wanted:
            with open(record, "rb") as source:
                return {"version": version, "digest": hashlib.sha256(source.read()).hexdigest()}
    own = digest(call, [binary])[binary]
    return None if own is None else {"version": "", "digest": own}


def image_build(call: Call, engine: str, image: str) -> Optional[Dict[str, str]]:
    """Identity of a container image as the box has it; None when it has not."""
    try:
        found = inspected(call, engine, image)
    except OpError:
        return None
    return {"version": image, "digest": image_id(found)} if found is not None else None


def inspected(call: Call, engine: str, image: str) -> Optional[Dict[str, Any]]:
    """What docker or podman knows of an image; None when the box has none of that name or ID.

    OpError when there is no such program, or it cannot tell.
    """
    done = run(call, [engine, "image", "inspect", image], timeout=INSPECT_LIMIT)
    if done["rc"] != 0:
        if re.search("no such image|image not known", done["err"], re.IGNORECASE):
            return None
        raise OpError("%s cannot tell of images: %s" % (engine, " ".join(done["err"].split())[-300:]))
    try:
        found = json.loads(done["out"])
        return dict(found[0]) if found else None
    except (ValueError, TypeError, LookupError):
        raise OpError("%s tells of image %s what is no JSON" % (engine, image)) from None


def image_id(found: Dict[str, Any]) -> str:
    """The ID as docker writes it; podman leaves ``sha256:`` out."""
    name = str(found.get("Id", ""))
    return name if name.startswith("sha256:") else "sha256:" + name


def too_old(call: Call, engine: str) -> str:
    """Why the program cannot run engines; empty where it can. OpError when there is none."""
    said = str(run(call, [engine, "--version"], timeout=INSPECT_LIMIT)["out"]).strip()
    version = re.search(r"(\d+)\.\d+", said)
    if version and int(version[1]) < OLDEST.get(engine, 0):
        return "%s is too old for engines: %s.0 or later is wanted" % (said, OLDEST[engine])
    return ""


def image_facts(call: Call, asked: List[List[str]]) -> Dict[str, Any]:
    """Reference → ``id`` and ``size`` of the image, nothing where there is none, ``problem`` where that is unknown."""
    found: Dict[str, Any] = {}
    for engine, image in asked:
        try:
            problem = too_old(call, engine)
            known = None if problem else inspected(call, engine, image)
        except OpError as error:
            problem, known = str(error), None
        found[image] = {"id": image_id(known), "size": int(known.get("Size") or 0)} if known else {}
        if problem:
            found[image] = {"problem": problem}
    return found


@op("builds")
def builds(
    call: Call, binaries: List[str], images: List[List[str]], packages: Optional[Dict[str, List[str]]] = None
) -> Dict[str, Any]:
    """Program path or image reference → its build, None where there is none. ``packages`` as `venv_build` has them."""
    named = packages or {}
    found: Dict[str, Any] = {binary: venv_build(call, binary, named.get(binary, ())) for binary in binaries}
    found.update({image: image_build(call, engine, image) for engine, image in images})
    return found
