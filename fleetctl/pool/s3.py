"""Long bodies in a bucket that speaks S3, under one prefix: put in pieces, got, removed, and expired by their age.

The library is obstore (bindings of Rust's object_store); boxes have it where fleet.yaml names a bucket. What is put
while it still comes is a multipart upload, whose parts are kept in memory until they are sent: :data:`AT_ONCE` and the
one that grows, of :data:`PART` bytes each. An upload that is given up here is aborted at the server. What a gateway
leaves behind that is killed in the middle are parts of no object: a rule of the bucket has to remove those
(AbortIncompleteMultipartUpload), as no list of objects has them.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from fleetctl.errors import FleetError
from fleetctl.pool import wire

log = logging.getLogger(__name__)

PART = 5 << 20
"""Bytes of a part: the least that S3 takes. What is shorter is put at once."""
AT_ONCE = 2
"""Parts of one body that are on their way."""
CONNECT, ANSWER = 3.0, 30.0
"""Seconds for a connection, and for one request with its answer."""
KEPT = 2 * 86400.0
"""Seconds after which a body is removed that nobody removed: longer than any request may take."""
SWEEP_EVERY = 3600.0
"""Seconds between two looks for those."""
PROVE_EVERY = 5.0
"""Seconds between two tries of a bucket that did not pass."""
_OWN = re.compile(r"(?:probe-)?[0-9a-f]{24}")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w{1,64})")
T = TypeVar("T")


class S3Error(FleetError):
    """The bucket does not do what it is asked; the message names it, and never a key."""


class S3GoneError(S3Error):
    """There is no such body in the bucket."""


class Bucket:
    """One prefix of a bucket."""

    def __init__(self, access: wire.S3Access) -> None:
        """Raises S3Error when a key cannot be read."""
        self.where = f"the bucket {access.bucket} at {access.endpoint or 'AWS'}"
        self.trouble = f"{self.where} has not been tried yet"
        """Why bodies cannot be stored there, as far as :meth:`watch` knows; empty: they can."""
        self._store: Any = S3Store(
            access.bucket,
            prefix=access.prefix or None,
            endpoint=access.endpoint or None,
            region=access.region,
            access_key_id=_key(access.access_key_file),
            secret_access_key=_key(access.secret_key_file),
            virtual_hosted_style_request=False,
            disable_bulk_delete=True,  # not every server has it
            client_options={
                "allow_http": access.endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=CONNECT),
                "timeout": timedelta(seconds=ANSWER),
            },
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=10)},
        )

    async def put(self, pieces: AsyncIterator[bytes]) -> str:
        """Store a body under a new name; what to call it in an envelope. Raises S3Error, and what ``pieces`` raises;
        then nothing is left of it."""
        name = secrets.token_hex(12)
        held, size = list[bytes](), 0
        async for piece in pieces:
            held.append(piece)
            size += len(piece)
            if size >= PART:
                await self._put_as_it_comes(name, held, pieces)
                return wire.IN_BUCKET + name
        await self._do(self._store.put_async(name, b"".join(held), use_multipart=False))
        return wire.IN_BUCKET + name

    async def get(self, reference: str, size: int) -> bytes:
        """A body of so many bytes. Raises S3GoneError when it is not there, or is not that long, and S3Error."""
        name = reference.removeprefix(wire.IN_BUCKET)
        found = await self._do(self._store.get_async(name))
        if found.meta["size"] != size:
            raise S3GoneError(f"a body in {self.where} has {found.meta['size']} bytes instead of {size}")
        return bytes(await self._do(found.bytes_async()))

    async def remove(self, reference: str) -> None:
        """Remove a body, if it is there. Raises S3Error."""
        with suppress(S3GoneError):
            await self._do(self._store.delete_async(reference.removeprefix(wire.IN_BUCKET)))

    async def prove(self) -> None:
        """Put a small object, get it, list it and remove it. Raises S3Error."""
        name = f"probe-{secrets.token_hex(12)}"
        await self._do(self._store.put_async(name, b"fleetctl", use_multipart=False))
        await self.get(name, len(b"fleetctl"))
        await self._listed(KEPT)
        await self.remove(name)

    async def sweep(self, seconds: float = KEPT) -> int:
        """Remove bodies that are older; how many. What else has this prefix stays. Raises S3Error."""
        old = await self._listed(seconds)
        for name in old:
            await self.remove(name)
        return len(old)

    async def watch(self, sweeps: bool) -> None:
        """Prove it until that succeeds once, and remove what is old now and then (``sweeps``). Runs until cancelled."""
        while self.trouble:
            try:
                await self.prove()
            except S3Error as error:
                if error.message != self.trouble:
                    log.warning("long bodies cannot be stored: %s", error.message)
                self.trouble = error.message
                await asyncio.sleep(PROVE_EVERY)
            else:
                log.info("long bodies go to %s", self.where)
                self.trouble = ""
        while True:
            try:
                if sweeps and (removed := await self.sweep()):
                    log.info("%d bodies that nobody had removed are out of %s", removed, self.where)
            except S3Error as error:
                log.warning("%s", error.message)
            await asyncio.sleep(SWEEP_EVERY)

    async def _listed(self, seconds: float) -> list[str]:
        """Names of bodies that are older."""
        before, found = datetime.now(UTC) - timedelta(seconds=seconds), list[str]()
        try:
            async for page in self._store.list(chunk_size=500):
                found += [one["path"] for one in page if _OWN.fullmatch(one["path"]) and one["last_modified"] < before]
        except (BaseError, OSError) as error:
            raise self._error(error) from None
        return found

    async def _put_as_it_comes(self, name: str, held: list[bytes], pieces: AsyncIterator[bytes]) -> None:
        feed = _Feed(held)
        # Never cancelled: that would leave its parts at the server, where an error of the feed aborts the upload.
        put = self._do(self._store.put_async(name, feed, chunk_size=PART, max_concurrency=AT_ONCE))
        sending = asyncio.ensure_future(put)
        sending.add_done_callback(feed.close)
        try:
            async for piece in pieces:
                if not await feed.put(piece):
                    break
            feed.end()
            await asyncio.shield(sending)
        except BaseException:
            feed.fail()
            await asyncio.shield(self._abandon(name, sending))
            raise

    async def _abandon(self, name: str, sending: asyncio.Future[Any]) -> None:
        await asyncio.wait({sending}, timeout=ANSWER)
        if sending.done() and sending.exception() is None:
            try:
                await self.remove(name)
            except S3Error as error:
                log.info("%s", error.message)

    async def _do(self, asked: Awaitable[T]) -> T:
        try:
            return await asked
        except (BaseError, OSError) as error:
            raise self._error(error) from None

    def _error(self, error: Exception) -> S3Error:
        found = _CODE.search(str(error))
        code = found[1] if found else ""
        if code == "NoSuchBucket":
            return S3Error(f"there is no bucket for long bodies: {self.where} ({code})")
        if isinstance(error, FileNotFoundError):
            return S3GoneError(f"the body is not in {self.where} any more")
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            return S3Error(f"{self.where} does not take the keys of `pool: bodies:` ({code or 'access denied'})")
        if refused := _CERTIFICATE.search(str(error)):
            return S3Error(f"{self.where}: its certificate is not valid for the CAs of this box ({refused[1]})")
        return S3Error(f"{self.where} cannot be had ({code or 'no answer'})")


class _StoppedError(Exception):
    """There will be no more of this body."""


class _Feed:
    """Pieces on their way from a client to an upload, which takes them when it has room."""

    def __init__(self, held: list[bytes]) -> None:
        self._held: deque[bytes] = deque(held)
        self._size = sum(map(len, held))
        self._changed = asyncio.Event()
        self._ended = self._failed = self._closed = False

    async def put(self, piece: bytes) -> bool:
        """Another piece; waits while the upload takes none. False: the upload is over, for whatever reason."""
        self._held.append(piece)
        self._size += len(piece)
        self._changed.set()
        await self._until(lambda: self._size < PART or self._closed)
        return not self._closed

    def end(self) -> None:
        """That was all."""
        self._ended = True
        self._changed.set()

    def fail(self) -> None:
        """It is given up."""
        self._failed = True
        self._changed.set()

    def close(self, sending: asyncio.Future[Any]) -> None:
        """The upload is over."""
        self._closed = True
        self._changed.set()
        if not sending.cancelled():
            sending.exception()  # whoever waited for it has gone, or hears of it too

    def __aiter__(self) -> _Feed:
        return self

    async def __anext__(self) -> bytes:
        await self._until(lambda: bool(self._held) or self._ended or self._failed)
        if self._failed:
            raise _StoppedError
        if not self._held:
            raise StopAsyncIteration
        together = b"".join(self._held)
        self._held.clear()
        self._size = 0
        self._changed.set()
        return together

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()


def _key(file: str) -> str:
    """The key in a file. Raises S3Error naming the file, never its text."""
    try:
        found = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise S3Error(f"the key for long bodies in {file} cannot be read: {reason}") from None
    if not found:
        raise S3Error(f"the key for long bodies in {file} is empty")
    if not re.fullmatch(r"[!-~]+", found):  # in a header it would end the program
        raise S3Error(f"the key for long bodies in {file} is none: it has a space, a line break or an odd letter in it")
    return found
