"""A container image from a registry. What a pull that was cut off has left half fetched goes; whole layers stay.

Podman keeps what it fetches in a folder of /var/tmp until a layer is whole, and a Podman that is killed leaves that
folder for ever: gigabytes of an engine's image. So each pull has a folder of its own, which goes with it. Layers that
were whole are in Podman's storage, where the next pull finds them. Docker's daemon tidies up after its pulls itself.
"""

import contextlib
import glob
import os
import re
import shutil
import stat
import tempfile
from typing import Any, Dict

from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.process import run

STAGED = "/var/tmp"
"""Where Podman puts what it fetches or loads before it is unpacked."""

_FOLDER = "fleetctl-pull-"


@op("image_pull")
def image_pull(call: Call, engine: str, image: str, limit: float) -> Dict[str, Any]:
    """Pull a container image; status and outputs as `run` tells them. Cancelled, the layers that are whole are kept."""
    sweep()
    try:
        folder = tempfile.mkdtemp(prefix="%s%d-" % (_FOLDER, os.getpid()), dir=STAGED)
    except OSError as error:
        raise OpError("nothing can be fetched to %s: %s" % (STAGED, error.strerror)) from None
    try:
        return run(call, [engine, "pull", "--quiet", image], timeout=limit, env={"TMPDIR": folder})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Remove what pulls have left whose program has ended."""
    for path in glob.glob(os.path.join(STAGED, _FOLDER + "*")):
        owner = re.match(r"[0-9]+", os.path.basename(path)[len(_FOLDER) :])
        if owner is None or os.path.exists("/proc/" + owner[0]):
            continue
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                shutil.rmtree(path, ignore_errors=True)
