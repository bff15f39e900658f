"""Answers to the lines of batch jobs: stored by whoever worked on them, read by whoever wants them.

A line's request has the subject of its answer in ``Envelope.answer``, and ``JOB.LINE`` as its id. The answer is one
frame, status and all; one that is too long for a message lies in the object store, and a header has its name there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from nats.js import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from fleetctl.pool import wire
from fleetctl.pool.nats import is_full

BODY = "Fleetctl-Body"
"""Header with the name of an answer in the object store, where the message has none."""
FINAL = 400
"""First status of answers that are errors."""
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Answer:
    """The answer to one line."""

    line: int
    status: int
    content_type: str
    body: bytes
    worker: str

    @property
    def failed(self) -> bool:
        """It is an error."""
        return self.status >= FINAL

    def tokens(self) -> tuple[int, int]:
        """Tokens of the prompt and of the answer, as the engine counted them; 0 where it does not say."""
        if b'"usage"' not in self.body:
            return 0, 0
        try:
            usage = json.loads(self.body)["usage"]
            prompt = int(usage.get("prompt_tokens") or 0)
            answer = int(usage.get("completion_tokens") or 0)
            return prompt, answer or max(0, int(usage.get("total_tokens") or 0) - prompt)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return 0, 0


def passing(status: int) -> bool:
    """Whether an error may be gone at the next try: an engine that stops or is full, not a request that is wrong."""
    return status in _PASSING


def is_taken(error: APIError) -> bool:
    """Whether a publication failed because its subject, which takes one message, has it; not for want of room."""
    return is_full(error) and "per subject" in (error.description or "")


async def is_answered(js: JetStreamContext, envelope: wire.Envelope) -> bool:
    """Whether a line has its answer already: to be asked before one is worked on that was delivered before.

    It counts messages and reads none: workers have no need to read answers.
    """
    info = await js.stream_info(wire.RESULTS, subjects_filter=envelope.answer)
    return envelope.answer in (info.state.subjects or {})


async def keep(js: JetStreamContext, envelope: wire.Envelope, frame: wire.Frame) -> bool:
    """Store the answer to a line; its request may be acknowledged once this returns.

    Returns False when it had one already: the first counts. Raises nats' own errors when JetStream does not take it;
    the request then has to stay where it is.
    """
    # A line that was cancelled, forgotten and submitted again is another one, however soon that is.
    headers = {"Nats-Msg-Id": f"{envelope.id}.{envelope.sent}"}
    whole = frame._replace(kind=wire.Kind.WHOLE)
    name = f"{envelope.id}.answer"
    if len(frame.body) > wire.INLINE_BODY:
        bucket = await js.object_store(wire.BODIES)
        await bucket.put(name, frame.body)
        headers[BODY] = name
        whole = whole._replace(body=b"")
    try:
        stored = await js.publish(envelope.answer, whole.pack(), stream=wire.RESULTS, headers=headers)
    except APIError as error:
        if not is_taken(error):
            raise
        return False
    return not stored.duplicate


async def read(js: JetStreamContext, subject: str, data: bytes, headers: dict[str, str] | None) -> Answer:
    """An answer from its message. Raises WireError for what no version of this wrote."""
    frame = wire.unpack_frame(data)
    body = frame.body
    name = (headers or {}).get(BODY)
    status = frame.status
    if name is not None:
        try:
            bucket = await js.object_store(wire.BODIES)
            body = (await bucket.get(name)).data or b""
        except NotFoundError:
            status, body = 500, b'{"error": {"message": "the answer was too long ago: it is not stored any more"}}'
    return Answer(int(subject.rsplit(".", 1)[-1]), status, frame.content_type, body, frame.worker)
