"""Long bodies that wait in the object store or in a bucket, while their requests wait in the queue."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
from typing import TYPE_CHECKING

import nats.errors
from nats.js import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from fleetctl.errors import FleetError
from fleetctl.pool import wire

if TYPE_CHECKING:
    from fleetctl.pool.s3 import Bucket

log = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds without a piece of a body after which its reading is begun anew."""
TRIES = 3
_STREAM = f"OBJ_{wire.BODIES}"


class BodyGoneError(FleetError):
    """A body is not where its request says, or is not what was stored."""


def bucket_of(access: wire.S3Access | None) -> Bucket | None:
    """The bucket that a worker was told of. Raises S3Error when its keys cannot be read."""
    if access is None:
        return None
    from fleetctl.pool.s3 import Bucket  # where there is a bucket, its library is there

    return Bucket(access)


class Bodies:
    """Where they are: gateways and batch jobs say it in each request."""

    def __init__(self, js: JetStreamContext, bucket: Bucket | None) -> None:
        self._js = js
        self._bucket = bucket

    async def fetch(self, envelope: wire.Envelope) -> bytes:
        """The body of a request. Raises BodyGoneError."""
        why = ""
        for number in range(1, TRIES + 1):
            try:
                if envelope.body.startswith(wire.IN_BUCKET):
                    return await self._from_bucket(envelope)
                return await _read(self._js, envelope.body)
            except BodyGoneError:
                raise
            except (nats.errors.Error, APIError, TimeoutError, FleetError) as error:
                why = str(error) or type(error).__name__
                log.info("the body of %s, try %d: %s", envelope.id, number, why)
                if number < TRIES:
                    await asyncio.sleep(0.5 * number)
        raise BodyGoneError(f"the body of the request cannot be read: {why}")

    async def remove(self, envelope: wire.Envelope) -> None:
        """Remove the body of a request that is finished with. What cannot be removed is left to expire."""
        try:
            if not envelope.body.startswith(wire.IN_BUCKET):
                await _purge(self._js, envelope.body)
            elif self._bucket is not None:
                await self._bucket.remove(envelope.body)
        except (nats.errors.Error, APIError, TimeoutError, FleetError) as error:
            log.info("the body of %s is left where it is: %s", envelope.id, error)

    async def _from_bucket(self, envelope: wire.Envelope) -> bytes:
        if self._bucket is None:
            raise BodyGoneError("the body of the request is in a bucket, and this worker was told of none")
        from fleetctl.pool.s3 import S3GoneError  # where there is a bucket, its library is there

        try:
            return await self._bucket.get(envelope.body, envelope.size)
        except S3GoneError as error:
            raise BodyGoneError(error.message) from None


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
