"""Proving an image: the engine saves it, and every layer is held against the checksum that its ID stands for."""

import hashlib
import json
import os
import subprocess
import tarfile
from typing import IO, Any, Dict, List, cast

from fleetctl.onbox.builds import image_id, inspected
from fleetctl.onbox.imagestream import Program
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.partsums import PIECE, Progress

SMALL = 4 * 2**20  # bytes; a configuration or a manifest is no larger


@op("image_prove")
def image_prove(call: Call, engine: str, reference: str) -> Dict[str, Any]:
    """Read all of an image: its ``id``, ``layers`` and ``bytes``, and in ``wrong`` what is not as the ID says.

    The ID is a SHA-256 of what names the SHA-256 of each layer: see :func:`judged`.
    """
    found = inspected(call, engine, reference)
    if found is None:
        raise OpError("there is no image %s" % reference)
    identity = image_id(found)
    progress = Progress(call, int(found.get("Size") or 0), "reading")
    sums: Dict[str, str] = {}
    small: Dict[str, bytes] = {}
    with Program(call, [engine, "save", identity], stdout=subprocess.PIPE) as program:
        try:
            with tarfile.open(fileobj=cast(IO[bytes], program.process.stdout), mode="r|") as archive:
                for member in archive:
                    call.check()
                    if member.isfile():
                        _read(archive, member, sums, small, progress)
        except tarfile.TarError as error:
            call.check()
            raise OpError("%s saves %s as no archive: %s" % (engine, reference, error)) from None
        program.ended("%s cannot save %s" % (engine, reference))
    return {"id": identity, "bytes": progress.done, **judged(identity, sums, small)}


def _read(archive: tarfile.TarFile, member: Any, sums: Dict[str, str], small: Dict[str, bytes], told: Progress) -> None:
    digest, kept = hashlib.sha256(), bytearray()
    source = cast(IO[bytes], archive.extractfile(member))
    while True:
        piece = source.read(PIECE)
        if not piece:
            break
        digest.update(piece)
        if member.size <= SMALL:
            kept += piece
        told.add(len(piece))
    sums[member.name] = digest.hexdigest()
    if kept:
        small[member.name] = bytes(kept)


def judged(identity: str, sums: Dict[str, str], small: Dict[str, bytes]) -> Dict[str, Any]:
    """``layers`` of an archive, and what is ``wrong`` with it. ``sums`` has the SHA-256 of each file in it.

    The ID is the checksum of the configuration, or of the manifest where Docker keeps images with containerd. A layer
    has the checksum that the configuration names, or is packed, and then has the one that is its own name.
    """
    wrong: List[str] = []
    try:
        manifest = json.loads(small["manifest.json"].decode("utf-8"))[0]
        config = json.loads(small[manifest["Config"]].decode("utf-8"))
        named = [str(one).partition(":")[2] for one in config["rootfs"]["diff_ids"]]
        layers = [str(name) for name in manifest["Layers"]]
    except (ValueError, TypeError, LookupError, UnicodeDecodeError):
        return {"layers": 0, "wrong": ["what the engine saves has no manifest that can be read"]}
    there = set(sums.values())
    if identity.partition(":")[2] not in there:
        wrong.append("nothing in it has the checksum that its ID says")
    if len(layers) != len(named):
        wrong.append("it has %d layers of %d" % (len(layers), len(named)))
    for number, (name, checksum) in enumerate(zip(layers, named), 1):  # noqa: B905 - strict= came with Python 3.10
        if checksum not in there and sums.get(name) != os.path.basename(name):
            wrong.append("layer %d is not what it was (%s…)" % (number, checksum[:12]))
    return {"layers": len(named), "wrong": wrong}
