"""MessagePack for clients whose engine speaks JSON: what comes in and what goes out. Pure.

Bytes in a request become Base64, which engines expect in JSON; under the key ``url`` a data URL. Vectors in an answer
become bytes of little-endian float32, as fleetctl's own encoder writes them.
"""

from __future__ import annotations

import base64
import json
import sys
from array import array
from typing import Any

import msgpack

from fleetctl.pool.wire import WireError

MSGPACK = "application/msgpack"
JSON = "application/json"
_KINDS = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
    (b"%PDF", "application/pdf"),
)


def is_msgpack(content_type: str) -> bool:
    """Whether a content type, or the first in an Accept header, is MessagePack."""
    kind = content_type.partition(",")[0].partition(";")[0].strip().lower()
    return kind in (MSGPACK, "application/x-msgpack", "application/vnd.msgpack")


def to_json(body: bytes) -> bytes:
    """A MessagePack body as JSON. Raises WireError when it is none, or has no place in JSON."""
    try:
        found = msgpack.unpackb(body, strict_map_key=False)
        return json.dumps(_text(found, ""), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"the body is no MessagePack that an engine can be given: {error or 'it ends early'}") from None


def from_json(body: bytes) -> bytes:
    """A JSON answer as MessagePack. Raises WireError when it is no JSON."""
    try:
        found = json.loads(body)
        for one in found["data"] if isinstance(found, dict) and isinstance(found.get("data"), list) else ():
            if isinstance(one, dict) and isinstance(one.get("embedding"), list | str):
                one["embedding"] = _vector(one["embedding"])
        packed: bytes = msgpack.packb(found)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise WireError(f"the engine's answer cannot be put into MessagePack: {error}") from None
    return packed


def _vector(value: list[float] | str) -> bytes:
    """A vector from its numbers, or from its Base64."""
    if isinstance(value, str):
        return base64.b64decode(value, validate=True)
    numbers = array("f", value)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _text(value: Any, key: str) -> Any:
    if isinstance(value, bytes):
        encoded = base64.b64encode(value).decode()
        return f"data:{_kind(value)};base64,{encoded}" if key == "url" else encoded
    if isinstance(value, dict):
        return {
            name.decode() if isinstance(name, bytes) else str(name): _text(one, str(name))
            for name, one in value.items()
        }
    if isinstance(value, list) and any(isinstance(one, bytes | dict | list) for one in value):
        return [_text(one, key) for one in value]
    return value


def _kind(data: bytes) -> str:
    return next((kind for begin, kind in _KINDS if data.startswith(begin)), "application/octet-stream")
