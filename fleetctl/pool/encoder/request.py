"""What a client asks of /v1/embeddings, from the bytes that it sent: JSON or MessagePack. Pure.

The fields are those of OpenAI's API, and ``truncate_prompt_tokens`` as vLLM has it. A field that is not known is
refused: the vectors would be other ones than the client means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgpack
import orjson

from fleetctl.pool.encoder.errors import RequestError

MOST_INPUTS = 2048
"""Inputs of one request, as at OpenAI."""
FIELDS = ("model", "input", "encoding_format", "dimensions", "user", "truncate_prompt_tokens")
JSON = "application/json"
MSGPACK = "application/msgpack"
_MSGPACK = (MSGPACK, "application/x-msgpack", "application/vnd.msgpack")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request that is well-formed. Either ``texts`` or ``tokens`` has the inputs."""

    model: str
    texts: tuple[str, ...] = ()
    tokens: tuple[tuple[int, ...], ...] = ()
    encoding: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    truncate: int | None = None
    """At most so many tokens of each input; -1: as many as the model takes; None: a longer input is refused."""


def is_msgpack(content_type: str) -> bool:
    """Whether a content type, or the first of an Accept header, is MessagePack."""
    return content_type.partition(",")[0].partition(";")[0].strip().lower() in _MSGPACK


def answers_msgpack(content_type: str, accept: str) -> bool:
    """In what form to answer: as the client accepts, else as it asked."""
    named = accept.strip().lower()
    return is_msgpack(content_type) if named in ("", "*/*") else is_msgpack(accept)


def read_request(body: bytes, content_type: str) -> Wanted:
    """The request in ``body``. Raises RequestError, in words for the client."""
    value = _parsed(body, content_type)
    if not isinstance(value, dict):
        raise RequestError("the body has to be an object with model and input")
    unknown = sorted(str(key) for key in value if key not in FIELDS)
    if unknown:
        told = f"unknown: {', '.join(unknown)}; known are {', '.join(FIELDS)}"
        raise RequestError(told, parameter=unknown[0])
    model = value.get("model")
    if not isinstance(model, str) or not model:
        raise RequestError("model has to be the name of a model", parameter="model")
    texts, tokens = _inputs(value.get("input"))
    encoding = value.get("encoding_format")
    if encoding not in (None, "float", "base64"):
        raise RequestError("encoding_format is float or base64", parameter="encoding_format")
    truncate = _number(value, "truncate_prompt_tokens")
    if truncate is not None and truncate < 1 and truncate != -1:
        raise RequestError("truncate_prompt_tokens is a number of tokens, or -1", parameter="truncate_prompt_tokens")
    dimensions = _number(value, "dimensions")
    if dimensions is not None and dimensions < 1:
        raise RequestError("dimensions has to be 1 or more", parameter="dimensions")
    return Wanted(model, texts, tokens, encoding or "float", dimensions, truncate)


def _parsed(body: bytes, content_type: str) -> Any:
    if is_msgpack(content_type):
        try:
            return msgpack.unpackb(body)
        except (msgpack.UnpackException, ValueError) as error:
            raise RequestError(f"the body is not MessagePack: {error or 'it ends early'}") from None
    if content_type.partition(";")[0].strip().lower() not in ("", JSON):
        raise RequestError(f"a body is {JSON} or {MSGPACK}, not {content_type}", status=415)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from None


def _inputs(value: Any) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    if isinstance(value, str):
        return (value,), ()
    if isinstance(value, list) and value:
        if len(value) > MOST_INPUTS and not _are_numbers(value):
            told = f"input has {len(value)} items, {MOST_INPUTS} are the most of one request"
            raise RequestError(told, parameter="input")
        if all(isinstance(one, str) for one in value):
            return tuple(value), ()
        if _are_numbers(value):
            return (), (tuple(value),)
        if all(isinstance(one, list) and one and _are_numbers(one) for one in value):
            return (), tuple(map(tuple, value))
    raise RequestError(
        "input has to be a text, a list of texts, a list of token numbers, or a list of such lists; none may be empty",
        parameter="input",
    )


def _are_numbers(values: list[Any]) -> bool:
    return all(type(one) is int for one in values)  # True and False are no tokens


def _number(value: dict[Any, Any], name: str) -> int | None:
    number = value.get(name)
    if number is not None and type(number) is not int:
        raise RequestError(f"{name} has to be a whole number", parameter=name)
    return number
