"""Tokens, cost and the time that is left."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleetctl.errors import SpecError
from fleetctl.pool.batch import quota
from fleetctl.pool.batch.estimate import ANSWER, Pace, Price, Tally, parse_price, tokens_of
from fleetctl.pool.batch.quota import Stored
from fleetctl.pool.batch.results import Answer


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("/v1/embeddings", {"max_tokens": 9}, 0),
        ("/v1/completions", {"max_tokens": 9}, 9),
        ("/v1/chat/completions", {"max_tokens": 9, "max_completion_tokens": 5, "n": 3}, 15),
        ("/v1/chat/completions", {}, ANSWER),
        ("/v1/chat/completions", {"max_tokens": "many", "n": "few"}, ANSWER),
    ],
)
def test_tokens_follow_from_the_bytes_and_from_the_limit_of_the_answer(
    path: str, body: dict[str, Any], answer: int
) -> None:
    assert tokens_of(path, body, 400) == (101, answer)


def test_a_price_is_for_prompts_and_for_answers() -> None:
    assert parse_price("0.5/2").of(2_000_000, 1_000_000) == 3.0
    assert parse_price("1") == Price(1.0, 1.0)


@pytest.mark.parametrize("text", ["", "a/b", "1/2/3", "-1", "nan", "1/inf"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="what a million tokens cost"):
        parse_price(text)


def test_the_time_that_is_left_follows_from_the_last_minute() -> None:
    pace = Pace()
    assert pace.left(10) is None
    pace.add(0.0, Tally(answered=100))
    for second in range(1, 200):
        pace.add(second, Tally(answered=100 + second * (1 if second < 100 else 2)))
    assert pace.rates()[0] == pytest.approx(2.0)
    assert pace.left(100) == pytest.approx(50.0)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 2}, (3, 2)),
        ({"prompt_tokens": 3, "total_tokens": 3}, (3, 0)),
        ({"prompt_tokens": 3, "total_tokens": 9}, (3, 6)),
        ({"prompt_tokens": None}, (0, 0)),
        ([], (0, 0)),
        ({"prompt_tokens": "x"}, (0, 0)),
    ],
)
def test_tokens_are_counted_as_the_engine_tells_them(usage: Any, tokens: tuple[int, int]) -> None:
    assert Answer(1, 200, "", json.dumps({"usage": usage}).encode(), "").tokens() == tokens


GIB = 2**30


@pytest.mark.parametrize(
    ("waiting", "answers", "room", "full"),
    [
        (Stored(0, 0), Stored(0, 0), quota.MOST, ""),
        (Stored(1000, 102 * 10**6), Stored(0, 0), 3838, ""),
        (Stored(1000, 108 * 10**6), Stored(0, 0), 0, "queue"),
        (Stored(19_000, 10**6), Stored(0, 0), 660, ""),
        (Stored(19_660, 10**6), Stored(0, 0), 0, "queue"),
        (Stored(0, 0), Stored(1000, 322 * 10**6), 0, "answers"),  # one more of this size does not fit
        (Stored(5, 5000), Stored(1000, 322 * 10**6), 0, "queue"),  # those that wait are answered first
    ],
)
def test_lines_are_submitted_as_far_as_they_and_their_answers_have_room(
    waiting: Stored, answers: Stored, room: int, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota, "MOST", max(quota.MOST, room))
    assert quota.lines_with_room(GIB, waiting, answers, 1000.0) == (room, full)
    assert quota.lines_with_room(0, waiting, answers, 1000.0) == (quota.MOST, "")
