"""What is wished of a worker's engines, from its file and into it (fleetctl/pool/wishes.py)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from fleetctl.pool import wishes
from fleetctl.pool.worker.engine import Engine

log = logging.getLogger(__name__)


def restore(path: Path, engines: Sequence[Engine]) -> None:
    """Wish what was wished before. A file that cannot be read is told: nothing is wished then."""
    try:
        before = wishes.read(path)
    except wishes.WishesError as error:
        log.error("%s", error)
        return
    for engine in engines:
        wished = before.get(engine.name, wishes.Wished())
        engine.pinned = engine.config.pinned if wished.pinned is None else wished.pinned
        engine.wish = wished.wish


def keep(path: Path, engines: Sequence[Engine]) -> None:
    """Write what is wished now. What cannot be written is told, and counts until the worker is started again."""
    now = {
        engine.name: wishes.Wished(None if engine.pinned == engine.config.pinned else engine.pinned, engine.wish)
        for engine in engines
    }
    try:
        wishes.write(path, now)
    except wishes.WishesError as error:
        log.error("%s", error)
