"""What gateways, workers and batch jobs of a pool agree on: streams, subjects, and the bytes that travel. Pure.

A request is published to JetStream once, as an *envelope* (a MessagePack map about the request) followed by its body,
byte for byte as the client sent it. The answer comes back over core NATS as *frames*: a MessagePack array with the kind
first, followed by bytes of the answer. Nothing in between parses a body.

Limits: a message is at most :data:`MOST_MESSAGE` bytes (NATS's own default of 1 MiB for max_payload, less what
protocol and headers take). Longer bodies are stored aside and the envelope has the reference; longer answers travel in
several frames.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import msgpack

from fleetctl.errors import FleetError

WORK = "WORK"
"""Stream of requests that somebody waits for: work-queue retention, bounded per model."""
BATCH = "BATCH"
"""Stream of the lines of batch jobs."""
RESULTS = "RESULTS"
"""Stream of their answers, kept until they are fetched."""
DEAD = "DEAD"
"""Stream of requests that were given up, with the reason."""
BODIES = "bodies"
"""Bucket of the object store for bodies that are too long for a message."""
IN_BUCKET = "s3:"
"""What the name of a body begins with that is in a bucket of its own, outside NATS."""

MOST_MESSAGE = 1_000_000
INLINE_BODY = 960_000
"""Longest body, in bytes, that travels in the message itself."""
ACK_WAIT = 10.0
"""Seconds without a sign of a worker after which its requests go to another."""
AT_WORK_EVERY = 3.0
"""Seconds between two such signs (``+WPI``, in progress)."""
ALIVE_EVERY = 2.0
"""Seconds between two frames at least, once a streamed answer has begun."""
MOST_DELIVERIES = 3
"""Tries of a request before it is taken for the reason that workers die."""
ANSWERS_KEPT = 60.0
"""Seconds that a worker keeps an answer, for a gateway that takes over a client from one that died."""
DUPLICATES = 120.0
"""Seconds in which a second publication of the same request is not stored (duplicate_window)."""

Lane = Literal["work", "batch"]


def token(model: str) -> str:
    """A model's key as one token of a subject or the name of a consumer: letters, digits, ``-`` and ``_`` stay."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: f"={ord(found[0]):x}=", model)


def subject(model: str, lane: Lane = "work") -> str:
    """Where requests for a model wait; in the batch lane, where each line has its own subject, all of these."""
    return f"{lane}.{token(model)}" + (".*.*" if lane == "batch" else "")


def batch_subject(model: str, job: str, line: int) -> str:
    """Where one line of a batch job waits.

    One message for each: a line that waits is not taken a second time, however long it waits, and a job's lines can be
    counted and removed without touching those of others.
    """
    return f"batch.{token(model)}.{token(job)}.{line}"


def consumer(model: str, lane: Lane = "work") -> str:
    """Durable name of the pull consumer that all workers share for a model."""
    return f"{lane}-{token(model)}"


def dead_subject(model: str) -> str:
    """Where requests for a model end that were given up."""
    return f"dead.{token(model)}"


def answer_subject(gateway: str, identity: str) -> str:
    """Where the frames of one answer go."""
    return f"answer.{token(gateway)}.{token(identity)}"


def answers_of(gateway: str) -> str:
    """All answers to one gateway, for its subscription."""
    return f"answer.{token(gateway)}.*"


def cancel_subject(identity: str) -> str:
    """Where a gateway says that the client of a request has gone."""
    return f"cancel.{token(identity)}"


def ask_subject(identity: str) -> str:
    """Where a gateway asks for an answer that another gateway had asked for; the payload is its answer subject."""
    return f"ask.{token(identity)}"


def result_subject(job: str, line: int) -> str:
    """Where the answer to one line of a batch job is kept."""
    return f"result.{token(job)}.{line}"


