"""What the head of a request says, and what the request is estimated to cost."""

from __future__ import annotations

import itertools
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from fleetctl.pool.exchange import JSON, Exchange
from fleetctl.pool.gateway.json_scan import JsonScanner
from fleetctl.pool.gateway.msgpack_scan import MessagePackScanner
from fleetctl.pool.gateway.refusals import Refusal
from fleetctl.pool.gateway.scan import Scanner, Value

MESSAGE_PACK = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")
BYTES_OF_A_TOKEN = 4
"""Bytes of a body per token: what OpenAI and most others give as the rule of thumb for English."""
TOKENS_OF_AN_IMAGE = 765
"""What an image is taken for, however many bytes it has: 1024 x 1024 pixels at OpenAI (85, and 170 for each of four
tiles; https://platform.openai.com/docs/guides/images-vision). Models differ; what engines count corrects it."""
ANSWER_OF_CHAT = 256
"""Tokens of an answer, where a chat's request sets no limit."""
ANSWER_OF_COMPLETION = 16
"""Tokens of an answer where a completion's request sets no limit: the API's own default."""
MOST_DEADLINE = 86_400_000

_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.{0,64})?")
"""https://www.w3.org/TR/trace-context/#traceparent-header"""
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_OWN = secrets.token_hex(6)
_count = itertools.count()


@dataclass(slots=True)
class Asked:
    """A request as its head has it."""

    path: str
    content_type: str
    accept: str
    scanner: Scanner
    model: str
    """The model's name in the header, which wins over the body's; empty: the body has it."""
    given: str
    """The id that came with the request; empty: none."""
    seconds: float
    """How long it may take."""
    deadline: int
    """When that is over, in Unix milliseconds."""
    trace: str

    def identity(self, body: bytes) -> str:
        """The request's id: the same for the same request with the same id from outside, at every gateway.

        The body (or its digest) is in it, so that an id that is used twice never brings the answer to another request.
        """
        if not self.given:
            return f"{_OWN}{next(_count):x}"
        digest = sha256("\0".join((self.path, self.model, self.content_type, self.accept, "")).encode())
        digest.update(body)
        return f"{self.given}.{digest.hexdigest()[:16]}"


def read_head(exchange: Exchange, seconds: float) -> Asked:
    """What the head says. ``seconds``: how long a request may take that does not say. Raises Refusal."""
    headers = exchange.headers
    kind = exchange.header(b"content-type")
    scanner = scanner_for(kind)
    if scanner is None:
        told = f"not {kind[:100]}" if kind else "which the header content-type has to say"
        raise Refusal(415, f"the body has to be application/json or {MESSAGE_PACK[0]}, {told}")
    if exchange.header(b"content-encoding") not in ("", "identity"):
        raise Refusal(415, "the body must not be compressed: send it without content-encoding")
    if b"x-deadline-ms" in headers:
        seconds = _deadline(exchange.header(b"x-deadline-ms"))
    given = exchange.header(b"x-request-id")
    trace = exchange.header(b"traceparent")
    return Asked(
        path=exchange.path,
        content_type=kind,
        accept=_accept(exchange.header(b"accept"), scanner),
        scanner=scanner,
        model=exchange.header(b"x-model"),
        given=given if _ID.fullmatch(given) else "",
        seconds=seconds,
        deadline=int(time.time() * 1000 + seconds * 1000),
        trace=trace if _TRACE.fullmatch(trace) else "",
    )


def scanner_for(content_type: str) -> Scanner | None:
    """What reads bodies of a content type; None: a gateway does not take it."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return JsonScanner()
    return MessagePackScanner() if kind in MESSAGE_PACK else None


def _accept(said: str, scanner: Scanner) -> str:
    """What the answer should be: what the client says, and where it takes anything, what it sends itself."""
    if said not in ("", "*/*"):
        return said[:200]
    return MESSAGE_PACK[0] if isinstance(scanner, MessagePackScanner) else JSON


def _deadline(said: str) -> float:
    if not said.isascii() or not said.isdigit() or not 0 < int(said[:10]) <= MOST_DEADLINE:
        raise Refusal(400, f"x-deadline-ms has to be the milliseconds that an answer may take, 1 to {MOST_DEADLINE}")
    return int(said) / 1000


def cost(path: str, size: int, scanner: Scanner) -> int:
    """Tokens that a request is estimated to take, prompt and answer, from its size, its images and what it asks for."""
    found: Mapping[str, Value] = scanner.found
    prompt = -(-max(0, size - scanner.image_bytes) // BYTES_OF_A_TOKEN) + scanner.images * TOKENS_OF_AN_IMAGE
    if path == "/v1/chat/completions":
        most = found.get("max_completion_tokens") or found.get("max_tokens")
        answer = _count_of(most, ANSWER_OF_CHAT)
    elif path == "/v1/completions":
        answer = _count_of(found.get("max_tokens"), ANSWER_OF_COMPLETION)
    else:
        return prompt
    return prompt + answer * _count_of(found.get("n"), 1)


def _count_of(value: Value, otherwise: int) -> int:
    return min(value, 1 << 31) if isinstance(value, int) and value > 0 else otherwise
