"""The gate of long context: what it asks, and each way in which an engine fails it."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from planned import layout

from fleetctl.engine.client import EngineClient, EngineError
from fleetctl.gates.canary import pass_canary, wanted_tokens
from fleetctl.spec.fleet_gates import LongContextGate

(ENGINE, *_) = layout("replicas").engines  # a context of 262,144 tokens


class Model:
    """Counts some characters as a token, and finds the phrase; ``fault`` is what it does wrong."""

    def __init__(self, fault: str = "", characters: int = 4, context: int = 262_144) -> None:
        self.fault = fault
        self.characters = characters
        self.context = context
        self.prompts: list[int] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        prompt = body["messages"][0]["content"]
        tokens = len(prompt) // self.characters
        self.prompts.append(tokens)
        if tokens + body["max_tokens"] > self.context:
            return httpx.Response(400, json={"error": "the prompt is too long"})
        text = re.search(r"phrase is (.*)\.\n", prompt)
        message: dict[str, Any] = {"content": text[1] if text else "?"}
        if self.fault == "forgets" and tokens > 5000:
            message["content"] = "nothing to report"
        if self.fault == "silent" and tokens > 5000:
            message["content"] = ""
        if self.fault == "breaks" and tokens > 5000:
            return httpx.Response(500, json={"error": "out of memory"})
        counted = {"uncounted": 0, "cuts": min(tokens, 4000)}.get(self.fault, tokens)
        usage = {"prompt_tokens": counted}
        return httpx.Response(200, json={"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})


def asked(model: Model, monkeypatch: pytest.MonkeyPatch, **gate: Any) -> dict[str, Any]:
    monkeypatch.setattr(httpx, "HTTPTransport", lambda **_: httpx.MockTransport(model))
    with EngineClient("http://engine", timeout=5) as client:
        return pass_canary(ENGINE, LongContextGate(**gate), client)


@pytest.mark.parametrize(("tokens", "wanted"), [(None, 196_608), (50_000, 50_000), (10**6, 262_144 - 512 - 128)])
def test_the_prompt_is_as_long_as_asked_and_fits(tokens: int | None, wanted: int) -> None:
    assert wanted_tokens(ENGINE, LongContextGate(tokens=tokens)) == wanted


def test_a_long_prompt_is_read_and_the_phrase_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    told = asked(model, monkeypatch, tokens=50_000)
    assert 45_000 < told["tokens"] == model.prompts[-1] <= 50_000


@pytest.mark.parametrize("characters", [1, 2, 4])
def test_in_a_short_context_no_prompt_is_longer_than_it(characters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(characters=characters, context=1024)
    short = ENGINE.model_copy(update={"context": 1024})
    monkeypatch.setattr(httpx, "HTTPTransport", lambda **_: httpx.MockTransport(model))
    with EngineClient("http://engine", timeout=5) as client:
        told = pass_canary(short, LongContextGate(max_tokens=16), client)
    assert 600 < told["tokens"] <= 768


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("forgets", "did not find what stands in the middle"),
        ("silent", "came back without text"),
        ("breaks", "status 500"),
        ("uncounted", "does not say how many tokens"),
        ("cuts", "it read 4,000"),
    ],
)
def test_an_engine_that_cannot_do_it_fails_with_the_reason(
    fault: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineError, match=said):
        asked(Model(fault), monkeypatch, tokens=50_000)


def test_where_finding_is_not_asked_for_any_text_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(Model("forgets"), monkeypatch, tokens=50_000, find=False)["tokens"] > 45_000
