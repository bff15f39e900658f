"""What tells two copies of a model's folder apart: quickly by sizes and headers, for certain by checksums."""

import hashlib
import os
import time
from typing import Any, Dict, List, Optional

from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.weights import begin_of, expected_size, named_in_index

MOST = 4000  # files of a folder
SMALL = 64 * 2**20  # bytes; what is larger is told by its size alone, unless it has a header
PIECE = 8 * 2**20
EVENT = 1.0  # seconds between two words of progress
WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
READ = (*WEIGHTS, ".json", ".jinja", ".model", ".tiktoken", ".txt", ".py", ".vocab")
"""Endings of what an engine reads; a README that differs is of no interest."""


def model_files(folder: str) -> List[str]:
    """Names of the files of a model's folder that an engine reads, in order; of a file, its own name."""
    if os.path.isfile(folder):
        return [os.path.basename(folder)]
    names = [name for name in sorted(os.listdir(folder)) if name.endswith(READ) and not name.startswith(".")]
    return [name for name in names if os.path.isfile(os.path.join(folder, name))][:MOST]


def fingerprint(call: Call, folder: str) -> Dict[str, Any]:
    """``files``: name → size and the beginning of a SHA-256 over what is small or a header (empty: neither).

    ``broken`` says which files are not whole, as far as their own headers and the folder's index tell.
    """
    files, broken = {}, []
    base = folder if os.path.isdir(folder) else os.path.dirname(folder)
    for name in model_files(folder):
        call.check()
        path = os.path.join(base, name)
        try:
            size = os.path.getsize(path)
            tells = begin_of(path) if name.endswith(".safetensors") or size <= SMALL else b""
            files[name] = [size, hashlib.sha256(tells).hexdigest()[:16] if tells else ""]
            if name.endswith(".safetensors") and size < (due := expected_size(path)):
                broken.append("%s has %d bytes of %d" % (path, size, due))
        except OpError as error:
            broken.append(str(error))
        except OSError as error:
            broken.append("%s cannot be read: %s" % (path, error.strerror or error))
    try:
        broken += ["%s is missing" % os.path.join(base, name) for name in named_in_index(folder) if name not in files]
    except OpError as error:
        broken.append(str(error))
    return {"files": files, "broken": broken}


def fingerprints(call: Call, folders: List[str]) -> Dict[str, Any]:
    """Folder → its fingerprint; None where there is none, or it cannot be read."""
    found: Dict[str, Any] = {}
    for folder in folders:
        try:
            found[folder] = fingerprint(call, folder) if os.path.exists(folder) else None
        except OSError:
            found[folder] = None
    return found


def hub_repository(repo: str, env: Dict[str, str]) -> str:
    """Folder that a model has, or would have, in the hub's cache of an engine with this environment."""
    home = env.get("HF_HOME") or os.path.join(env.get("XDG_CACHE_HOME") or "/root/.cache", "huggingface")
    cache = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return os.path.join(cache, "models--" + repo.replace("/", "--"))


def snapshot(repo: str, revision: str, env: Dict[str, str]) -> Optional[str]:
    """Folder in the hub's cache that an engine with this environment reads; None where there is none yet.

    The last part of it is the commit. ``revision`` empty: what ``main`` was when it was fetched.
    """
    folder = hub_repository(repo, env)
    try:
        with open(os.path.join(folder, "refs", revision or "main")) as source:
            commit = source.read(100).strip()
    except (OSError, ValueError):
        commit = revision
    path = os.path.join(folder, "snapshots", commit)
    return path if commit and os.path.isdir(path) else None


def hub_fingerprints(call: Call, asked: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Hub id → the fingerprint of what the cache has of it, with its ``commit``; None where it has nothing."""
    found: Dict[str, Any] = {}
    for one in asked:
        path = snapshot(one["id"], one["revision"], one["env"])
        told = None if path is None else fingerprints(call, [path])[path]
        found[one["id"]] = told and dict(told, commit=os.path.basename(path or ""))
    return found


@op("model_checksums")
def model_checksums(call: Call, folders: List[str]) -> Dict[str, Dict[str, str]]:
    """Folder → file → SHA-256 over all of it. It takes minutes; progress in ``bytes`` of ``total``.

    What is read is not left in the page cache: on a box whose GPU shares the memory it would be in the way.
    """
    paths = {
        folder: [
            os.path.join(folder if os.path.isdir(folder) else os.path.dirname(folder), name)
            for name in model_files(folder)
        ]
        for folder in folders
        if os.path.exists(folder)
    }
    total = sum(os.path.getsize(path) for names in paths.values() for path in names)
    done, told = 0, time.monotonic()
    found: Dict[str, Dict[str, str]] = {}
    for folder, names in paths.items():
        for path in names:
            digest = hashlib.sha256()
            with open(path, "rb", buffering=0) as source:
                while True:
                    call.check()
                    piece = source.read(PIECE)
                    if not piece:
                        break
                    digest.update(piece)
                    done += len(piece)
                    os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    if time.monotonic() - told >= EVENT:
                        told = time.monotonic()
                        call.event(bytes=done, total=total, path=path)
            found.setdefault(folder, {})[os.path.basename(path)] = digest.hexdigest()
    return found
