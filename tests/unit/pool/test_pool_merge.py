"""Requests for embeddings as one call, and its answer as theirs; MessagePack for engines that speak JSON."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.pool.wire import WireError
from fleetctl.pool.worker import convert, merge
from fleetctl.pool.worker.pace import tokens_in

PATH = "/v1/embeddings"
JSON = "application/json"


def read(**body: Any) -> merge.Mergeable | None:
    """A request's inputs and key."""
    return merge.mergeable(PATH, JSON, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([], None),
        (["a", 1], None),
        ([[1], "a"], None),
        ([True], None),
        ([[]], None),
        (None, None),
        ({"text": "a"}, None),
    ],
)
def test_inputs_of_all_kinds_are_lists(given: Any, inputs: list[Any] | None) -> None:
    found = read(model="m", input=given)
    assert (found.inputs if found else None) == inputs


def test_only_what_is_alike_has_the_same_key() -> None:
    first = read(model="m", input="a", user="anna")
    assert first is not None
    alike = read(input=["b", "c"], model="m")
    assert alike is not None
    assert alike.key == first.key
    for other in (read(model="m", input="a", dimensions=64), read(model="n", input="a"), read(model="m", input=[1])):
        assert other is not None
        assert other.key != first.key


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("/v1/rerank", JSON, b'{"input":"a"}'),
        (PATH, "text/plain", b'{"input":"a"}'),
        (PATH, JSON, b"{"),
        (PATH, JSON, b"[]"),
        (PATH, JSON, b"[" * 100_000),
        (PATH, JSON, b"\xff"),
    ],
)
def test_what_is_odd_goes_alone(path: str, kind: str, body: bytes) -> None:
    assert merge.mergeable(path, kind, body) is None


def engine_answer(inputs: list[Any], tokens: int, **more: Any) -> bytes:
    """What an engine says."""
    data = [
        {"object": "embedding", "index": n, "embedding": [0.25, float(len(str(one)))]} for n, one in enumerate(inputs)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json.dumps({"object": "list", "data": data, "model": "m", "usage": usage, **more}).encode()


@given(texts=st.lists(st.lists(st.text(max_size=20), min_size=1, max_size=4), min_size=1, max_size=6))
def test_everybody_gets_the_vectors_of_own_inputs_and_the_tokens_add_up(texts: list[list[str]]) -> None:
    requests = [read(model="m", input=one) for one in texts]
    merged = [one for one in requests if one is not None]
    body = json.loads(merge.joined(merged))
    assert body == {"model": "m", "input": [text for one in texts for text in one]}
    answer = engine_answer(body["input"], 101)
    parts = merge.split(answer, [len(one) for one in texts], [1 + len(one) for one in texts])
    assert parts is not None
    read_parts = [json.loads(part) for part in parts]
    for part, own in zip(read_parts, texts, strict=True):
        assert part["data"] == json.loads(engine_answer(own, 0))["data"]
        assert (part["object"], part["model"]) == ("list", "m")
    assert sum(part["usage"]["total_tokens"] for part in read_parts) == 101


def test_base64_vectors_and_spaces_are_no_hindrance() -> None:
    answer = b'{ "data" : [ {"embedding": "AAA+/=", "index" : 0}, {"embedding":"BBB","index":1} ], "model":"m"}'
    parts = merge.split(answer, [1, 1], [1, 1])
    assert parts is None or [json.loads(part)["data"][0]["index"] for part in parts] == [0, 0]
    tight = b'{"data":[{"embedding":"AAA+/=","index":0},{"embedding":"BBB","index":1}]}'
    parts = merge.split(tight, [1, 1], [1, 1])
    assert parts is not None
    assert [json.loads(part)["data"] for part in parts] == [
        [{"embedding": "AAA+/=", "index": 0}],
        [{"embedding": "BBB", "index": 0}],
    ]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"not JSON",
        b'{"data":[]}',
        b'{"data":[{"index":0}]}',
        b'{"data":[{"index":1},{"index":0}]}',
        b'{"data":[{"index":0},{"index":1},{"index":2}]}',
        b'{"data":[{"index":0,"nested":{"index":1}},{"index":1}]}',
        b'{"data":[{"index":0},{"index":1}',
        b'{"data":[{"embedding":[1]},{"embedding":[2]}]}',
    ],
)
def test_an_answer_that_is_not_as_expected_is_not_split(answer: bytes) -> None:
    assert merge.split(answer, [1, 1], [1, 1]) is None


def test_messagepack_is_merged_and_split_without_json() -> None:
    bodies = [msgpack.packb({"model": "m", "input": text}) for text in ("a", ["b", "c"])]
    requests = [merge.mergeable(PATH, convert.MSGPACK, body, True) for body in bodies]
    merged = [one for one in requests if one is not None]
    plain = merge.mergeable(PATH, convert.MSGPACK, bodies[0])
    assert plain is not None
    assert len({one.key for one in merged}) == 1
    assert plain.key != merged[0].key  # its client wants JSON
    assert msgpack.unpackb(merge.joined(merged)) == {"model": "m", "input": ["a", "b", "c"]}
    data = [{"object": "embedding", "index": n, "embedding": bytes([n] * 8)} for n in range(3)]
    answer = msgpack.packb({"object": "list", "data": data, "model": "m", "usage": {"total_tokens": 9}})
    assert tokens_in(answer) == 9
    parts = merge.split(answer, [1, 2], [1, 2], True)
    assert parts is not None
    first, second = [msgpack.unpackb(part) for part in parts]
    assert first == {"object": "list", "data": data[:1], "model": "m", "usage": {"total_tokens": 3}}
    assert [(one["index"], one["embedding"]) for one in second["data"]] == [(0, bytes([1] * 8)), (1, bytes([2] * 8))]
    for wrong in (b"", b"\xc1", answer[:-3], msgpack.packb({"data": data[1:]}), msgpack.packb([1])):
        assert merge.split(wrong, [1, 2], [1, 2], True) is None


def test_bytes_become_what_engines_take_in_json() -> None:
    image = b"\x89PNG\r\n\x1a\n"
    body = {"messages": [{"content": [{"image_url": {"url": image}}, {"input_audio": {"data": b"abc"}}]}], "n": 1}
    content = json.loads(convert.to_json(msgpack.packb(body)))["messages"][0]["content"]
    assert content[0]["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="
    assert content[1]["input_audio"]["data"] == "YWJj"


@given(body=st.binary(max_size=200))
def test_whatever_comes_as_messagepack_is_json_or_refused(body: bytes) -> None:
    try:
        json.loads(convert.to_json(body))
    except WireError as error:
        assert "MessagePack" in error.message


def test_an_answer_that_is_no_json_is_refused() -> None:
    assert msgpack.unpackb(convert.from_json(b'{"a":[1.5]}')) == {"a": [1.5]}
    vectors = b'{"data":[{"embedding":[1.5,-2]},{"embedding":"AADAPwAAAMA="}]}'
    raw = b"\x00\x00\xc0\x3f\x00\x00\x00\xc0"
    assert msgpack.unpackb(convert.from_json(vectors)) == {"data": [{"embedding": raw}, {"embedding": raw}]}
    with pytest.raises(WireError, match="cannot be put into MessagePack"):
        convert.from_json(b"{")
