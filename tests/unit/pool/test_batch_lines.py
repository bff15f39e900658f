"""Files of requests: what is taken, what is refused and with which words, and which job a file is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from batchworker import openai
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.pool.batch.job import name_of, pack_names, unpack_names
from fleetctl.pool.batch.lines import BatchFileError, Targets, read

ANY = Targets({}, {})
FLEET = Targets({"qwen": "qwen", "Qwen/Qwen3": "qwen", "minilm": "minilm"}, {"qwen": "Qwen/Qwen3"})
BODY = {"model": "qwen", "input": "a"}
ROW = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": BODY}


def row(**change: Any) -> bytes:
    return json.dumps({**ROW, **change}).encode()


def test_both_formats_are_read_and_a_line_is_what_an_editor_counts() -> None:
    one = read("a.jsonl", b"\xef\xbb\xbf" + row() + b"\r\n\n" + row(custom_id="b") + b"\n\n", FLEET)
    assert [(line.number, line.custom_id, line.model, line.path) for line in one.lines] == [
        (1, "a", "qwen", "/v1/embeddings"),
        (3, "b", "qwen", "/v1/embeddings"),
    ]
    assert one.body(one.lines[1]) == BODY
    plain = b'{"model": "minilm", "input": "x"}\n{"model": "qwen", "messages": []}\n{"model": "qwen", "prompt": "x"}'
    other = read("b.jsonl", plain, FLEET)
    assert [(line.custom_id, line.path) for line in other.lines] == [
        ("line-1", "/v1/embeddings"),
        ("line-2", "/v1/chat/completions"),
        ("line-3", "/v1/completions"),
    ]


def test_a_model_for_all_lines_is_named_as_its_engines_know_it() -> None:
    chosen = Targets(FLEET.names, FLEET.served_as, "qwen")
    file = read("a.jsonl", b'{"input": "x"}\n{"model": "whatever", "input": "y"}', chosen)
    assert [file.body(line)["model"] for line in file.lines] == ["Qwen/Qwen3", "Qwen/Qwen3"]
    assert {line.model for line in file.lines} == {"qwen"}


def test_an_adapter_is_a_model_of_its_own_that_its_base_answers() -> None:
    names = {**FLEET.names, "contracts": "qwen"}
    text = b'{"model": "contracts", "prompt": "x"}'
    named = read("a.jsonl", text, Targets(names, FLEET.served_as))
    chosen = read("a.jsonl", b'{"prompt": "x"}', Targets(names, FLEET.served_as, "qwen", "contracts"))
    assert [(file.lines[0].model, file.body(file.lines[0])["model"]) for file in (named, chosen)] == [
        ("qwen", "contracts"),
        ("qwen", "contracts"),
    ]
    assert name_of(chosen) != name_of(read("a.jsonl", b'{"prompt": "x"}', Targets(names, FLEET.served_as, "qwen")))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "no JSON: Expecting property name enclosed in double quotes at column 2"),
        (b"\xff", "it is not UTF-8 text"),
        (b"[1]", "a request is a JSON object"),
        (b'{"a":' * 100_000, "too many brackets within each other"),
        (row(body={"model": "qwen", "input": float("nan")}), "NaN is no number in JSON"),
        (b'{"custom_id": "a", "custom_id": "b"}', "'custom_id' is there twice"),
        (row(extra=1), "'extra' is nothing that the batch format has"),
        (b'{"custom_id": "z", "body": {}}', "method, url missing; a line of the batch format has custom_id, method"),
        (row(custom_id=""), "custom_id has to be text of 1 to 512 characters"),
        (row(custom_id=7), "custom_id has to be text of 1 to 512 characters"),
        (row(method="GET"), "method is 'GET'; it has to be POST"),
        (row(url="/v1/files"), "url is '/v1/files'; it has to be one of /v1/chat/completions"),
        (row(url=["x"]), "url is"),
        (row(body=[]), "body has to be a JSON object"),
        (row(body={"model": "qwen"}), "the body has no input"),
        (row(body={**BODY, "stream": True}), "the body asks for a stream"),
        (row(body={"input": "a"}), "the body names no model; name one for all lines with --model"),
        (row(body={**BODY, "model": "gpt-4"}), "no model 'gpt-4'; there is Qwen/Qwen3, minilm, qwen"),
        (row(body={**BODY, "model": {}}), "no model '{}'"),
    ],
)
def test_a_line_that_cannot_be_sent_is_refused_by_its_number(line: bytes, said: str) -> None:
    with pytest.raises(BatchFileError) as refused:
        read("in.jsonl", row(custom_id="good") + b"\n" + line + b"\n", FLEET)
    assert refused.value.message.startswith(f"in.jsonl:2: {said}")
    assert refused.value.hint == "1 line of in.jsonl cannot be submitted; nothing was"


def test_all_lines_that_are_wrong_are_told_and_a_name_that_is_there_twice_with_both() -> None:
    with pytest.raises(BatchFileError) as refused:
        read("in.jsonl", row() + b"\n" + row(method="GET", custom_id="b") + b"\n" + row() + b"\n", FLEET)
    assert refused.value.message.splitlines() == [
        "in.jsonl:2: method is 'GET'; it has to be POST",
        "in.jsonl:3: custom_id 'a' is that of line 1 too",
    ]
    with pytest.raises(BatchFileError, match="and 180 more"):
        read("in.jsonl", b"{}\n" * 200, FLEET)


@pytest.mark.parametrize("data", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_a_file_without_a_request_is_refused(data: bytes) -> None:
    with pytest.raises(BatchFileError, match="has no request in it"):
        read("in.jsonl", data, FLEET)


def test_a_body_of_the_plain_format_has_to_tell_where_it_goes() -> None:
    with pytest.raises(BatchFileError, match="in:1: a body has one of messages, prompt, input, documents"):
        read("in", b'{"model": "qwen", "messages": [], "prompt": ""}', FLEET)


@given(st.binary(max_size=200))
def test_whatever_the_bytes_are_they_are_taken_or_refused_in_words(data: bytes) -> None:
    try:
        file = read("in", data, ANY)
    except BatchFileError as error:
        assert error.message.startswith("in")
    else:
        assert all(file.body(line) for line in file.lines)


def test_a_job_is_its_requests_and_where_they_go_and_not_what_its_file_is_called() -> None:
    same = name_of(read("a.jsonl", openai("x", "y"), ANY))
    assert name_of(read("/tmp/b.jsonl", openai("x", "y") + b"\n\n", ANY)) == same
    others = [
        read("a.jsonl", openai("x", "z"), ANY),
        read("a.jsonl", openai("y", "x"), ANY),
        read("a.jsonl", openai("x", "y"), Targets({}, {}, "m")),
        read("a.jsonl", openai("x", "y"), Targets({"m": "other"}, {})),
        read("a.jsonl", openai("x"), ANY),
    ]
    assert len({same, *map(name_of, others)}) == 6


def test_the_names_of_lines_come_back_in_their_order() -> None:
    file = read("a", b"\n" + openai(*"abc"), ANY)
    assert list(unpack_names(pack_names(file)).items()) == [(2, "c1"), (3, "c2"), (4, "c3")]
