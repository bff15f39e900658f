"""Whether this box is drained: by the note that ``fleetctl drain`` keeps on it, so that it outlasts the worker.

While the note is there nothing is taken from the queue, what has not begun goes back, what runs is finished, and no
engine is started. Engines that are loaded stay loaded.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetctl.pool.worker.worker import Worker

log = logging.getLogger(__name__)

NOTE = Path("/var/lib/fleetctl/drained.json")
LOOK = 0.25
"""Seconds between two looks for the note."""


async def follow(worker: Worker) -> None:
    """Do as the note says, until cancelled."""
    while True:
        look(worker)
        await asyncio.sleep(LOOK)


def look(worker: Worker) -> None:
    """Do as the note says now. One that cannot be read counts as well: that it is there is enough."""
    note = worker.drained_note
    if note is None or (drained := note.exists()) == worker.drained:
        return
    log.info("%s", "the box is drained: nothing more is taken" if drained else "the box is in use again")
    worker.drain(drained)
