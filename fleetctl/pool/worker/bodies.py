"""Long bodies that wait in the object store, while their requests wait in the queue."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging

import nats.errors
from nats.js import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from fleetctl.errors import FleetError
from fleetctl.pool import wire

log = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds without a piece of a body after which its reading is begun anew."""
TRIES = 3
_STREAM = f"OBJ_{wire.BODIES}"


class BodyGoneError(FleetError):
    """A body is not where its request says, or is not what was stored."""


async def fetch(js: JetStreamContext, envelope: wire.Envelope) -> bytes:
    """The body of a request. Raises BodyGoneError."""
    for number in range(1, TRIES + 1):
        try:
            return await _read(js, envelope.body)
        except (nats.errors.Error, APIError, TimeoutError) as error:
            log.info("the body of %s, try %d: %s", envelope.id, number, error or type(error).__name__)
            if number < TRIES:
                await asyncio.sleep(0.5 * number)
    raise BodyGoneError(f"the body of the request cannot be read from the bucket {wire.BODIES}")


async def remove(js: JetStreamContext, envelope: wire.Envelope) -> None:
    """Remove the body of a request that is finished with. What cannot be removed is left to the store's own limit."""
    try:
        await _purge(js, envelope.body)
    except (nats.errors.Error, APIError, TimeoutError) as error:
        log.info("the body of %s is left in the bucket %s: %s", envelope.id, wire.BODIES, error)


async def _read(js: JetStreamContext, name: str) -> bytes:
    """From the object store; nats-py's own reading copies all that is there for each piece that comes."""
    bucket = await js.object_store(wire.BODIES)
    try:
        info = await bucket.get_info(name)
    except NotFoundError:
        raise BodyGoneError(f"the body of the request is not in the bucket {wire.BODIES} any more") from None
    if not info.size:
        return b""
    body, digest = bytearray(), hashlib.sha256()
    pieces = await js.subscribe(f"$O.{wire.BODIES}.C.{info.nuid}", ordered_consumer=True)
    try:
        while len(body) < info.size:
            message = await pieces.next_msg(PATIENCE)
            body += message.data
            digest.update(message.data)
    finally:
        await pieces.unsubscribe()
    if f"SHA-256={base64.urlsafe_b64encode(digest.digest()).decode()}" != info.digest:
        raise BodyGoneError("the body of the request is not what was stored")
    return bytes(body)


async def _purge(js: JetStreamContext, name: str) -> None:
    """Out of the object store, with the note about it: that would stay as long as the bucket keeps anything."""
    bucket = await js.object_store(wire.BODIES)
    try:
        info = await bucket.get_info(name)
    except NotFoundError:
        return
    await js.purge_stream(_STREAM, subject=f"$O.{wire.BODIES}.C.{info.nuid}")
    noted = base64.urlsafe_b64encode(name.encode()).decode()
    await js.purge_stream(_STREAM, subject=f"$O.{wire.BODIES}.M.{noted}")
