"""What `fleetctl setup` has put on this box, part by part, with the files as they were before, for teardown."""

import base64
import contextlib
import hashlib
import os
import shutil
import stat
from typing import Any, Dict, List, Optional

from fleetctl.onbox.files import write
from fleetctl.onbox.kept import VAR, read_object
from fleetctl.onbox.main import Call, OpError
from fleetctl.onbox.state import private_folder, write_json

RECORD = VAR + "/setup.json"
KEPT = VAR + "/setup"


def records() -> Dict[str, Any]:
    """Part → what was done for it; empty where setup never was."""
    advice = "what setup has put here is not known any more: remove the file, and what it put here by hand"
    return read_object(RECORD, advice) or {}


def note(call: Call, part: str, record: Dict[str, Any]) -> None:
    """Keep the record of a part. It is written before anything is changed, so that a cut leaves nothing unknown."""
    private_folder(VAR)
    write_json(call, RECORD, {**records(), part: record})


def forget(call: Call, part: str) -> None:
    """The part is not there any more."""
    known = records()
    known.pop(part, None)
    if known:
        write_json(call, RECORD, known)
    elif os.path.exists(RECORD):
        os.unlink(RECORD)
        shutil.rmtree(KEPT, ignore_errors=True)


def wanted_digest(file: Dict[str, Any]) -> str:
    """SHA-256 in hex of a file as a part has it: of its content, or told where the content comes only to be put."""
    if "sha256" in file:
        return str(file["sha256"])
    data = base64.b64decode(file["content_b64"]) if "content_b64" in file else str(file["content"]).encode()
    return hashlib.sha256(data).hexdigest()


def sha256_of(path: str) -> Optional[str]:
    """SHA-256 of a file in hex; None where there is none."""
    try:
        with open(path, "rb") as source:
            return hashlib.sha256(source.read()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_so(file: Dict[str, Any]) -> bool:
    """The file has the content and the mode that a part wants."""
    if sha256_of(file["path"]) != wanted_digest(file):
        return False
    return bool(stat.S_IMODE(os.stat(file["path"]).st_mode) == file["mode"])


def keep(record: Dict[str, Any], file: Dict[str, Any]) -> None:
    """Put into the record what a file was before the first change to it, and what it will be; its copy is kept."""
    path = file["path"]
    known = record.setdefault("files", {}).get(path, {})
    if "before" not in known:
        before: Optional[Dict[str, Any]] = None
        if os.path.lexists(path):
            found = os.lstat(path)
            os.makedirs(os.path.dirname(KEPT + path), mode=0o700, exist_ok=True)
            shutil.copyfile(path, KEPT + path)
            os.chmod(KEPT + path, 0o600)
            before = {
                "mode": stat.S_IMODE(found.st_mode),
                "uid": found.st_uid,
                "gid": found.st_gid,
                "mtime": found.st_mtime_ns,
            }
        known["before"] = before
        known["folders"] = _missing_folders(path)
    known["after"] = wanted_digest(file)
    record["files"][path] = known


def put(call: Call, file: Dict[str, Any]) -> None:
    """Write a file as a part has it. OpError when it is not the one that the part names."""
    if "content" in file and hashlib.sha256(str(file["content"]).encode()).hexdigest() != wanted_digest(file):
        raise OpError("%s: what came is not what was to be put there" % file["path"])
    entry: Dict[str, Any] = {
        key: file[key] for key in ("path", "mode", "content", "content_b64", "owner", "private") if key in file
    }
    write(call, [entry])


def give_back(record: Dict[str, Any], path: str) -> Optional[str]:
    """Make a file what it was before. Returns why it is left, when somebody has changed it since."""
    known = record.get("files", {}).get(path)
    if known is None:
        return None
    now, before = sha256_of(path), known["before"]
    if before is None:
        if now is not None and now != known["after"]:
            return "%s was changed since and stays" % path
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        _remove_empty(known.get("folders", []))
        return None
    if now == sha256_of(KEPT + path) or now == known["after"]:
        _restore(path, before)
        return None
    return "%s was changed since and stays; as it was before setup it is kept in %s until teardown ends" % (
        path,
        KEPT + path,
    )


def give_all_back(record: Dict[str, Any]) -> List[str]:
    """Make all files of a part what they were before. Returns what is left, and why."""
    left = [why for path in record.get("files", {}) for why in [give_back(record, path)] if why]
    for known in record.get("files", {}).values():
        _remove_empty(known.get("folders", []))  # one that another file of the part was in
    return left


def _restore(path: str, before: Dict[str, Any]) -> None:
    temporary = path + ".fleetctl-back"
    shutil.copyfile(KEPT + path, temporary)
    os.chown(temporary, before["uid"], before["gid"])
    os.chmod(temporary, before["mode"])
    os.utime(temporary, ns=(before["mtime"], before["mtime"]))
    os.replace(temporary, path)


def _missing_folders(path: str) -> List[str]:
    """Folders above a path that are not there yet, innermost first."""
    missing, folder = [], os.path.dirname(path)
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing


def _remove_empty(folders: List[str]) -> None:
    for folder in folders:
        try:
            os.rmdir(folder)
        except OSError:
            return  # somebody else has something in it
