"""What is kept of a request and its answer: whole where it is short, both ends where it is long."""

from __future__ import annotations

from fleetctl.engine.exchange import LONGEST, Exchange


def test_a_short_exchange_is_kept_whole_and_in_order() -> None:
    one = Exchange("POST", "/v1/x", {"prompt": "grüße"}, status=200)
    for piece in (b"data: 1\n\n", b"data: [DONE]\n\n"):
        one.hear(piece)
    one.over("it broke")
    told = one.told()
    assert told["request"] == {
        "method": "POST", "path": "/v1/x", "length": 22, "text": '{\n "prompt": "grüße"\n}'
    }  # fmt: skip
    assert (told["response"]["text"], told["response"]["status"]) == ("data: 1\n\ndata: [DONE]\n\n", 200)
    assert (told["response"]["length"], told["response"]["wrong"]) == (23, "it broke")


def test_of_a_long_one_both_ends_stay_and_its_length_is_told() -> None:
    one = Exchange("POST", "/v1/x", "q" * (2 * LONGEST))
    for _ in range(5):
        one.hear(b"begin" + b"-" * LONGEST + b"end")
    told = one.told()
    text = told["response"]["text"]
    assert told["response"]["length"] == 5 * (LONGEST + 8)
    assert text.startswith("begin-") and text.endswith("-end") and len(text) < LONGEST + 100
    assert "bytes left out" in text and "characters left out" in told["request"]["text"]
    assert told["request"]["length"] == 2 * LONGEST + 2
