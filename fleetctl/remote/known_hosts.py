"""Host keys: what the known_hosts files say of a server, and adding a key to them. The format is that of sshd(8)."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Verdict = Literal["known", "unknown", "changed", "revoked"]


@dataclass(frozen=True)
class Entry:
    """A key that a known_hosts file has for a host."""

    path: Path
    line: int
    marker: str
    kind: str
    blob: bytes


@dataclass(frozen=True)
class Finding:
    """What the files say of the key that a server showed; ``entry`` is the one that decided."""

    verdict: Verdict
    entry: Entry | None = None


def fingerprint(blob: bytes) -> str:
    """Fingerprint of a public key as ssh prints it: ``SHA256:…``."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def entries(paths: Iterable[Path], name: str) -> list[Entry]:
    """All entries for a host, named as ssh names it: ``host``, or ``[host]:port`` off port 22."""
    return [entry for path in paths for names, entry in _lines(path) if _matches(names, name)]


def kinds(paths: Iterable[Path], name: str) -> list[str]:
    """Key types known for a host; asking the server for one of these shows whether it is still the same."""
    return list(dict.fromkeys(entry.kind for entry in entries(paths, name) if not entry.marker))


def check(paths: Iterable[Path], name: str, blob: bytes) -> Finding:
    """Judge the key ``blob`` that the server ``name`` showed.

    A host with entries none of which is this key has a changed key, whatever its type: a server that suddenly shows
    a key of another type only is no safer than one with another key.
    """
    files = list(paths)
    found = entries(files, name)
    for entry in found:
        if entry.marker == "@revoked" and entry.blob == blob:
            return Finding("revoked", entry)
    plain = [entry for entry in found if not entry.marker]
    for entry in plain:
        if entry.blob == blob:
            return Finding("known", entry)
    if plain:
        return Finding("changed", plain[0])
    if name.startswith("["):  # ssh, too, takes an entry without the port for a match, never for a mismatch
        for entry in entries(files, name[1:].rpartition("]")[0]):
            if entry.blob == blob:
                return Finding("revoked" if entry.marker == "@revoked" else "known", entry)
    return Finding("unknown")


def add(path: Path, name: str, kind: str, blob: bytes, *, hashed: bool) -> None:
    """Append a key to a known_hosts file, which is made if need be. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = f"{_hashed(name) if hashed else name} {kind} {base64.b64encode(blob).decode()}\n"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(handle).st_size
        if size > 0 and os.pread(handle, 1, size - 1) != b"\n":
            line = "\n" + line
        os.write(handle, line.encode())  # one write: boxes that are accepted at the same time do not mix
    finally:
        os.close(handle)


def _lines(path: Path) -> Iterator[tuple[str, Entry]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError, PermissionError, IsADirectoryError):
        return  # as ssh does: a file that is not there, or not for us, says nothing
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0) if words[0].startswith("@") else ""
        if len(words) < 3:
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except binascii.Error:
            continue
        yield words[0], Entry(path, number, marker, words[1], blob)


def _matches(names: str, name: str) -> bool:
    if names.startswith("|1|"):
        try:
            _, _, salt, digest = names.split("|")
            mac = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
            return hmac.compare_digest(mac, base64.b64decode(digest))
        except (ValueError, binascii.Error):
            return False
    matched = False
    for pattern in names.lower().split(","):
        # [ and ] stand for themselves in known_hosts; only * and ? are special
        plain = pattern.removeprefix("!").replace("[", "[[]")
        if fnmatch.fnmatchcase(name, plain):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched


def _hashed(name: str) -> str:
    salt = os.urandom(20)
    mac = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(mac).decode()}"
