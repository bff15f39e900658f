"""Programs of fleetctl that this box runs besides engines: one folder each, by the digest of what went into it.

    /var/lib/fleetctl/programs/DIGEST/              sources and libraries; never changed once they are there
    /var/lib/fleetctl/programs/DIGEST/.made-for     the Python and the machine that the libraries are for
    /var/lib/fleetctl/programs/.DIGEST.tar.gz       what is on its way here

They come from the operator's machine; this box fetches nothing.
"""

import base64
import compileall
import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import socket
import tarfile
import time
import urllib.error
import urllib.request
from typing import Any, Dict, List, Optional

from fleetctl.onbox.kept import VAR, generation_release, generations
from fleetctl.onbox.main import Call, CancelledError, OpError, op
from fleetctl.onbox.units import states

FOLDER = VAR + "/programs"
DIGEST = re.compile(r"[0-9a-f]{16}")
LARGEST = 1024**3  # bytes of one archive
SPARE = 256 * 1024**2  # bytes that stay free on the disk, for journals and logs
RESTARTS = 3  # of a program that ends again and again before it is given up
LOOK_EVERY = 0.1
NO_ANSWER = "it does not answer"


def folder_of(digest: Any) -> str:
    """Where a program is, or will be. OpError for what is no digest: it must not become a part of a path."""
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise OpError("%r is no digest of a program" % str(digest)[:40])
    return "%s/%s" % (FOLDER, digest)


def _archive(digest: str) -> str:
    return "%s/.%s.tar.gz" % (FOLDER, os.path.basename(folder_of(digest)))


def made_for() -> Dict[str, str]:
    """Python, machine and C library of this box, by which builds of libraries are told apart."""
    name, version = platform.libc_ver()
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, "machine": platform.machine(), "libc": "%s %s" % (name, version)}


@op("programs_look")
def programs_look(call: Call, digests: List[str]) -> Dict[str, Any]:
    """What libraries have to be made for here, and which of the programs are there, for this box as it is."""
    now = made_for()
    return {"made_for": now, "there": [digest for digest in digests if _kept_for(digest) == now]}


def _kept_for(digest: str) -> Optional[Dict[str, str]]:
    try:
        with open(folder_of(digest) + "/.made-for", encoding="utf-8") as source:
            return dict(json.load(source))
    except (OSError, ValueError):
        return None


@op("programs_put")
def programs_put(call: Call, digest: str, offset: int, data: str) -> Dict[str, Any]:
    """Write a piece of an archive; the first one, at 0, begins it anew."""
    path, piece = _archive(digest), base64.b64decode(data)
    if offset < 0 or offset + len(piece) > LARGEST:
        raise OpError("an archive of programs has at most %d bytes" % LARGEST)
    os.makedirs(FOLDER, mode=0o755, exist_ok=True)
    free = shutil.disk_usage(FOLDER).free
    if free < len(piece) + SPARE:
        raise OpError("no room in %s: %d bytes are to come and %d are free" % (FOLDER, len(piece), free))
    with open(path, "wb" if offset == 0 else "r+b") as target:
        target.seek(offset)
        target.write(piece)
    os.chmod(path, 0o600)
    return {"bytes": offset + len(piece)}


@op("programs_unpack")
def programs_unpack(call: Call, digest: str, sha256: str) -> Dict[str, Any]:
    """Put the program of an archive in its place, whole or not at all. OpError when it is not what was sent."""
    path, folder = _archive(digest), folder_of(digest)
    total = hashlib.sha256()
    with open(path, "rb") as source:
        for block in iter(lambda: source.read(1 << 20), b""):
            total.update(block)
            call.check()
    if total.hexdigest() != sha256:
        os.unlink(path)
        raise OpError("the programs %s did not arrive as they were sent" % digest)
    partial = folder + ".new"
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            call.check()
            _unpack(archive, member, partial)
    compileall.compile_dir(partial, quiet=2, force=True)
    with open(partial + "/.made-for", "w", encoding="utf-8") as target:
        json.dump(made_for(), target)
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(partial, folder)
    os.unlink(path)
    return {}


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: str) -> None:
    """One file of an archive: plain files below the folder, owned by root, that others can read."""
    target = os.path.normpath(os.path.join(folder, member.name))
    if not target.startswith(folder + "/") or not member.isfile():
        raise OpError("the archive has %s in it, which is no file of a program" % member.name[:80])
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    content = archive.extractfile(member)
    assert content is not None
    with open(target, "wb") as output:
        shutil.copyfileobj(content, output)
    os.chmod(target, 0o644)