STATE = "state"
"""Subject at which every worker answers with its state as JSON."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What is said of a request, so that nobody has to look into its body. Times are Unix milliseconds."""

    id: str
    model: str
    """The model's key in fleet.yaml, not the name that the client used."""
    path: str
    """Path of the API, such as /v1/embeddings."""
    answer: str
    """Subject for the frames of the answer."""
    deadline: int
    """When the answer is of no use any more."""
    size: int
    """Bytes of the body."""
    content_type: str = "application/json"
    accept: str = "application/json"
    cost: int = 0
    """Tokens that it is estimated to take, prompt and answer; 0: not estimated."""
    stream: bool = False
    trace: str = ""
    """``traceparent`` of the client, where it sent one."""
    body: str = ""
    """Where a body is that is too long for the message: its name in the object store, or, after :data:`IN_BUCKET`, in a
    bucket."""
    sent: int = 0
    """When the gateway published it."""

    def pack(self, body: bytes = b"") -> bytes:
        """The bytes of a message."""
        head: bytes = msgpack.packb([getattr(self, name) for name in _FIELDS])
        return head + body


_FIELDS = tuple(Envelope.__dataclass_fields__)


class WireError(FleetError):
    """A message that none of these programs has written."""


def unpack(data: bytes) -> tuple[Envelope, bytes]:
    """The envelope and the body of a message. Raises WireError for anything else."""
    head, rest = _split(data, len(_FIELDS))
    try:
        envelope = Envelope(*head)
    except TypeError as error:
        raise WireError(f"a request in the queue cannot be read: {error}") from None
    if not isinstance(envelope.id, str) or not isinstance(envelope.deadline, int):
        raise WireError("a request in the queue cannot be read: its id or its deadline is of the wrong kind")
    return envelope, rest


class Kind(IntEnum):
    """What a frame of an answer is."""

    WHOLE = 0
    """Status, content type; the bytes are the whole answer."""
    BEGIN = 1
    """Status, content type; the bytes are the first of several."""
    MORE = 2
    """Further bytes."""
    END = 3
    """The last bytes of several."""
    FAILED = 4
    """Status, content type; the bytes are the body of the error. After BEGIN: the answer broke off."""
    ALIVE = 5
    """The request is at work."""


class Frame(NamedTuple):
    """One piece of an answer. ``status`` and ``content_type`` count in WHOLE, BEGIN and FAILED."""

    kind: Kind
    body: bytes = b""
    status: int = 200
    content_type: str = "application/json"
    worker: str = ""

    def pack(self) -> bytes:
        """The bytes of a message."""
        head: bytes = msgpack.packb([int(self.kind), self.status, self.content_type, self.worker])
        return head + self.body


def unpack_frame(data: bytes) -> Frame:
    """A frame from its bytes. Raises WireError."""
    (kind, status, content_type, worker), rest = _split(data, 4)
    try:
        return Frame(Kind(kind), rest, int(status), str(content_type), str(worker))
    except (ValueError, TypeError) as error:
        raise WireError(f"an answer cannot be read: {error}") from None


def _split(data: bytes, items: int) -> tuple[list[Any], bytes]:
    unpacker = msgpack.Unpacker(max_buffer_size=len(data) + 1)
    unpacker.feed(data)
    try:
        head = unpacker.unpack()
        position = unpacker.tell()
    except (msgpack.UnpackException, ValueError) as error:
        raise WireError(f"a message cannot be read: {error or 'it ends early'}") from None
    if not isinstance(head, list) or len(head) != items:
        raise WireError("a message cannot be read: another version of fleetctl wrote it")
    return head, data[position:]


# Configuration of the programs, as JSON files on the boxes ------------------------------------------------------------


@dataclass(frozen=True)
class NatsAccess:
    """How a program reaches NATS."""

    servers: tuple[str, ...]
    """URLs such as nats://10.0.0.1:4222 or tls://…"""
    user: str = ""
    password_file: str = ""
    """Only root and the program read it; empty: no password."""
    ca: str = ""
    """CA certificates for TLS; empty: those of the system."""
    replicas: int = 1
    """Servers that keep each stream: 1, or 3 in a cluster of three."""


