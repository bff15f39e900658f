"""``python -m fleetctl.pool.gateway CONFIG.json``: one gateway, until SIGTERM.

It listens at once and answers 503 until NATS is there. SIGTERM: no new connections; what is under way is answered, and
the process ends, at the latest when the last deadline is over.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from fleetctl.errors import FleetError
from fleetctl.pool import wire
from fleetctl.pool.gateway.app import Gateway
from fleetctl.pool.gateway.bodies import Bodies, Store
from fleetctl.pool.gateway.queue import Queue
from fleetctl.pool.gateway.uploads import Room, Uploads
from fleetctl.pool.heap import keep_freed_memory
from fleetctl.pool.http import Server
from fleetctl.pool.nats import QueueError, connect, make_bucket, make_streams

if TYPE_CHECKING:
    from fleetctl.pool.s3 import Bucket

log = logging.getLogger("gateway")

LATELY = 1.0
"""Seconds after the last short request in which long bodies give way to the next."""
AGAIN = 2.0
"""Seconds until streams are asked for again that could not be made."""


def read_config(path: Path) -> wire.GatewayConfig:
    """The configuration in a file. Raises WireError naming the file."""
    try:
        return wire.gateway_config(json.loads(path.read_bytes()))
    except OSError as error:
        raise wire.WireError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise wire.WireError(f"{path} is no JSON: {error}") from None
    except wire.WireError as error:
        raise wire.WireError(f"{path}: {error.message}", hint="write it again with `fleetctl apply`") from None


async def serve(config: wire.GatewayConfig) -> int:
    """Serve until SIGTERM or SIGINT; the exit status."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    queue = Queue(config.name)
    gateway = Gateway(config, queue)
    if config.s3 is not None:
        from fleetctl.pool.s3 import Bucket  # its library is there where fleet.yaml names a bucket

        gateway.bucket = Bucket(config.s3)
    server = Server(gateway)
    try:
        port = await server.listen(config.listen.host, config.listen.port)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise wire.WireError(f"cannot listen on {config.listen.host}:{config.listen.port}: {why}") from None
    log.info("listening on %s:%s", config.listen.host, port)
    joining = loop.create_task(_join(config, queue, gateway, stop))
    watching = loop.create_task(gateway.bucket.watch(sweeps=True)) if gateway.bucket is not None else None
    stopping = loop.create_task(stop.wait())
    await asyncio.wait((joining, stopping), return_when=asyncio.FIRST_COMPLETED)
    if joining.done():
        joining.result()
        await stopping
    ended = stop.is_set() and not queue.over
    gateway.stopping = True
    log.info("stopping: %d requests are under way", len(queue.answers))
    cut = await server.stop(config.deadline + 1)
    if cut:
        log.warning("%d requests were not answered in time", cut)
    joining.cancel()
    if watching is not None:
        watching.cancel()
    await queue.close()
    return 0 if ended else 1


async def _join(config: wire.GatewayConfig, queue: Queue, gateway: Gateway, stop: asyncio.Event) -> None:
    """Connect to NATS, make sure that all is there, and begin to hear answers. Raises QueueError."""

    def over() -> None:
        queue.over = True
        stop.set()

    name = f"gateway-{config.name}"
    client = await connect(config.nats, name, on_change=queue.changed, on_closed=over)
    bulk = await connect(config.nats, f"{name}-bodies", on_closed=over)
    limit = max((model.limit for model in config.models), default=1000)
    while True:
        try:
            await make_streams(client.jetstream(), config.nats.replicas, limit)
            await make_bucket(client.jetstream(), config.nats.replicas, config.store)
            break
        except QueueError as error:
            log.warning("%s", error)
            await asyncio.sleep(AGAIN)
    loop = asyncio.get_running_loop()
    room = Room(bulk.jetstream(), config.store) if gateway.bucket is None else None
    gateway.uploads = Uploads(room, lambda: loop.time() - queue.short_at < LATELY)
    gateway.bodies = Bodies(bulk.jetstream()) if gateway.bucket is None else _in_bucket(gateway.bucket)
    await queue.open(client)
    log.info("ready")
    gc.collect()
    gc.freeze()


def _in_bucket(bucket: Bucket) -> Store:
    from fleetctl.pool.gateway.bucket import InBucket

    return InBucket(bucket)


def main(arguments: list[str]) -> int:
    """Run a gateway; the exit status: 2 for a configuration that cannot be used."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m fleetctl.pool.gateway CONFIG.json", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    try:
        config = read_config(Path(arguments[0]))
        keep_freed_memory()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(config))
    except FleetError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if error.exit_code != 1 else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