@op("programs_remove")
def programs_remove(call: Call, digests: List[str]) -> Dict[str, Any]:
    """Remove programs that came with a move which is undone; those that a generation needs stay."""
    return {"removed": _remove([one for one in digests if os.path.basename(folder_of(one)) not in _needed()])}


@op("programs_prune")
def programs_prune(call: Call) -> Dict[str, Any]:
    """Remove what no generation on this box needs, and what was on its way here for none."""
    needed = _needed()
    there = {found.group() for found in map(DIGEST.search, _listed()) if found}
    return {"removed": _remove([name for name in sorted(there) if name not in needed])}


def _needed() -> str:
    """The releases of all generations as one text: whatever is named in them is needed."""
    return "\0".join(json.dumps(generation_release(number)) for number in generations())


def _remove(digests: List[str]) -> List[str]:
    gone = []
    for digest in digests:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_archive(digest))
        shutil.rmtree(folder_of(digest) + ".new", ignore_errors=True)
        if os.path.isdir(folder_of(digest)):
            # Without this file it does not count: a removal that is cut off leaves nothing half valid.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(folder_of(digest) + "/.made-for")
            shutil.rmtree(folder_of(digest), ignore_errors=True)
            gone.append(digest)
    return gone


def _listed() -> List[str]:
    try:
        return sorted(os.listdir(FOLDER))
    except FileNotFoundError:
        return []


@op("await_service")
def await_service(
    call: Call, unit: str, address: str, port: int, url: str, engines: List[str], limit: float
) -> Dict[str, Any]:
    """Wait until a program of a pool is at work: it answers 200 at ``url`` (empty: it is NATS, and says so at its
    port; no port either: it runs), and the units of the engines that it has to load are active.

    OpError when it ends again and again, when an engine fails, or when the time is over.
    """
    start = time.monotonic()
    base: Optional[int] = None
    said = ""
    while True:
        seen = states(call, [unit, *engines])
        state = seen[unit]
        base = state["restarts"] if base is None else base
        if state["active"] in ("failed", "inactive") and not state["job"]:
            raise OpError("%s ended (%s, exit status %s)" % (unit, state["result"], state["status"]))
        if state["restarts"] - base >= RESTARTS:
            raise OpError("%s ends again and again (exit status %s)" % (unit, state["status"]))
        failed = [name for name in engines if seen[name]["active"] == "failed"]
        if failed:
            raise OpError("%s failed: %s" % (", ".join(failed), ", ".join(seen[name]["result"] for name in failed)))
        runs = state["active"] == "active" and state["sub"] == "running"
        told = _told(url) if url else "" if (_is_nats(address, port) if port else runs) else NO_ANSWER
        works = not told
        loading = [name for name in engines if seen[name]["active"] != "active"]
        if works and not loading:
            return {"waited": round(time.monotonic() - start, 2)}
        said = told if told else "%s is not loaded" % ", ".join(loading)
        if call.cancelled.is_set():
            raise CancelledError("waiting for %s was cancelled" % unit)
        waited = time.monotonic() - start
        if waited > limit:
            raise OpError("%s is not at work after %.0f s: %s" % (unit, waited, said))
        call.event(waited=round(waited, 1), log=said)
        time.sleep(LOOK_EVERY)


def _told(url: str) -> str:
    """Why a program is not at work, in its own words where it has any; empty: it is."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2.0) as answer:
            return "" if answer.status == 200 else NO_ANSWER
    except urllib.error.HTTPError as error:
        try:
            return str(json.loads(error.read(65536).decode("utf-8", "replace"))["status"])[:500] or NO_ANSWER
        except (OSError, ValueError, KeyError, TypeError):
            return "it answers %d" % error.code
    except (OSError, ValueError):
        return NO_ANSWER


def _is_nats(address: str, port: int) -> bool:
    """NATS with JetStream speaks first, and says what it is."""
    try:
        with socket.create_connection((address, port), timeout=2.0) as connection:
            connection.settimeout(2.0)
            line = connection.makefile("rb").readline(65536)
        return line.startswith(b"INFO ") and bool(json.loads(line[5:].decode("utf-8")).get("jetstream"))
    except (OSError, ValueError):
        return False