@dataclass(frozen=True)
class S3Access:
    """How a program reaches the bucket that has long bodies in place of the object store."""

    bucket: str
    prefix: str
    endpoint: str
    """URL of the server; empty: AWS."""
    region: str
    access_key_file: str
    secret_key_file: str
    """Only root and the program read these."""


@dataclass(frozen=True)
class Listen:
    """Where a program listens."""

    host: str
    port: int


@dataclass(frozen=True)
class PoolModel:
    """A model, as gateways have to know it."""

    key: str
    task: str
    served_as: tuple[str, ...]
    limit: int = 1000
    """Requests that wait at most."""


@dataclass(frozen=True)
class GatewayConfig:
    """Everything that a gateway is told."""

    name: str
    nats: NatsAccess
    listen: Listen
    models: tuple[PoolModel, ...]
    deadline: float = 120.0
    """Seconds that a request may take, where the client asks for no other time."""
    most_body: int = 64 << 20
    """Longest body in bytes."""
    store: int = 0
    """Bytes of all bodies in the object store at most; 0: no limit of its own."""
    s3: S3Access | None = None
    """The bucket for long bodies; None: the object store."""
    adapters: str = ""
    """File with the LoRA adapters of the fleet, lines "NAME MODEL", which may change; empty: no model takes any."""


@dataclass(frozen=True)
class PoolEngine:
    """One engine of a box, as its worker has to know it."""

    model: str
    task: str
    served_as: tuple[str, ...]
    unit: str
    """systemd unit that runs it."""
    address: str
    """unix:PATH or http://HOST:PORT."""
    runtime: str = "vllm"
    pinned: bool = False
    memory: int = 0
    """Bytes of the box's memory that it takes once loaded."""
    weights: int = 0
    """Bytes that loading reads."""
    concurrency: int = 8
    """Requests at once."""
    batch_tokens: int = 8192
    """Tokens of one batch."""
    context: int = 0
    """Longest request in tokens; 0: not known."""
    load_limit: float = 900.0
    stop_limit: float = 60.0


@dataclass(frozen=True)
class WorkerConfig:
    """Everything that a worker is told."""

    box: str
    nats: NatsAccess
    listen: Listen
    memory: int
    """Bytes that all engines of the pool may take on this box together."""
    engines: tuple[PoolEngine, ...] = field(default=())
    s3: S3Access | None = None
    """The bucket for long bodies, where gateways use one."""
    control: str = ""
    """Path of the Unix socket for what changes something, and for direct calls; empty: ``listen`` takes those too."""


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, dict):
        raise WireError(f"{kind.__name__} in a configuration has to be an object")
    unknown = sorted(set(value) - set(kind.__dataclass_fields__))  # type: ignore[attr-defined]
    if unknown:
        raise WireError(f"{kind.__name__} in a configuration has no {', '.join(unknown)}")
    try:
        return kind(**{key: _tuples(one) for key, one in value.items()})
    except TypeError as error:
        raise WireError(f"{kind.__name__} in a configuration cannot be read: {error}") from None


def gateway_config(value: Any) -> GatewayConfig:
    """The configuration of a gateway from its JSON. Raises WireError saying what is wrong."""
    read = _parts(value)
    return _of(GatewayConfig, {**read, "models": [_of(PoolModel, one) for one in read.get("models", [])]})  # type: ignore[no-any-return]


def worker_config(value: Any) -> WorkerConfig:
    """The configuration of a worker from its JSON. Raises WireError saying what is wrong."""
    read = _parts(value)
    return _of(WorkerConfig, {**read, "engines": [_of(PoolEngine, one) for one in read.get("engines", [])]})  # type: ignore[no-any-return]


_PARTS: dict[str, type] = {"nats": NatsAccess, "listen": Listen, "s3": S3Access}


def _parts(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WireError("a configuration has to be a JSON object")
    parts = {key: kind for key, kind in _PARTS.items() if key != "s3" or value.get(key) is not None}
    return {key: _of(parts[key], one) if key in parts else one for key, one in value.items()}


def as_json(config: GatewayConfig | WorkerConfig) -> dict[str, Any]:
    """The JSON object that the two functions above read."""
    return asdict(config)
