"""What a client gets back: JSON as OpenAI has it, or the same in MessagePack with vectors as raw bytes. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgpack
import orjson

from fleetctl.pool.encoder.errors import RequestError
from fleetctl.pool.encoder.request import JSON, MSGPACK

if TYPE_CHECKING:
    from numpy.typing import NDArray


def embeddings(
    vectors: NDArray[Any], model: str, tokens: int, encoding: Literal["float", "base64"], as_msgpack: bool
) -> tuple[bytes, str]:
    """The answer and its content type. In MessagePack, and as Base64, a vector is little-endian float32."""
    data = vectors if encoding == "float" and not as_msgpack else _raw(vectors)
    if encoding == "base64" and not as_msgpack:
        data = [base64.b64encode(one).decode() for one in data]
    listed = [{"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(data)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return packed({"object": "list", "data": listed, "model": model, "usage": usage}, as_msgpack)


def error(problem: RequestError, as_msgpack: bool) -> tuple[bytes, str]:
    """The body of an answer with an error, and its content type."""
    told = {"message": problem.message, "type": problem.kind, "param": problem.parameter, "code": problem.status}
    return packed({"error": told}, as_msgpack)


def packed(content: Mapping[str, Any], as_msgpack: bool) -> tuple[bytes, str]:
    """``content`` in the form that the client reads, and its content type."""
    if as_msgpack:
        return bytes(msgpack.packb(content)), MSGPACK
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), JSON


def _raw(vectors: NDArray[Any]) -> list[bytes]:
    return [one.tobytes() for one in vectors.astype("<f4", copy=False)]
