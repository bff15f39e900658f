"""A batch job: what it is called and what is kept of it. Pure.

Its name comes from the content: the requests as they are sent and the models that they go to. The same command is the
same job, from whichever machine, and goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from dataclasses import asdict, dataclass, replace

from fleetctl.errors import FleetError, SpecError
from fleetctl.pool.batch.lines import BatchFile

NAME = re.compile(r"b-[0-9a-f]{16}")
KEPT = 30 * 86400.0
"""Seconds after which a line that still waits is answered with 504: by then its long body is removed as well."""


@dataclass(frozen=True)
class Job:
    """What is kept of a job beside its lines and their answers."""

    name: str
    file: str
    """Name of the file that it was submitted from, without its folders."""
    models: tuple[str, ...]
    lines: int
    created: float
    """Unix time in seconds of the first submission."""
    cancelled: float = 0.0
    """When it was cancelled; 0: it was not."""
    prompt: int = 0
    """Tokens that all prompts together were estimated to have."""
    answer: int = 0
    """Tokens that all answers may have, by the limits that requests set."""

    def pack(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self)).encode()

    def at(self, cancelled: float) -> Job:
        """The same job, cancelled at that time; 0: not cancelled (any more)."""
        return replace(self, cancelled=cancelled)


def unpack(data: bytes) -> Job:
    """A job from its JSON. Raises FleetError for what no version of this wrote."""
    try:
        found = json.loads(data)
        return Job(**{**found, "models": tuple(found["models"])})
    except (ValueError, TypeError, KeyError):
        raise FleetError("what is kept of a batch job cannot be read: another version of fleetctl wrote it") from None


def name_of(file: BatchFile) -> str:
    """The job that a file is. Blank lines, the file's name and its folder make no difference."""
    digest = hashlib.sha256(b"plain" if file.plain else b"openai")
    for line in file.lines:
        digest.update(f"\0{line.number}\0{line.model}\0".encode())
        digest.update(file.data[line.start : line.end].strip())
    digest.update(b"\0" + file.targets.chosen.encode())
    if file.targets.adapter:
        digest.update(b"\0" + file.targets.adapter.encode())
    return f"b-{digest.hexdigest()[:16]}"


def checked(name: str) -> str:
    """The name of a job as a person typed it. Raises SpecError for what cannot be one."""
    if NAME.fullmatch(name) is None:
        raise SpecError(f"{name!r} is no name of a job", hint="`fleetctl batch list` has them, like b-0123456789abcdef")
    return name


def pack_names(file: BatchFile) -> bytes:
    """Which line has which ``custom_id``, in the order of the file: what writing the answers takes beside them."""
    return zlib.compress(json.dumps([[line.number, line.custom_id] for line in file.lines]).encode())


def unpack_names(data: bytes) -> dict[int, str]:
    """Line → ``custom_id``, in the order of the file. Raises FleetError."""
    try:
        return {int(number): str(name) for number, name in json.loads(zlib.decompress(data))}
    except (ValueError, TypeError, zlib.error):
        raise FleetError("what is kept of a batch job's lines cannot be read: another version wrote it") from None
