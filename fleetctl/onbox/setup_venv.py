"""A Python environment with an engine in it, of one version, at the path that the model names."""

import glob
import os
import re
import shutil
from typing import Any, Dict, List, Optional

from fleetctl.onbox.main import Call, OpError
from fleetctl.onbox.setup_jobs import finish, job
from fleetctl.onbox.setup_record import note

UNIT = "fleetctl-setup-venv.service"
MAKE = 120.0  # seconds to make an empty environment
LIMIT = 7200.0  # seconds to fetch and unpack several GB


def version_in(path: str, package: str) -> Optional[str]:
    """Version of a package in an environment; None where it is not in it, or not whole."""
    plain = re.sub(r"[-_.]+", "_", package).lower()
    for folder in glob.glob(os.path.join(path, "lib", "python3*", "site-packages", "*.dist-info")):
        name, _, version = os.path.basename(folder)[: -len(".dist-info")].rpartition("-")
        if re.sub(r"[-_.]+", "_", name).lower() == plain and os.path.exists(os.path.join(folder, "RECORD")):
            return version
    return None


def is_there(call: Call, part: Dict[str, Any]) -> bool:
    """The environment has the engine's program, in the version that is wanted where one is."""
    found = version_in(part["path"], part["package"])
    program = os.path.join(part["path"], "bin", part["program"])
    return found is not None and os.access(program, os.X_OK) and part["version"] in (None, found)


def free(path: str) -> int:
    """Bytes that are free where a path lies, or would lie."""
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "/"
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def make(call: Call, part: Dict[str, Any], record: Dict[str, Any]) -> None:
    """Make it. OpError where something that setup did not make has the path, or the disk has not enough room."""
    finish(call, UNIT, LIMIT)
    if is_there(call, part):
        return
    path = part["path"]
    if os.path.lexists(path) and not record.get("made"):
        raise OpError("%s is there, and is no environment with %s: it is left alone" % (path, _words(part)))
    if free(path) < part["need"]:
        raise OpError("%s needs about %d GB, and %d GB are free there" % (path, part["need"] >> 30, free(path) >> 30))
    if not record.get("made"):
        record["made"] = path
        record["folders"] = _missing(path)
    note(call, part["part"], record)
    job(call, UNIT, ["/usr/bin/python3", "-m", "venv", "--clear", path], MAKE)
    call.event(log="pip install %s" % _words(part))
    pip = [os.path.join(path, "bin", "python"), "-m", "pip", "install", "--no-input", "--progress-bar=off"]
    job(call, UNIT, [*pip, "--disable-pip-version-check", _words(part)], LIMIT)


def _missing(path: str) -> List[str]:
    missing, folder = [], os.path.dirname(path)
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing


def _words(part: Dict[str, Any]) -> str:
    return str(part["package"]) + ("==" + part["version"] if part["version"] else "")


def take_back(call: Call, part: Dict[str, Any], record: Dict[str, Any]) -> List[str]:
    """Remove an environment that setup made."""
    finish(call, UNIT, LIMIT)
    path = record.get("made")
    if path and os.path.isdir(path) and not os.path.islink(path):
        if os.path.lexists(path) and not os.path.exists(os.path.join(path, "pyvenv.cfg")) and os.listdir(path):
            return ["%s is no Python environment any more and stays" % path]
        shutil.rmtree(path)
    for folder in record.get("folders", []):
        try:
            os.rmdir(folder)
        except OSError:
            break
    return []
