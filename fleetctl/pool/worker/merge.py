"""Several requests for embeddings as one call to an engine, and its answer as theirs. Pure.

Small models get their throughput from batches, and clients send one text at a time. Requests are merged when they
differ in nothing but their inputs. The vectors are most of an answer, and they are never parsed: the engine's bytes of
each element go to the client it belongs to, with its index written anew. An engine that speaks MessagePack is asked in
it for clients that take it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from fleetctl.pool.worker import convert

PATH = "/v1/embeddings"
MOST_MERGED = 1 << 20
"""Bytes of a body that is looked into; a longer one is a call of its own, which gains nothing from others."""
MOST_INPUTS = 1024
"""Inputs of one call."""
_IGNORED = frozenset({"input", "user"})
"""Not compared: what is merged, and what only names the end user."""

_ELEMENT = re.compile(rb"\{[^{}]*\}")
_INDEX = re.compile(rb'("index"\s*:\s*)(\d+)')
_DATA = re.compile(rb'"data"\s*:\s*\[')


class Mergeable(NamedTuple):
    """The inputs of a request, and all else in it as a key: requests with the same key can be one call."""

    key: str
    inputs: list[Any]
    body: dict[str, Any]
    packed: bool = False
    """The engine is asked in MessagePack."""

    @property
    def content_type(self) -> str:
        """Of the call and of its answer."""
        return convert.MSGPACK if self.packed else convert.JSON


def mergeable(path: str, content_type: str, body: bytes, packed: bool = False) -> Mergeable | None:
    """What of a request can be merged; None: it has to go alone (another path, odd inputs). ``packed``: the answer is
    wanted in MessagePack, from an engine that speaks it."""
    if path != PATH or len(body) > MOST_MERGED:
        return None
    try:
        if convert.is_msgpack(content_type):
            found = msgpack.unpackb(body)
        elif content_type.partition(";")[0].strip().lower() == convert.JSON:
            found = json.loads(body)
        else:
            return None
    except (ValueError, RecursionError, msgpack.UnpackException):
        return None
    if not isinstance(found, dict):
        return None
    inputs = _inputs(found.get("input"))
    if inputs is None:
        return None
    rest = {key: value for key, value in found.items() if key not in _IGNORED}
    kind = ("packed " if packed else "") + ("text" if isinstance(inputs[0], str) else "tokens")
    try:
        return Mergeable(f"{kind} {json.dumps(rest, sort_keys=True)}", inputs, rest, packed)
    except TypeError:  # bytes, which only MessagePack has
        return None


def _inputs(value: Any) -> list[Any] | None:
    """A list of texts, or a list of lists of tokens. None for what an engine should refuse itself."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        return None
    if all(type(one) is int for one in value):
        return [value]
    if all(isinstance(one, str) for one in value):
        return value
    if all(isinstance(one, list) and one and all(type(token) is int for token in one) for one in value):
        return value
    return None


def joined(requests: Sequence[Mergeable]) -> bytes:
    """The body of one call for all of them; they have the same key."""
    body = {**requests[0].body, "input": [one for request in requests for one in request.inputs]}
    if requests[0].packed:
        return bytes(msgpack.packb(body))
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def split(answer: bytes, counts: Sequence[int], shares: Sequence[int], packed: bool = False) -> list[bytes] | None:
    """The answer to each request from that to all. None: it is none that can be split, so each has to be asked alone.

    ``counts``: inputs of each request. ``shares``: what its tokens are estimated to be; the engine counts the tokens of
    all together, and each request gets its part of the sum by these.
    """
    if packed:
        return _split_packed(answer, counts, shares)
    begin = _DATA.search(answer)
    if begin is None:
        return None
    elements, after = [], begin.end()
    while True:
        found = _ELEMENT.match(answer, after)
        if found is None:
            break
        elements.append(found.group())
        after = found.end()
        while answer[after : after + 1] in (b",", b" ", b"\n"):
            after += 1
    if answer[after : after + 1] != b"]" or len(elements) != sum(counts):
        return None
    for number, element in enumerate(elements):
        index = _INDEX.search(element)
        if index is None or int(index[2]) != number:
            return None
    try:
        frame = json.loads(answer[: begin.end()] + answer[after:])
    except ValueError:
        return None
    return _parts(frame, elements, counts, _usage(frame.get("usage"), shares))


def _parts(
    frame: dict[str, Any], elements: list[bytes], counts: Sequence[int], usages: list[dict[str, int] | None]
) -> list[bytes]:
    parts, first = [], 0
    for count, usage in zip(counts, usages, strict=True):
        own = [
            _INDEX.sub(rb"\g<1>%d" % number, element, count=1)
            for number, element in enumerate(elements[first : first + count])
        ]
        first += count
        rest = {key: value for key, value in frame.items() if key not in ("data", "usage")}
        if usage is not None:
            rest["usage"] = usage
        outside = json.dumps(rest, separators=(",", ":")).encode()
        parts.append(b'{"data":[' + b",".join(own) + b"]" + (b"," + outside[1:] if rest else b"}"))
    return parts


def _split_packed(answer: bytes, counts: Sequence[int], shares: Sequence[int]) -> list[bytes] | None:
    try:
        found = msgpack.unpackb(answer)
        data = found["data"]
        if [one["index"] for one in data] != list(range(sum(counts))):
            return None
    except (ValueError, KeyError, TypeError, RecursionError, msgpack.UnpackException):
        return None
    parts, first = [], 0
    for count, usage in zip(counts, _usage(found.get("usage"), shares), strict=True):
        own = [{**one, "index": number} for number, one in enumerate(data[first : first + count])]
        parts.append(bytes(msgpack.packb({**found, "data": own, **({"usage": usage} if usage else {})})))
        first += count
    return parts


def _usage(total: Any, shares: Sequence[int]) -> list[dict[str, int] | None]:
    """Each request's part of what was counted; the parts add up to it."""
    if not isinstance(total, dict):
        return [None] * len(shares)
    counted = {key: value for key, value in total.items() if type(value) is int}
    whole = sum(shares) or 1
    parts: list[dict[str, int] | None] = []
    given = dict.fromkeys(counted, 0)
    seen = 0
    for share in shares:
        seen += share
        part = {key: value * seen // whole - given[key] for key, value in counted.items()}
        given = {key: given[key] + value for key, value in part.items()}
        parts.append(part)
    return parts
