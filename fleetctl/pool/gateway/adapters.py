"""The LoRA adapters that there are, from a file on the box which a push replaces while the gateway runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

log = logging.getLogger(__name__)

LOOK = 0.5
"""Seconds between two looks at the file."""


async def follow(path: Path, know: Callable[[Mapping[str, str]], None]) -> None:
    """Tell ``know`` the adapters now and whenever the file is another, until cancelled."""
    seen: object = None
    while True:
        now = _mark(path)
        if now != seen:
            seen = now
            try:
                found = read(path)
            except OSError as error:  # what is known stays known
                log.warning("%s cannot be read: %s", path, error.strerror)
            else:
                know(found)
                log.info("LoRA adapters: %s", ", ".join(sorted(found)) or "none")
        await asyncio.sleep(LOOK)


def read(path: Path) -> dict[str, str]:
    """Name → key of its model, from lines "NAME MODEL"; none where there is no file. Raises OSError."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return {}
    return {words[0]: words[1] for line in lines if len(words := line.split()) == 2}


def _mark(path: Path) -> tuple[object, ...]:
    """What is another when the file is."""
    try:
        told = path.stat()
    except OSError as error:
        return (error.errno,)
    return told.st_ino, told.st_mtime_ns, told.st_size
