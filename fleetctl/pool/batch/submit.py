"""Submitting the lines of a job: each is accepted when JetStream has acknowledged it, and not before.

Any part of it may be cut off and done again. A line that waits has its own subject, which takes no second message; one
that is answered is not sent again.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from nats.js import JetStreamContext
from nats.js.errors import APIError, BucketNotFoundError, NotFoundError

from fleetctl.errors import FleetError, RefusedError
from fleetctl.pool import wire
from fleetctl.pool.batch.away import Patience, is_without_room
from fleetctl.pool.batch.books import Books
from fleetctl.pool.batch.estimate import tokens_of
from fleetctl.pool.batch.job import KEPT, Job, name_of, pack_names
from fleetctl.pool.batch.lines import BatchFile, Line
from fleetctl.pool.batch.quota import Full, look
from fleetctl.pool.batch.results import is_taken
from fleetctl.pool.nats import QueueError

AT_ONCE = 64
"""Lines whose acknowledgements are awaited together."""
ROOM_AGAIN = 1.0
"""Seconds until a stream that was full is tried again."""


def estimated(file: BatchFile) -> tuple[int, int]:
    """Tokens that all prompts and all answers together may take."""
    each = [tokens_of(line.path, file.body(line), line.end - line.start) for line in file.lines]
    return sum(prompt for prompt, _ in each), sum(answer for _, answer in each)


async def begin(books: Books, file: BatchFile, now: float) -> Job:
    """The job of a file, as it is kept: begun now, or gone on with; a cancelled one is cancelled no more."""
    name = name_of(file)
    found = await books.get(name)
    if found is not None and not found.cancelled:
        return found
    models = tuple(sorted({line.model for line in file.lines}))
    await _somebody_pulls(books.js, models)
    if found is None:
        await books.put_names(name, pack_names(file))
        prompt, answer = estimated(file)
        base = file.name.rsplit("/", 1)[-1]
        found = Job(name, base, models, len(file.lines), now, prompt=prompt, answer=answer)
    found = found.at(cancelled=0.0)
    await books.put(found)
    return found


async def _somebody_pulls(js: JetStreamContext, models: Iterable[str]) -> None:
    for model in models:
        try:
            await js.consumer_info(wire.BATCH, wire.consumer(model, "batch"))
        except NotFoundError:
            raise RefusedError(
                f"nobody takes batch lines for {model}: no layout with it was live since there is a pool",
                hint="`fleetctl cutover` to one; nothing was submitted",
            ) from None


async def submit(
    books: Books, file: BatchFile, job: Job, patience: Patience, hear: Callable[[int, int, Full], None]
) -> int:
    """Publish the lines that neither wait nor are answered. Returns how many those were.

    ``hear`` is told how many of how many JetStream has acknowledged, and what has no room for more now. There will be
    room as others are answered, or are removed.
    """
    missing = await patience.call(lambda: books.missing(job.name, {line.number for line in file.lines}))
    todo = [line for line in file.lines if line.number in missing]
    size = sum(line.end - line.start for line in todo) / max(1, len(todo))
    # JetStream remembers an id for a while after its message has gone: one that was cancelled may come again at once.
    submission, done = secrets.token_hex(4), 0
    hear(0, len(todo), "")
    while done < len(todo):
        count, full = await patience.call(lambda: look(books.js, books.store, size))
        if not count:
            hear(done, len(todo), full)
            await asyncio.sleep(ROOM_AGAIN)
            continue
        rest = iter(todo[done : done + count])

        async def publish_some(rest: Iterator[Line] = rest) -> None:
            nonlocal done
            for line in rest:
                await _publish(books.js, file, job, line, submission, patience)
                done += 1
                hear(done, len(todo), "")

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(AT_ONCE, count)):
                    group.create_task(publish_some())
        except* FleetError as several:
            raise several.exceptions[0] from None
    return len(todo)


async def _publish(
    js: JetStreamContext, file: BatchFile, job: Job, line: Line, submission: str, patience: Patience
) -> None:
    body = file.body(line)
    data = as_bytes(body)
    identity, now = f"{job.name}.{line.number}", int(time.time() * 1000)
    long = len(data) > wire.INLINE_BODY
    envelope = wire.Envelope(
        identity,
        line.model,
        line.path,
        wire.result_subject(job.name, line.number),
        now + int(KEPT * 1000),
        len(data),
        cost=sum(tokens_of(line.path, body, len(data))),
        body=identity if long else "",
        sent=now,
    )
    if long:
        await patience.call(lambda: _put(js, identity, data))
    message = envelope.pack(b"" if long else data)
    subject = wire.batch_subject(line.model, job.name, line.number)
    headers = {"Nats-Msg-Id": f"{identity}.{submission}"}
    while True:
        try:
            await patience.call(lambda: js.publish(subject, message, stream=wire.BATCH, headers=dict(headers)))
            return
        except APIError as error:
            if is_taken(error):
                return  # it waits already: an acknowledgement of it was lost on its way here
            if not is_without_room(error):
                said = error.description or f"error {error.err_code}"
                raise QueueError(f"NATS does not take line {line.number}: {said}") from None
        await asyncio.sleep(ROOM_AGAIN)


def as_bytes(body: dict[str, Any]) -> bytes:
    """A body as it travels: short, and in characters of its own where they are valid ones."""
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a pair of surrogates, which JSON can escape and UTF-8 cannot have
        return json.dumps(body, separators=(",", ":")).encode()


async def _put(js: JetStreamContext, name: str, body: bytes) -> None:
    try:
        bucket = await js.object_store(wire.BODIES)
    except BucketNotFoundError:
        raise QueueError("NATS has no bucket for long bodies: no gateway or worker of a pool has run with it") from None
    await bucket.put(name, body)
