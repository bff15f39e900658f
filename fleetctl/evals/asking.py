"""Asking an engine the questions of a suite, several at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from fleetctl.evals.judge import Called, Reply, Verdict, judge
from fleetctl.evals.scenario import Scenario, Suite
from fleetctl.evals.scorers import cosine, points
from fleetctl.evals.tasks import Similar, Task


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


@dataclass(frozen=True)
class Answered:
    """A task, what came, and 0 to 1 for it with the reason where it is not 1."""

    task: Task
    reply: Reply
    points: float
    why: str


def run_tasks(
    tasks: Sequence[Task],
    endpoint: Endpoint,
    *,
    concurrency: int,
    seed: int,
    heard: Callable[[Answered], None],
    embeddings: Endpoint | None = None,
) -> list[Answered]:
    """Ask all tasks, ``concurrency`` at a time, and score the answers, in the order of the tasks.

    ``embeddings`` is a server of an embedding model, for rules that compare meanings. Nothing is raised for what an
    engine does not answer: it has 0 points, with the reason.
    """
    told: dict[str, Answered] = {}

    async def everything() -> None:
        free = asyncio.Semaphore(concurrency)

        async def one(client: httpx.AsyncClient, embedder: httpx.AsyncClient | None, task: Task) -> None:
            async with free:
                reply = await ask(client, task.request(endpoint.model, seed))
                if reply.wrong or reply.finish_reason == "length":
                    scored = (0.0, reply.wrong or f"cut off after {task.max_tokens} tokens")
                elif isinstance(task.rule, Similar) and embedder is not None and embeddings is not None:
                    scored = points(task.rule, reply.text, await _alike(embedder, embeddings.model, task.rule, reply))
                else:
                    scored = points(task.rule, reply.text)
            told[task.id] = Answered(task, reply, *scored)
            heard(told[task.id])

        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(endpoint.client(concurrency))
            embedder = await stack.enter_async_context(embeddings.client(concurrency)) if embeddings else None
            group = await stack.enter_async_context(asyncio.TaskGroup())
            for task in tasks:
                group.create_task(one(client, embedder, task))

    asyncio.run(everything())
    return [told[task.id] for task in tasks]


async def _alike(client: httpx.AsyncClient, model: str, rule: Similar, reply: Reply) -> float | None:
    """Cosine of the embeddings of answer and expectation; None when the server does not give them."""
    body = {"model": model, "input": [reply.text or " ", rule.expected]}
    try:
        answer = await client.post("/v1/embeddings", json=body)
        one, other = (item["embedding"] for item in answer.json()["data"])
        return cosine(one, other)
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None


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
    return replace(reply, seconds=time.monotonic() - began)


def _whole(body: dict[str, Any]) -> Reply:
    choice = body["choices"][0]
    message = choice["message"]
    calls = tuple(
        Called(str(call["function"]["name"]), str(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    )
    usage = body.get("usage") or {}
    return Reply(
        message.get("content") or "",
        calls,
        str(choice.get("finish_reason") or ""),
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        tokens=int(usage.get("completion_tokens") or 0),
    )


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
