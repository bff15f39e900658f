"""``python -m fleetctl.pool.worker CONFIG.json``: the worker of this box, until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from pathlib import Path

import uvloop

from fleetctl.errors import FleetError
from fleetctl.pool import wire, wishes
from fleetctl.pool.worker import drained
from fleetctl.pool.worker.units import Systemd, Units
from fleetctl.pool.worker.worker import Worker

log = logging.getLogger(__name__)


def read(path: str) -> wire.WorkerConfig:
    """The configuration in a file. Raises WireError saying what is wrong with it."""
    try:
        return wire.worker_config(json.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise wire.WireError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise wire.WireError(f"{path} is no JSON: {error}") from None


async def serve(config: wire.WorkerConfig, units: Units, kept: Path | None = None, note: Path | None = None) -> int:
    """Work until SIGTERM or SIGINT; the exit status. ``kept``: the file of what operators wish; ``note``: the one that
    says that the box is drained."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    worker = Worker(config, units)
    if kept is not None:
        worker.loading.keep_wishes(kept)
    worker.drained_note = note
    starting = asyncio.create_task(worker.begin())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return 0
    await starting
    log.info("%s: %d models, taking requests", config.box, len(worker.desks))
    status = 0
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 0.5)
        ended = worker.failed()
        if ended is not None or worker.closed.is_set():
            reason = (
                ended.exception() if ended is not None and not ended.cancelled() else "NATS has closed the connection"
            )
            log.error("stopping, to be started again: %s", reason)
            status = 1
            break
    stopping.cancel()
    await worker.end()
    return status


def main() -> int:
    """The exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    if len(sys.argv) != 2:
        print("usage: python -m fleetctl.pool.worker CONFIG.json", file=sys.stderr)
        return 2
    try:
        return uvloop.run(serve(read(sys.argv[1]), Systemd(), wishes.FILE, drained.NOTE))
    except FleetError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"the worker cannot listen: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
