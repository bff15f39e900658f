"""Which build of an engine a box has: what a generation notes, so that "the same layout" can be told from "the same bytes"."""

import glob
import hashlib
import os
from typing import Any, Dict, List, Optional

from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.process import run


def venv_build(binary: str) -> Optional[Dict[str, str]]:
    """Version of the package that a venv's program comes from, and a digest over the list of its files.

    pip writes the checksum of every file of a package to RECORD, so that one checksum of it stands for all.
    """
    package = os.path.basename(binary)
    venv = os.path.dirname(os.path.dirname(binary))
    for record in sorted(glob.glob("%s/lib/python3*/site-packages/%s*.dist-info/RECORD" % (venv, package))):
        name, _, version = os.path.basename(os.path.dirname(record))[: -len(".dist-info")].partition("-")
        if name.replace("_", "-") in (package, package + "-cpu"):
            with open(record, "rb") as source:
                return {"version": version, "digest": hashlib.sha256(source.read()).hexdigest()}
    return None


def image_build(call: Call, engine: str, image: str) -> Optional[Dict[str, str]]:
    """Identity of a container image as the box has it; None when it has not."""
    try:
        done = run(call, [engine, "image", "inspect", "--format", "{{.Id}}", image], timeout=30)
    except OpError:
        return None
    return {"version": image, "digest": done["out"].strip()} if done["rc"] == 0 else None


@op("builds")
def builds(call: Call, binaries: List[str], images: List[List[str]]) -> Dict[str, Any]:
    """Program path or image reference → its build, None where it cannot be told (a program that pip did not install)."""
    found: Dict[str, Any] = {binary: venv_build(binary) for binary in binaries}
    found.update({image: image_build(call, engine, image) for engine, image in images})
    return found
