"""``python -m fleetctl.pool.batch CONFIG.json``: the runner of batch lines for models that are not in the pool."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from fleetctl.errors import FleetError
from fleetctl.pool import wire
from fleetctl.pool.batch.room import Proxied
from fleetctl.pool.batch.runner import Runner, RunnerConfig
from fleetctl.pool.nats import connect

USAGE = "usage: python -m fleetctl.pool.batch CONFIG.json"


def runner_config(value: Any) -> RunnerConfig:
    """The configuration of a runner from its JSON. Raises WireError saying what is wrong."""
    try:
        access = {**value["nats"], "servers": tuple(value["nats"]["servers"])}
        models = tuple(Proxied(**one) for one in value["models"])
        rest = {key: one for key, one in value.items() if key not in ("nats", "models")}
        return RunnerConfig(nats=wire.NatsAccess(**access), models=models, **rest)
    except (KeyError, TypeError, AttributeError) as error:
        raise wire.WireError(f"the configuration of a batch runner cannot be read: {error}") from None


def read(path: Path) -> RunnerConfig:
    """The configuration in a file. Raises WireError."""
    try:
        return runner_config(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise wire.WireError(f"{path}: {error}") from None


async def serve(config: RunnerConfig) -> None:
    """Run until SIGTERM or SIGINT. Raises QueueError when NATS refuses the runner."""
    over = asyncio.Event()
    client = await connect(config.nats, f"batch {config.box}", on_closed=over.set)
    runner = Runner(config, client)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, runner.stop)
    running = asyncio.create_task(runner.run())
    ended = asyncio.create_task(over.wait())
    await asyncio.wait((running, ended), return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    if not running.done():
        running.cancel()
        raise FleetError("the connection to NATS is over for good")
    await running
    await client.close()


def main(words: list[str]) -> int:
    """The program; returns its exit status."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    if len(words) != 1:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        asyncio.run(serve(read(Path(words[0]))))
    except FleetError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
