"""Asking an engine the questions of a suite, several at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from fleetctl.evals.judge import Called, Reply, Verdict, judge
from fleetctl.evals.scenario import Scenario, Suite


@dataclass(frozen=True)
class Endpoint:
    """Where to ask: ``url`` without /v1; ``socket`` is a tunnel that leads there. ``within``: seconds for an answer."""

    url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    socket: Path | None = None
    within: float = 120.0
    max_tokens: int = 2048

    def client(self, concurrency: int) -> httpx.AsyncClient:
        """A client with room for so many requests at a time."""
        limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket) if self.socket else None, limits=limits)
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return httpx.AsyncClient(
            base_url=self.url, transport=transport, headers=headers, timeout=self.within, trust_env=False
        )


def run_suite(
    suite: Suite,
    endpoint: Endpoint,
    *,
    concurrency: int,
    seed: int,
    heard: Callable[[Verdict], None],
    within: float | None = None,
) -> list[Verdict]:
    """Ask everything, ``concurrency`` at a time, and judge it. Verdicts come in the order of the suite.

    ``heard`` is told of each as it comes. What an engine does not answer is wrong, with the reason; nothing is raised.
    After ``within`` seconds what is there by then is returned.
    """
    told: dict[str, Verdict] = {}

    async def everything() -> None:
        free = asyncio.Semaphore(concurrency)

        async def one(client: httpx.AsyncClient, scenario: Scenario) -> None:
            async with free:
                body = suite.request(scenario, endpoint.model, max_tokens=endpoint.max_tokens, seed=seed)
                verdict = judge(suite, scenario, await ask(client, body))
            told[scenario.id] = verdict
            heard(verdict)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within), endpoint.client(concurrency) as client, asyncio.TaskGroup() as group:
                for scenario in suite.scenarios:
                    group.create_task(one(client, scenario))

    asyncio.run(everything())
    return [told[scenario.id] for scenario in suite.scenarios if scenario.id in told]


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> Reply:
    """One chat completion, streamed where ``body`` says so."""
    began = time.monotonic()
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                told = (await answer.aread()).decode("utf-8", "replace")
                return Reply(wrong=f"status {answer.status_code}: {told[:300]}", seconds=time.monotonic() - began)
            if body.get("stream"):
                reply = await _streamed(answer)
            else:
                reply = _whole(json.loads(await answer.aread()))
    except httpx.HTTPError as error:
        return Reply(wrong=f"not answered: {str(error) or type(error).__name__}", seconds=time.monotonic() - began)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        return Reply(wrong=f"the answer is not a chat completion: {error!r}", seconds=time.monotonic() - began)
    return Reply(reply.text, reply.calls, reply.finish_reason, reply.wrong, time.monotonic() - began)


def _whole(body: dict[str, Any]) -> Reply:
    choice = body["choices"][0]
    message = choice["message"]
    calls = tuple(
        Called(str(call["function"]["name"]), str(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    )
    return Reply(message.get("content") or "", calls, str(choice.get("finish_reason") or ""))


async def _streamed(answer: httpx.Response) -> Reply:
    """The deltas put together: a call is the pieces with the same index."""
    text, reason, done = "", "", False
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    async for data in _events(answer):
        if data == "[DONE]":
            done = True
            break
        choice = (json.loads(data).get("choices") or [{}])[0]
        delta = choice.get("delta") or {}
        text += delta.get("content") or ""
        reason = choice.get("finish_reason") or reason
        for call in delta.get("tool_calls") or ():
            function, index = call.get("function") or {}, int(call.get("index", 0))
            names[index] = names.get(index, "") + (function.get("name") or "")
            arguments[index] = arguments.get(index, "") + (function.get("arguments") or "")
    calls = tuple(Called(names[index], arguments[index]) for index in sorted(names))
    return Reply(text, calls, reason, "" if done else "the stream ended without [DONE]")


async def _events(answer: httpx.Response) -> AsyncIterator[str]:
    async for line in answer.aiter_lines():
        if line.startswith("data:"):
            yield line[5:].strip()
