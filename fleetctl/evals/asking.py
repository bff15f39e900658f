"""Asking an engine the questions of a suite, several at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from fleetctl.engine.exchange import Exchange
from fleetctl.evals.judge import Called, Reply, Verdict
from fleetctl.evals.judging import Judge
from fleetctl.evals.scenario import Scenario, Suite
from fleetctl.evals.score import Outcome
from fleetctl.evals.scorers import cosine
from fleetctl.evals.tasks import Similar, Task

LARGEST = 32 << 20  # bytes of an answer


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
                verdict = judge.verdict(suite, scenario, await ask(client, body, endpoint.within))
            if verdict.right:
                verdict = replace(verdict, reply=replace(verdict.reply, exchange=None))  # nobody looks into that
            told[scenario.id] = verdict
            heard(verdict)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within), endpoint.client(concurrency) as client, asyncio.TaskGroup() as group:
                for scenario in suite.scenarios:
                    group.create_task(one(client, scenario))

    with Judge() as judge:
        asyncio.run(everything())
    return [told[scenario.id] for scenario in suite.scenarios if scenario.id in told]


@dataclass(frozen=True)
class Answered:
    """A task, what came, and 0 to 1 for it with the reason where it is not 1."""

    task: Task
    reply: Reply
    points: float
    why: str

    def outcome(self) -> Outcome:
        """The same as one question of a suite."""
        return Outcome(self.task.id, "", self.points, self.why, self.reply)


def run_tasks(
    tasks: Sequence[Task],
    endpoint: Endpoint,
    *,
    concurrency: int,
    seed: int,
    heard: Callable[[Answered], None],
    embeddings: Endpoint | None = None,
    within: float | None = None,
) -> list[Answered]:
    """Ask all tasks, ``concurrency`` at a time, and score the answers, in the order of the tasks.

    ``embeddings`` is a server of an embedding model, for rules that compare meanings. Nothing is raised for what an
    engine does not answer: it has 0 points, with the reason. After ``within`` seconds what is there by then is
    returned.
    """
    told: dict[str, Answered] = {}

    async def everything() -> None:
        free = asyncio.Semaphore(concurrency)

        async def one(client: httpx.AsyncClient, embedder: httpx.AsyncClient | None, task: Task) -> None:
            async with free:
                reply = await ask(client, task.request(endpoint.model, seed), endpoint.within)
                if reply.wrong or reply.finish_reason == "length":
                    scored = (0.0, reply.wrong or f"cut off after {task.max_tokens} tokens")
                elif isinstance(task.rule, Similar) and embedder is not None and embeddings is not None:
                    alike = await _alike(embedder, embeddings, task.rule, reply)
                    scored = judge.points(task.rule, reply.text, alike)
                else:
                    scored = judge.points(task.rule, reply.text)
            kept = replace(reply, exchange=None) if scored[0] >= 1 else reply
            told[task.id] = Answered(task, kept, *scored)
            heard(told[task.id])

        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(contextlib.suppress(TimeoutError))
            await stack.enter_async_context(asyncio.timeout(within))
            client = await stack.enter_async_context(endpoint.client(concurrency))
            embedder = await stack.enter_async_context(embeddings.client(concurrency)) if embeddings else None
            group = await stack.enter_async_context(asyncio.TaskGroup())
            for task in tasks:
                group.create_task(one(client, embedder, task))

    with Judge() as judge:
        asyncio.run(everything())
    return [told[task.id] for task in tasks if task.id in told]


async def _alike(client: httpx.AsyncClient, embeddings: Endpoint, rule: Similar, reply: Reply) -> float | None:
    """Cosine of the embeddings of answer and expectation; None when the server does not give them."""
    body = {"model": embeddings.model, "input": [reply.text or " ", rule.expected]}
    try:
        async with asyncio.timeout(embeddings.within), client.stream("POST", "/v1/embeddings", json=body) as answer:
            told = json.loads(b"".join([piece async for piece in _pieces(answer)]))
        one, other = (item["embedding"] for item in told["data"])
        return cosine(one, other)
    except (httpx.HTTPError, TimeoutError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None


async def ask(client: httpx.AsyncClient, body: dict[str, Any], within: float = 120.0) -> Reply:
    """One chat completion, streamed where ``body`` says so. After ``within`` seconds there is none, whatever came."""
    heard = Exchange("POST", "/v1/chat/completions", body)
    try:
        async with asyncio.timeout(within), client.stream("POST", heard.path, json=body) as answer:
            heard.status = answer.status_code
            if answer.status_code != 200:
                told = b"".join([piece async for piece in _pieces(answer, heard)]).decode("utf-8", "replace")
                reply = Reply(wrong=f"status {answer.status_code}: {told[:300]}")
            elif body.get("stream"):
                reply = await _streamed(answer, heard)
            else:
                reply = _whole(json.loads(b"".join([piece async for piece in _pieces(answer, heard)])))
    except httpx.HTTPError as error:
        reply = Reply(wrong=f"not answered: {str(error) or type(error).__name__}")
    except TimeoutError:
        reply = Reply(wrong=f"the answer did not end within {within:g} s")
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reply = Reply(wrong=f"the answer is not a chat completion: {str(error)[:200]}")
    heard.over(reply.wrong)
    return replace(reply, seconds=heard.seconds, exchange=heard)


async def _pieces(answer: httpx.Response, heard: Exchange | None = None) -> AsyncIterator[bytes]:
    """The body as it comes. ValueError for one that is larger than any answer."""
    size = 0
    async for piece in answer.aiter_bytes():
        if heard is not None:
            heard.hear(piece)
        size += len(piece)
        if size > LARGEST:
            raise ValueError(f"it has more than {LARGEST >> 20} MiB")
        yield piece


def _whole(body: dict[str, Any]) -> Reply:
    choice = body["choices"][0]
    message = choice["message"]
    calls = tuple(
        Called(str(call["function"]["name"]), str(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    )
    usage = body.get("usage") or {}
    return Reply(
        _text(message.get("content")),
        calls,
        str(choice.get("finish_reason") or ""),
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        tokens=int(usage.get("completion_tokens") or 0),
    )


def _text(content: Any) -> str:
    """The text of a message: a string, or parts of which some are text. TypeError for anything else."""
    if isinstance(content, list):
        return "".join(_text(part.get("text")) for part in content if part.get("type") in ("text", "output_text"))
    if content is not None and not isinstance(content, str):
        raise TypeError(f"its content is {type(content).__name__}")
    return content or ""


async def _streamed(answer: httpx.Response, heard: Exchange) -> Reply:
    """The deltas put together: a call is the pieces with the same index."""
    text: list[str] = []
    reason, done = "", False
    names: dict[int, list[str]] = {}
    arguments: dict[int, list[str]] = {}
    async for data in _events(answer, heard):
        if data == "[DONE]":
            done = True
            break
        choice = (json.loads(data).get("choices") or [{}])[0]
        delta = choice.get("delta") or {}
        text.append(_text(delta.get("content")))
        reason = str(choice.get("finish_reason") or reason)
        for call in delta.get("tool_calls") or ():
            function, index = call.get("function") or {}, int(call.get("index", 0))
            names.setdefault(index, []).append(_text(function.get("name")))
            arguments.setdefault(index, []).append(_text(function.get("arguments")))
    calls = tuple(Called("".join(names[index]), "".join(arguments[index])) for index in sorted(names))
    return Reply("".join(text), calls, reason, "" if done else "the stream ended without [DONE]")


async def _events(answer: httpx.Response, heard: Exchange) -> AsyncIterator[str]:
    rest: list[bytes] = []
    async for piece in _pieces(answer, heard):
        *whole, last = piece.split(b"\n")
        if whole:
            whole[0] = b"".join([*rest, whole[0]])
            rest = []
        rest.append(last)
        for line in whole:
            if line.startswith(b"data:"):
                yield line[5:].decode("utf-8", "replace").strip()
