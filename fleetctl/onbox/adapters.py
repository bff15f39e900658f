"""LoRA adapters that this box keeps: one folder each, and the index that says which of them count.

    /var/lib/fleetctl/loras/index.json              which adapters each model has; a number that grows with every change
    /var/lib/fleetctl/loras/names                   the same for the proxy: lines "NAME MODEL"
    /var/lib/fleetctl/loras/.gateway/names          and for a gateway of a pool, whose user can read it
    /var/lib/fleetctl/loras/MODEL/NAME/DIGEST/      the files; never changed once they are there
    /var/lib/fleetctl/loras/.sent/DIGEST/           what is on its way here

A digest is over the names, sizes and SHA-256 of the files: another content is another folder, so that no engine takes
what it computed with one for the other. Everything here may be asked for by somebody who may bring adapters and do
nothing else (loras_only.py): no argument becomes a path before it was found to be a name.
"""

import base64
import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import struct
from typing import Any, Dict, List, Optional

from fleetctl.onbox.files import write
from fleetctl.onbox.kept import MOVES, VAR
from fleetctl.onbox.lock import require_claim
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.state import private_folder, write_json

FOLDER = VAR + "/loras"
INDEX = FOLDER + "/index.json"
NAMES = FOLDER + "/names"
GATEWAY_NAMES = FOLDER + "/.gateway/names"
SENT = FOLDER + "/.sent"
FILES = ("adapter_config.json", "adapter_model.safetensors")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DIGEST = re.compile(r"[0-9a-f]{16}")
SHA256 = re.compile(r"[0-9a-f]{64}")
MOVE = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}")
PIECE = 4 * 1024 * 1024  # bytes that one call writes or reads at most
LARGEST = 16 * 1024**3  # bytes of one adapter
SPARE = 256 * 1024**2  # bytes that stay free on the disk, for journals and logs

Item = Dict[str, Any]  # model, name, digest


def named(value: Any, what: str, form: "re.Pattern[str]" = NAME) -> str:
    """The value, if it has the form of a name. OpError otherwise: it must not become a part of a path."""
    if not isinstance(value, str) or not form.fullmatch(value):
        raise OpError(
            "%s is no %s: letters, digits and . _ - (at most 64, a letter or digit first)" % (_s(value), what)
        )
    return value


def _s(value: Any) -> str:
    return repr(value)[:80]


