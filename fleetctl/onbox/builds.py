"""Which build of an engine a box has. A generation notes it: the same layout need not be the same bytes."""

import glob
import hashlib
import os
from typing import Any, Dict, List, Optional, Sequence

from fleetctl.onbox.files import digest
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.process import run


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
        done = run(call, [engine, "image", "inspect", "--format", "{{.Id}}", image], timeout=30)
    except OpError:
        return None
    return {"version": image, "digest": done["out"].strip()} if done["rc"] == 0 else None


@op("builds")
def builds(
    call: Call, binaries: List[str], images: List[List[str]], packages: Optional[Dict[str, List[str]]] = None
) -> Dict[str, Any]:
    """Program path or image reference → its build, None where there is none. ``packages`` as `venv_build` has them."""
    named = packages or {}
    found: Dict[str, Any] = {binary: venv_build(call, binary, named.get(binary, ())) for binary in binaries}
    found.update({image: image_build(call, engine, image) for engine, image in images})
    return found


@op("image_pull")
def image_pull(call: Call, engine: str, image: str, limit: float) -> Dict[str, Any]:
    """Pull a container image; status and outputs as `run` tells them. Cancelled, what was pulled so far is kept."""
    return run(call, [engine, "pull", "--quiet", image], timeout=limit)
