"""Whether the boxes have the secrets of now: asked for by a salted digest, so that no secret travels to be compared."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fleetctl.errors import SpecError
from fleetctl.render.release import File, Release

Digests = dict[str, dict[str, dict[str, str]]]
"""Box → path → ``salt`` and ``mac``: part of a question to a box, and of nothing that is kept or shown."""


@dataclass(frozen=True)
class Expected:
    """Digests of the files with secrets in them, and what could not be read here."""

    digests: Digests = field(default_factory=dict)
    unread: tuple[str, ...] = ()


def expected(releases: Iterable[Release], fill: Callable[[File], str]) -> Expected:
    """What the files of the releases would be with the secrets of now, salted anew by every call."""
    salt = secrets.token_hex(16)
    digests: Digests = {}
    unread: list[str] = []
    for release in releases:
        for box, files in release.files.items():
            for file in files:
                if not file.secrets:
                    continue
                try:
                    content = fill(file).encode("utf-8", "surrogateescape")
                except SpecError as error:
                    unread.append(error.message)
                    continue
                mac = hmac.new(salt.encode("ascii"), content, "sha256").hexdigest()
                digests.setdefault(box, {})[file.path] = {"salt": salt, "mac": mac}
    return Expected(digests, tuple(dict.fromkeys(unread)))