def digest_of(files: Dict[str, Any]) -> str:
    """The digest of an adapter, from ``{name: [size, sha256]}``."""
    lines = ["%s %d %s\n" % (name, files[name][0], files[name][1]) for name in sorted(files)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def checked_files(files: Any) -> Dict[str, List[Any]]:
    """``{name: [size, sha256]}`` of the two files of an adapter. OpError for anything else."""
    if not isinstance(files, dict) or sorted(files) != sorted(FILES):
        raise OpError("an adapter has the files %s" % " and ".join(FILES))
    for name, told in files.items():
        size, sha = told if isinstance(told, list) and len(told) == 2 else (None, None)
        good = isinstance(size, int) and not isinstance(size, bool) and 0 < size <= LARGEST
        if not good or not isinstance(sha, str) or not SHA256.fullmatch(sha):
            raise OpError("%s: no size and SHA-256" % name)
    return files


def folder_of(model: Any, name: Any, digest: Any) -> str:
    """Where an adapter is, or will be."""
    parts = (named(model, "model"), named(name, "name of an adapter"), named(digest, "digest", DIGEST))
    return "%s/%s/%s/%s" % (FOLDER, *parts)


def index() -> Dict[str, Any]:
    """``serial`` and ``adapters`` (model → name → what is known of it). OpError when it is damaged."""
    try:
        with open(INDEX, encoding="utf-8") as source:
            told = json.load(source)
        return {"serial": int(told["serial"]), "adapters": {m: dict(v) for m, v in told["adapters"].items()}}
    except FileNotFoundError:
        return {"serial": 0, "adapters": {}}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OpError(
            "%s is damaged (%s): remove it, then `fleetctl apply` brings it from another box" % (INDEX, error)
        ) from None


def look() -> Dict[str, Any]:
    """The index, and which adapters in it are not whole here: ``{"MODEL/NAME": why}``. Never fails."""
    try:
        told = index()
    except OpError as error:
        return {"serial": 0, "adapters": {}, "broken": {"index": str(error)}}
    broken = {}
    for model, adapters in told["adapters"].items():
        for name, entry in adapters.items():
            try:
                why = fault(folder_of(model, name, entry["digest"]), entry["files"])
            except (OpError, OSError, ValueError, KeyError, TypeError, struct.error) as error:
                why = str(error)
            if why is not None:
                broken["%s/%s" % (model, name)] = why
    return {**told, "broken": broken}


def fault(folder: str, files: Dict[str, Any]) -> Optional[str]:
    """What is wrong with an adapter's files, by their sizes; None when nothing is."""
    for name, (size, _) in sorted(files.items()):
        path = "%s/%s" % (folder, name)
        if os.path.islink(path) or not os.path.isfile(path):
            return "%s is missing" % name
        if os.path.getsize(path) != size:
            return "%s has %d bytes of %d" % (name, os.path.getsize(path), size)
    return None


def sha256_of(call: Call, path: str) -> str:
    """SHA-256 of a file, in hex."""
    total = hashlib.sha256()
    with open(path, "rb") as source:
        for block in iter(lambda: source.read(1 << 20), b""):
            total.update(block)
            call.check()
    return total.hexdigest()


@op("adapter_sent")
def adapter_sent(call: Call, model: str, name: str, files: Dict[str, Any]) -> Dict[str, Any]:
    """How far an adapter has come: ``there`` (whole, in its place), or the bytes of each file that came before.

    OpError when the disk has no room for the rest.
    """
    digest = digest_of(checked_files(files))
    folder = folder_of(model, name, digest)
    if os.path.isdir(folder):
        if fault(folder, files) is None and all(sha256_of(call, folder + "/" + f) == files[f][1] for f in files):
            return {"there": True, "sent": {}}
        if index()["adapters"].get(model, {}).get(name, {}).get("digest") != digest:
            shutil.rmtree(folder)
    sent = {}
    for file in files:
        path = "%s/%s/%s" % (SENT, digest, file)
        sent[file] = os.path.getsize(path) if os.path.isfile(path) and not os.path.islink(path) else 0
    rest = sum(files[file][0] - min(sent[file], files[file][0]) for file in files)
    private_folder(SENT)
    free = shutil.disk_usage(SENT).free
    if free < rest + SPARE:
        raise OpError("no room for %s in %s: %d bytes are to come and %d are free" % (name, FOLDER, rest, free))
    return {"there": False, "sent": sent}


@op("adapter_put")
def adapter_put(call: Call, digest: str, file: str, offset: int, data: str) -> Dict[str, Any]:
    """Write a piece of a file of an adapter that is on its way; what came after ``offset`` before is dropped."""
    require_claim()
    if file not in FILES or not isinstance(offset, int) or not 0 <= offset <= LARGEST:
        raise OpError("no piece of an adapter: %s at %s" % (_s(file), _s(offset)))
    piece = base64.b64decode(data)
    if len(piece) > PIECE:
        raise OpError("a piece has at most %d bytes" % PIECE)
    folder = "%s/%s" % (SENT, named(digest, "digest", DIGEST))
    private_folder(folder)
    free = shutil.disk_usage(folder).free
    if free < len(piece) + SPARE:  # what was announced, adapter_sent has looked at; this is what comes
        raise OpError("no room in %s: %d bytes are to come and %d are free" % (FOLDER, len(piece), free))
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open("%s/%s" % (folder, file), flags, 0o644)
    try:
        os.ftruncate(handle, offset)
        os.lseek(handle, offset, os.SEEK_SET)
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(handle, rest) :]
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OpError("no space left in %s" % FOLDER) from None
        raise
    finally:
        os.close(handle)
    return {"size": offset + len(piece)}


