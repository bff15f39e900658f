"""Which flags an engine's program knows: what it prints itself when it is asked for help."""

import contextlib
import hashlib
import json
import os
import re
from typing import Any, Dict, List, Optional

from fleetctl.onbox.builds import image_build, venv_build
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.process import run
from fleetctl.onbox.waits import meminfo

KEPT = "/run/fleetctl-help"  # answers by build, until the next boot: some programs take 10 s for one
MOST_KEPT = 32
ROOM = 2 << 30  # bytes of memory that have to be available: what imports PyTorch takes close to one GiB for a moment
_VERSION = re.compile(r"\d+(?:\.\d+)+\S*|\b\d{3,}\b")
_SECONDS = 2.0  # for a version


@op("program_help")
def program_help(
    call: Call,
    argv: List[str],
    binary: Optional[str],
    image: Optional[List[str]],
    packages: List[str],
    version: Optional[List[str]],
    env: Dict[str, str],
    limit: float,
) -> Dict[str, Any]:
    """What a command line prints that asks for help, as ``{"text", "version"}``, or ``{"why"}``: it could not be asked.

    Asked once for each build: of ``binary`` (from one of ``packages``) or of ``image`` ([docker or podman, reference]).
    ``version`` is a command line that prints one, where no package tells it.
    """
    try:
        build = image_build(call, *image) if image else venv_build(call, str(binary), packages)
    except OpError as error:
        return {"why": str(error)}
    if build is None:
        return {"why": "it is not there"}
    kept = _place([build["digest"], argv, sorted(env.items())])
    known = _kept(kept)
    if known is not None:
        return known
    if meminfo()["MemAvailable"] < ROOM:
        return {"why": "less than %d GiB of memory is available" % (ROOM >> 30)}
    try:
        done = run(call, ["nice", "-n", "19", *argv], env=env, timeout=limit)
        told = build["version"] or _version(call, version, env)
    except OpError as error:
        return {"why": str(error)}
    if done["rc"] != 0:
        lines = [line.strip() for line in (done["err"] or done["out"]).splitlines() if line.strip()]
        return {"why": "%s ended with status %d: %s" % (" ".join(argv[:3]), done["rc"], (lines or [""])[-1][:200])}
    answer = {"text": done["out"], "version": told}
    with contextlib.suppress(OSError):  # no room, or another call at the same moment: then it is asked again
        _keep(kept, answer)
    return answer


def _version(call: Call, argv: Optional[List[str]], env: Dict[str, str]) -> str:
    if not argv:
        return ""
    done = run(call, argv, env=env, timeout=_SECONDS)
    found = _VERSION.search(done["out"] + done["err"])
    return found.group(0) if found else ""


def _place(key: Any) -> str:
    return "%s/%s.json" % (KEPT, hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32])


def _kept(path: str) -> Optional[Dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as source:
            return dict(json.load(source))
    except (OSError, ValueError, TypeError):
        return None


def _keep(path: str, answer: Dict[str, Any]) -> None:
    os.makedirs(KEPT, mode=0o700, exist_ok=True)
    names = sorted(os.listdir(KEPT), key=lambda name: os.stat(os.path.join(KEPT, name)).st_mtime)
    for name in names[: max(0, len(names) - MOST_KEPT + 1)]:
        os.unlink(os.path.join(KEPT, name))
    temporary = path + ".new"
    with open(temporary, "w", encoding="utf-8") as target:
        json.dump(answer, target)
    os.replace(temporary, path)
