"""The connection to NATS, and the streams, consumers and bucket of a pool: made where missing, changed where different.

Everything here may be called by every program at any time: the second call changes nothing.

Consumers have no ``max_deliver``: at that limit JetStream stops delivering a message but leaves it in the work queue,
where nobody would ever see it again. Workers count the deliveries.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    ObjectStoreConfig,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import APIError, NotFoundError
from nats.js.object_store import ObjectStore

from fleetctl.errors import FleetError
from fleetctl.pool import wire
from fleetctl.pool.unixtransport import UnixTransport

log = logging.getLogger(__name__)

LIMIT = 1000
"""Requests of a model that wait at most, where nobody says otherwise."""
WORK_KEPT = 3600.0
"""Seconds after which a request is removed that no worker has even looked at: its client has gone long ago."""
DEAD_KEPT = 7 * 86400.0
DEAD_OF_ONE_MODEL = 1000
BODIES_KEPT = 30 * 86400.0
"""Seconds that a long body is kept that nobody removes: its request's gateway died before it could publish."""
MOST_AT_WORK = 20_000
"""Requests of one model that all workers together may hold without having acknowledged them."""
MOST_PULLS = 4096
"""Standing pulls for one model: one per worker, and those of workers that died until they expire."""
BUFFER = 64 << 20
"""Bytes that are kept while the server is away, to be sent once it is back."""

_CUT_OFF = (ConnectionResetError, BrokenPipeError, nats.errors.UnexpectedEOF)
_NAME_IN_USE = 10058
_SAME_SUBJECT_FULL = 10077


class QueueError(FleetError):
    """NATS cannot be reached, or refuses what a pool needs."""


async def connect(
    access: wire.NatsAccess,
    name: str,
    *,
    on_change: Callable[[bool], None] | None = None,
    on_closed: Callable[[], None] | None = None,
    wait: float | None = None,
    secret: str | None = None,
    socket: Callable[[], Path] | None = None,
) -> Client:
    """A connection that comes back by itself for as long as it takes.

    ``on_change`` hears True and False when the connection comes back and goes, ``on_closed`` that it is over for good
    (the server refused something so that the client gave up): a program then has to end and be started again.
    ``wait``: seconds for the first connection; None: without limit, for programs that may be started before NATS.
    ``secret``: the password itself, where it is in no file. ``socket``: the Unix socket that leads to the server, asked
    for anew at each attempt.
    Raises QueueError when the password or a certificate cannot be read, or the time is over.
    """
    seen = ""

    async def failed(error: Exception) -> None:
        nonlocal seen
        if seen == _refusal(access) and isinstance(error, _CUT_OFF):
            return  # the server cuts off whom it refuses, sometimes before its reason has come through
        said = _reason(error, access)
        if said != seen:
            log.warning("%s", said)
        seen = said

    async def gone() -> None:
        if client.is_closed:  # by this program
            return
        log.warning("NATS: the connection is gone")
        if on_change:
            on_change(False)

    async def back() -> None:
        nonlocal seen
        seen = ""
        log.info("NATS: connected to %s", client.connected_url.netloc if client.connected_url else "a server")
        if on_change:
            on_change(True)

    async def closed() -> None:
        if on_closed:
            on_closed()

    client = Client()
    if socket is not None:
        client._transport = UnixTransport(socket)
    options: dict[str, Any] = {
        "servers": list(access.servers),
        "name": name,
        "user": access.user or None,
        "password": password(access.password_file) if access.password_file else secret,
        "tls": tls(access),
        # Below the standard prefix, so that permissions can keep one role from the answers of another.
        "inbox_prefix": f"_INBOX.{wire.token(access.user)}" if access.user else "_INBOX",
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.5,
        "connect_timeout": 3,
        "ping_interval": 5,
        "max_outstanding_pings": 2,
        "pending_size": BUFFER,
        "error_cb": failed,
        "disconnected_cb": gone,
        "reconnected_cb": back,
        "closed_cb": closed,
    }
    try:
        async with asyncio.timeout(wait):
            await client.connect(**options)
            # nats-py takes a connection that the server closed at once for one, and makes it anew beside.
            while not client.is_connected and not client.is_closed:
                await asyncio.sleep(0.02)
    except TimeoutError:
        with contextlib.suppress(nats.errors.Error, OSError):
            await client.close()
        raise QueueError(
            f"NATS cannot be reached within {wait:g} s: {seen or 'no answer from ' + _servers(access)}",
            hint="look at the unit of nats-server on the boxes that `pool: nats:` names",
        ) from None
    return client


def password(file: str) -> str:
    """The password in a file, without the line break at its end. Raises QueueError naming the file, never its text."""
    try:
        found = Path(file).read_text(encoding="utf-8").strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise QueueError(f"the password for NATS in {file} cannot be read: {reason}") from None
    if not found:
        raise QueueError(f"the password for NATS in {file} is empty")
    return found


def tls(access: wire.NatsAccess) -> ssl.SSLContext | None:
    """What TLS takes: certificates are always verified. None where neither a URL nor a CA asks for TLS."""
    if not access.ca and not any(url.startswith("tls://") for url in access.servers):
        return None
    try:
        return ssl.create_default_context(cafile=access.ca or None)
    except OSError as error:
        raise QueueError(f"the CA certificates in {access.ca} cannot be used: {error.strerror or error}") from None


def _servers(access: wire.NatsAccess) -> str:
    return ", ".join(url.rsplit("@", 1)[-1] for url in access.servers)


