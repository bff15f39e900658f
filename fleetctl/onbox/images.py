"""Container images on this box: what it has of them, room for more, and names."""

import os
import shutil
from typing import Any, Dict, List

from fleetctl.onbox.builds import image_id, inspected
from fleetctl.onbox.imagepull import STAGED
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.process import run

ASK_LIMIT = 60  # seconds


@op("images_look")
def images_look(call: Call, asked: List[List[str]]) -> List[Dict[str, Any]]:
    """Of each [engine, reference]: ``id`` (empty: the box has none), ``size`` and ``names``.

    Beside that the ``rooms`` that an image takes when it arrives, or a ``problem`` where no image can be had there.
    """
    found: List[Dict[str, Any]] = []
    for engine, reference in asked:
        call.check()
        try:
            known = inspected(call, engine, reference)
            told: Dict[str, Any] = {"rooms": rooms(call, engine)}
        except OpError as error:
            found.append({"problem": str(error)})
            continue
        if known is not None:
            names = [name for name in known.get("RepoTags") or [] if isinstance(name, str)]
            told.update(id=image_id(known), size=int(known.get("Size") or 0), names=names)
        found.append(told)
    return found


def rooms(call: Call, engine: str) -> List[Dict[str, Any]]:
    """File systems that an image is written to on its way: path, device, bytes free."""
    words = {"podman": "{{.Store.GraphRoot}}", "docker": "{{.DockerRootDir}}"}[engine]
    done = run(call, [engine, "info", "--format", words], timeout=ASK_LIMIT)
    root = done["out"].strip()
    if done["rc"] != 0 or not root.startswith("/"):
        raise OpError("%s does not work here: %s" % (engine, " ".join(done["err"].split())[-300:]))
    staged = STAGED if engine == "podman" else os.path.join(root, "tmp")
    return [_room(path) for path in (root, staged)]


def _room(path: str) -> Dict[str, Any]:
    there = path
    while not os.path.exists(there):
        there = os.path.dirname(there)
    return {"path": path, "device": os.stat(there).st_dev, "free": shutil.disk_usage(there).free}


@op("image_tag")
def image_tag(call: Call, engine: str, identity: str, name: str) -> Dict[str, Any]:
    """Give an image a name; it is taken from the image that had it."""
    done = run(call, [engine, "tag", identity, name], timeout=ASK_LIMIT)
    if done["rc"] != 0:
        raise OpError("%s cannot name %s %s: %s" % (engine, identity[:19], name, " ".join(done["err"].split())[-300:]))
    return {}