@op("adapter_seal")
def adapter_seal(call: Call, model: str, name: str, files: Dict[str, Any]) -> Dict[str, Any]:
    """All of an adapter has come: it is checked, byte by byte, and put in its place. OpError for what is not right."""
    require_claim()
    digest = digest_of(checked_files(files))
    folder, source = folder_of(model, name, digest), "%s/%s" % (SENT, digest)
    if os.path.isdir(folder) and fault(folder, files) is None and not os.path.isdir(source):
        return {"folder": folder}
    why = fault(source, files)
    for file in files:
        if why is None and sha256_of(call, "%s/%s" % (source, file)) != files[file][1]:
            why = "%s is not what was sent" % file
    if why is not None:
        shutil.rmtree(source, ignore_errors=True)
        raise OpError("%s of %s did not come whole: %s" % (name, model, why))
    for file in files:
        handle = os.open("%s/%s" % (source, file), os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    os.makedirs(os.path.dirname(folder), mode=0o755, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    os.chmod(source, 0o755)
    os.replace(source, folder)
    return {"folder": folder}


@op("adapter_read")
def adapter_read(call: Call, model: str, name: str, digest: str, file: str, offset: int) -> Dict[str, str]:
    """A piece of a file of an adapter, for a box that lacks it."""
    if file not in FILES:
        raise OpError("an adapter has no file %s" % _s(file))
    with open("%s/%s" % (folder_of(model, name, digest), file), "rb") as source:
        source.seek(offset)
        return {"data": base64.b64encode(source.read(PIECE)).decode("ascii")}


@op("adapters_index")
def adapters_index(call: Call) -> Dict[str, Any]:
    """The index; see :func:`look`."""
    return look()


@op("adapters_note")
def adapters_note(call: Call, serial: int, adapters: Dict[str, Any], back: bool = False) -> Dict[str, Any]:
    """Make this the index. OpError unless every adapter in it is here and whole; on the way ``back`` it need not be."""
    require_claim()
    known: Dict[str, str] = {}
    for model, entries in adapters.items():
        for name, entry in entries.items():
            folder = folder_of(model, name, entry.get("digest"))
            files = checked_files(entry.get("files"))
            why = fault(folder, files) if digest_of(files) == entry["digest"] else "its digest is another"
            if why is not None and not back:
                raise OpError("%s of %s is not whole here: %s" % (name, model, why))
            if name in known:
                raise OpError("%s is an adapter of %s and of %s" % (name, known[name], model))
            if not isinstance(entry.get("rank"), int):
                raise OpError("%s of %s: no rank" % (name, model))
            known[name] = model
    private_folder(FOLDER)
    write_json(call, INDEX, {"serial": int(serial), "adapters": adapters})
    return {"serial": serial}


def write_names(call: Call, without: List[Item], also: List[Item]) -> Dict[str, str]:
    """Write for proxy and gateway which names there are: those of the index, but for some. Returns name -> model."""
    found = {name: model for model, entries in index()["adapters"].items() for name in entries}
    found.update((named(item["name"], "name of an adapter"), named(item["model"], "model")) for item in also)
    for item in without:
        found.pop(item["name"], None)
    lines = "".join("%s %s\n" % (name, found[name]) for name in sorted(found))
    private_folder(FOLDER)
    files = [{"path": NAMES, "content": lines, "mode": 0o600}, {"path": GATEWAY_NAMES, "content": lines, "mode": 0o644}]
    write(call, files)
    return found


# What no longer counts


def _kept_for_undo(move: Any, item: Item) -> str:
    path = folder_of(item.get("model"), item.get("name"), item.get("digest"))
    return "%s/%s/prior%s" % (MOVES, named(move, "move", MOVE), path)


@op("adapters_drop")
def adapters_drop(call: Call, move: str, items: List[Item]) -> Dict[str, Any]:
    """Take adapters that are not in the index away; they are kept until the move is over."""
    require_claim()
    dropped = []
    for item in items:
        folder, kept = folder_of(item["model"], item["name"], item["digest"]), _kept_for_undo(move, item)
        if index()["adapters"].get(item["model"], {}).get(item["name"], {}).get("digest") == item["digest"]:
            raise OpError("%s is in the index and stays" % item["name"])
        if os.path.isdir(folder):
            private_folder(os.path.dirname(kept))
            shutil.rmtree(kept, ignore_errors=True)
            os.replace(folder, kept)
            dropped.append(item["name"])
        shutil.rmtree("%s/%s" % (SENT, item["digest"]), ignore_errors=True)
        with contextlib.suppress(OSError):  # another digest of the name may be there
            os.rmdir(os.path.dirname(folder))
    return {"dropped": dropped}


@op("adapters_restore")
def adapters_restore(call: Call, move: str, items: List[Item]) -> Dict[str, Any]:
    """Bring back what ``adapters_drop`` took away."""
    require_claim()
    for item in items:
        folder, kept = folder_of(item["model"], item["name"], item["digest"]), _kept_for_undo(move, item)
        if os.path.isdir(kept) and not os.path.isdir(folder):
            os.makedirs(os.path.dirname(folder), mode=0o755, exist_ok=True)
            os.replace(kept, folder)
    return {}


def changed(call: Call) -> Dict[str, str]:
    """Adapters of which a byte is another than when they came: ``{"MODEL/NAME": file}``."""
    found = {}
    for model, entries in look()["adapters"].items():
        for name, entry in entries.items():
            folder = folder_of(model, name, entry["digest"])
            for file, (_, sha) in entry["files"].items():
                path = "%s/%s" % (folder, file)
                if os.path.isfile(path) and sha256_of(call, path) != sha:
                    found["%s/%s" % (model, name)] = file
    return found