def _reason(error: Exception, access: wire.NatsAccess) -> str:
    if "uthorization" in str(error):
        return _refusal(access)
    return f"NATS at {_servers(access)}: {error or type(error).__name__}"


def _refusal(access: wire.NatsAccess) -> str:
    return f"NATS at {_servers(access)} refuses user {access.user!r}: look at {access.password_file or 'pool: nats:'}"


def streams(replicas: int = 1, limit: int | None = None) -> dict[str, dict[str, Any]]:
    """What is set of each stream. ``limit``: requests that wait per model; None: 1000 in a stream that is made, and
    unchanged in one that exists (workers do not know it; gateways do)."""
    common: dict[str, Any] = {"storage": StorageType.FILE, "num_replicas": replicas}
    queue = {"retention": RetentionPolicy.WORK_QUEUE, "discard": DiscardPolicy.NEW, **common}
    per_model = {} if limit is None else {"max_msgs_per_subject": limit}
    once = {"max_msgs_per_subject": 1, "discard": DiscardPolicy.NEW, "discard_new_per_subject": True}
    return {
        wire.WORK: {
            "subjects": ["work.*"],
            "discard_new_per_subject": True,
            "max_age": WORK_KEPT,
            "duplicate_window": wire.DUPLICATES,
            **queue,
            **per_model,
        },
        wire.BATCH: {"subjects": ["batch.*.*.*"], "duplicate_window": wire.DUPLICATES, **queue, **once},
        # One answer per line, whenever a second one comes: what Nats-Msg-Id alone promises for two minutes only.
        wire.RESULTS: {"subjects": ["result.*.*"], "duplicate_window": wire.DUPLICATES, **once, **common},
        wire.DEAD: {
            "subjects": ["dead.*"],
            "max_age": DEAD_KEPT,
            "max_msgs_per_subject": DEAD_OF_ONE_MODEL,
            "discard": DiscardPolicy.OLD,
            **common,
        },
    }


async def make_streams(js: JetStreamContext, replicas: int = 1, limit: int | None = None) -> None:
    """WORK, BATCH, RESULTS and DEAD as :func:`streams` has them. Raises QueueError."""
    for name, wanted in streams(replicas, limit).items():
        await _make_stream(js, name, wanted)


async def _make_stream(js: JetStreamContext, name: str, wanted: dict[str, Any]) -> None:
    try:
        try:
            config = (await js.stream_info(name)).config
        except NotFoundError:
            first = {"max_msgs_per_subject": LIMIT, **wanted} if name == wire.WORK else wanted
            try:
                await js.add_stream(StreamConfig(name=name, **first))
                return
            except APIError as error:
                if error.err_code != _NAME_IN_USE:  # another program was faster, with another limit
                    raise
            config = (await js.stream_info(name)).config
        if any(getattr(config, key) != value for key, value in wanted.items()):
            await js.update_stream(config.evolve(**wanted))
    except (APIError, nats.errors.Error) as error:
        raise QueueError(f"NATS does not take the stream {name}: {_said(error)}", hint=_HINT) from None


async def make_consumer(js: JetStreamContext, model: str, lane: wire.Lane = "work") -> None:
    """The consumer that all workers share for a model. Raises QueueError."""
    name = wire.consumer(model, lane)
    wanted = ConsumerConfig(
        durable_name=name,
        filter_subject=wire.subject(model, lane),
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=wire.ACK_WAIT,
        max_ack_pending=MOST_AT_WORK,
        max_waiting=MOST_PULLS,
    )
    try:
        await js.add_consumer(wire.WORK if lane == "work" else wire.BATCH, wanted)
    except (APIError, nats.errors.Error) as error:
        raise QueueError(f"NATS does not take the consumer {name}: {_said(error)}", hint=_HINT) from None


async def make_bucket(js: JetStreamContext, replicas: int = 1, store: int | None = None) -> ObjectStore:
    """The bucket of long bodies. ``store``: bytes that it takes at most, 0 for no limit of its own, None to leave an
    existing one as it is. Raises QueueError."""
    name = f"OBJ_{wire.BODIES}"
    try:
        try:
            config = (await js.stream_info(name)).config
        except NotFoundError:
            made = ObjectStoreConfig(
                storage=StorageType.FILE, replicas=replicas, ttl=BODIES_KEPT, max_bytes=store or -1
            )
            return await js.create_object_store(wire.BODIES, made)
        wanted: dict[str, Any] = {"num_replicas": replicas}
        if store is not None:
            wanted["max_bytes"] = store or -1
        if any(getattr(config, key) != value for key, value in wanted.items()):
            await js.update_stream(config.evolve(**wanted))
        return await js.object_store(wire.BODIES)
    except (APIError, nats.errors.Error) as error:
        raise QueueError(f"NATS does not take the bucket {wire.BODIES}: {_said(error)}", hint=_HINT) from None


def is_full(error: APIError) -> bool:
    """Whether a publication failed because as many wait on its subject, or in its stream, as may."""
    return error.err_code == _SAME_SUBJECT_FULL and "maximum" in (error.description or "")


def _said(error: Exception) -> str:
    if isinstance(error, APIError):
        return error.description or f"error {error.err_code or error.code}"
    return "no answer from JetStream" if isinstance(error, nats.errors.TimeoutError) else str(error)


_HINT = "is JetStream on (`jetstream` in nats-server's configuration), with room in its store, and may this user do it?"
