"""``python worker_process.py CONFIG.json``: the worker's program with engines that somebody else starts and stops."""

from __future__ import annotations

import sys
from pathlib import Path

import uvloop

from fleetctl.pool.worker import pull
from fleetctl.pool.worker.__main__ import read, serve


class Running:
    """Units that are always there, as long as their sockets are."""

    async def start(self, unit: str) -> None:
        """Nothing: the test does it."""

    async def stop(self, unit: str, limit: float) -> None:
        """Nothing: the test does it."""

    async def is_active(self, unit: str) -> bool:
        """Whether there is a socket."""
        return Path(unit).exists()


if __name__ == "__main__":
    pull.STANDS, pull.LATE = 0.2, 0.05
    sys.exit(uvloop.run(serve(read(sys.argv[1]), Running())))
