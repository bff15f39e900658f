"""Long bodies on their way into a bucket that speaks S3."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from hashlib import sha256

from fleetctl.pool.gateway.bodies import Stored
from fleetctl.pool.gateway.refusals import store_away
from fleetctl.pool.s3 import Bucket, S3Error

log = logging.getLogger(__name__)


class InBucket:
    """The bucket, as gateways fill it."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def store(self, pieces: AsyncIterator[bytes]) -> Stored:
        """Store a body under a new name. Raises Refusal, and what ``pieces`` raises; then nothing is left of it."""
        digest, size = sha256(), 0

        async def counted() -> AsyncIterator[bytes]:
            nonlocal size
            async for piece in pieces:
                digest.update(piece)
                size += len(piece)
                yield piece

        try:
            name = await self._bucket.put(counted())
        except S3Error as error:
            log.warning("a long body cannot be stored: %s", error.message)
            raise store_away() from None
        return Stored(name, size, digest.digest())

    async def remove(self, stored: Stored) -> None:
        """Forget a body that no request refers to."""
        try:
            await self._bucket.remove(stored.name)
        except S3Error as error:
            log.info("a body is left to expire: %s", error.message)
