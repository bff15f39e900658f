"""What a client may ask of /v1/embeddings, and what it is told otherwise."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("orjson")

from fleetctl.pool.encoder.errors import RequestError
from fleetctl.pool.encoder.request import (
    JSON,
    MOST_INPUTS,
    MSGPACK,
    Wanted,
    answers_msgpack,
    read_request,
)


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({"input": "a"}, Wanted("m", ("a",))),
        ({"input": ["a", ""]}, Wanted("m", ("a", ""))),
        ({"input": [1, 2]}, Wanted("m", (), ((1, 2),))),
        ({"input": [[1], [2, 3]]}, Wanted("m", (), ((1,), (2, 3)))),
        ({"input": "a", "encoding_format": "base64", "user": "u"}, Wanted("m", ("a",), encoding="base64")),
        ({"input": "a", "encoding_format": None, "dimensions": 64}, Wanted("m", ("a",), dimensions=64)),
        ({"input": "a", "truncate_prompt_tokens": -1}, Wanted("m", ("a",), truncate=-1)),
    ],
)
def test_a_request_is_the_same_in_json_and_in_messagepack(asked: dict[str, Any], wanted: Wanted) -> None:
    whole = {"model": "m", **asked}
    assert read_request(json.dumps(whole).encode(), JSON) == wanted
    assert read_request(json.dumps(whole).encode(), "application/json; charset=utf-8") == wanted
    assert read_request(msgpack.packb(whole), MSGPACK) == wanted


@pytest.mark.parametrize(
    ("asked", "said", "parameter"),
    [
        ([], "has to be an object", None),
        ({"input": "a"}, "name of a model", "model"),
        ({"model": "m"}, "input has to be", "input"),
        ({"model": "m", "input": []}, "none may be empty", "input"),
        ({"model": "m", "input": [[]]}, "none may be empty", "input"),
        ({"model": "m", "input": ["a", 1]}, "input has to be", "input"),
        ({"model": "m", "input": [True]}, "input has to be", "input"),
        ({"model": "m", "input": {"text": "a"}}, "input has to be", "input"),
        ({"model": "m", "input": ["a"] * (MOST_INPUTS + 1)}, "2049 items, 2048 are the most", "input"),
        ({"model": "m", "input": "a", "encoding_format": "int8"}, "float or base64", "encoding_format"),
        ({"model": "m", "input": "a", "dimensions": 0}, "1 or more", "dimensions"),
        ({"model": "m", "input": "a", "dimensions": "x"}, "whole number", "dimensions"),
        ({"model": "m", "input": "a", "truncate_prompt_tokens": -2}, "or -1", "truncate_prompt_tokens"),
        ({"model": "m", "input": "a", "normalize": False}, "unknown: normalize; known are model, input", "normalize"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_parameter(asked: Any, said: str, parameter: str | None) -> None:
    for data, kind in ((json.dumps(asked).encode(), JSON), (msgpack.packb(asked), MSGPACK)):
        with pytest.raises(RequestError, match=said) as caught:
            read_request(data, kind)
        assert (caught.value.status, caught.value.parameter) == (400, parameter)


@given(data=st.binary(max_size=200), kind=st.sampled_from([JSON, MSGPACK]))
def test_other_bytes_are_refused_in_words(data: bytes, kind: str) -> None:
    with pytest.raises(RequestError):
        read_request(data, kind)


def test_bodies_that_are_nested_without_end_are_refused() -> None:
    for data, kind in ((b"[" * 100_000, JSON), (b"\x91" * 100_000, MSGPACK)):
        with pytest.raises(RequestError):
            read_request(data, kind)


def test_a_body_of_another_kind_is_named() -> None:
    with pytest.raises(RequestError, match="not text/plain") as caught:
        read_request(b"{}", "text/plain")
    assert caught.value.status == 415


@pytest.mark.parametrize(
    ("sent", "accept", "packed"),
    [
        (JSON, "", False),
        (JSON, "*/*", False),
        (MSGPACK, "", True),
        (MSGPACK, "*/*", True),
        (JSON, MSGPACK, True),
        (MSGPACK, JSON, False),
        (JSON, "application/x-msgpack, application/json;q=0.5", True),
    ],
)
def test_the_answer_comes_as_the_client_accepts_it_else_as_it_asked(sent: str, accept: str, packed: bool) -> None:
    assert answers_msgpack(sent, accept) is packed
