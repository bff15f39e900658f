"""One endpoint under test: how it counts and what it understands, and loads sent to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

from fleetctl.bench.connection import Asker
from fleetctl.bench.endpoint import Endpoint
from fleetctl.bench.exchange import Exchange, Request, Window
from fleetctl.bench.gauges import Gauges
from fleetctl.bench.knee import Point
from fleetctl.bench.load import Run, closed_loop, open_loop, poisson, run
from fleetctl.bench.mix import Mix
from fleetctl.bench.prompts import Counting, Dialect, Prompts, probe_words
from fleetctl.bench.summary import Summary, Target, summarize
from fleetctl.errors import FleetError

LOOK_EVERY = 0.25  # seconds between two looks at the engine's gauges
_TIME_TO_MEET = 120.0  # seconds for each of the first requests: an engine may compile something for them


class EndpointError(FleetError):
    """An endpoint is not there, or is none of the OpenAI API."""


@dataclass(frozen=True)
class Met:
    """What was found out about an endpoint before any load is sent to it."""

    dialect: Dialect
    counting: Counting
    context: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """One load and its figures; the gauges are those of the engine itself, empty where it has none."""

    summary: Summary
    gauges: Gauges

    def point(self, concurrency: int) -> Point:
        """As the search for a knee has it."""
        told, seen = self.summary, self.gauges
        return Point(
            concurrency,
            told.tokens_out_rate or told.requests_per_minute / 60,
            ttft=told.ttft.p50 if told.ttft else None,
            tpot=told.tpot.p50 if told.tpot else None,
            total=told.total.mean if told.total else None,
            requests=told.requests,
            running=max(seen.running, default=None),
            waiting=sum(seen.waiting) / len(seen.waiting) if seen.waiting else None,
            cache=max(seen.cache, default=None),
        )


class Seen:
    """What the engine's gauges said, and when (``time.perf_counter``)."""

    def __init__(self) -> None:
        self.at: list[tuple[float, Gauges]] = []

    def add(self, now: float, text: str) -> None:
        """Take one page of metrics."""
        gauges = Gauges()
        gauges.add(text)
        self.at.append((now, gauges))

    def between(self, begin: float, end: float) -> Gauges:
        """All readings of a stretch of time."""
        together = Gauges()
        for now, one in self.at:
            if begin <= now < end:
                together.running += one.running
                together.waiting += one.waiting
                together.cache += one.cache
        return together


Work = Callable[[Asker], Awaitable[Run]]


class Bench:
    """Sends loads of one mix to one endpoint. ``timeout`` is in seconds for a whole answer."""

    def __init__(
        self,
        endpoint: Endpoint,
        mix: Mix,
        *,
        model: str | None = None,
        seed: int = 0,
        timeout: float = 600.0,
        stream: bool = True,
        gauges: bool = True,
    ) -> None:
        self.endpoint = endpoint
        self.mix = mix
        self.seed = seed
        self.timeout = timeout
        self._gauges = gauges
        self.met = run(_meet(endpoint, mix, model))
        if self.met.context is not None:
            mix = _within(mix, self.met.context)
        self.prompts = Prompts(mix, self.met.dialect, self.met.counting, seed=seed, stream=stream)

    def closed(self, clients: int, *, warm_up: float, duration: float, target: Target | None = None) -> Measured:
        """So many clients, each with one request at a time. Raises LoadError when nothing is answered."""

        async def work(asker: Asker) -> Run:
            return await closed_loop(asker, self.prompts, clients, warm_up=warm_up, duration=duration)

        return self._measured(work, target)

    def open(self, rate: float, *, warm_up: float, duration: float, target: Target | None = None) -> Measured:
        """So many requests a second, at random times. Raises LoadError when nothing is answered."""
        return self.arriving(
            zip(poisson(rate, self.seed), self.prompts, strict=False),
            warm_up=warm_up,
            duration=duration,
            target=target,
            rate=rate,
        )

    def arriving(
        self,
        arrivals: Iterable[tuple[float, Request]],
        *,
        warm_up: float,
        duration: float,
        target: Target | None = None,
        rate: float | None = None,
    ) -> Measured:
        """Requests at given times (seconds from the begin)."""

        async def work(asker: Asker) -> Run:
            return await open_loop(asker, arrivals, warm_up=warm_up, duration=duration, rate=rate)

        return self._measured(work, target)

    def _measured(self, work: Work, target: Target | None) -> Measured:
        async def watched() -> tuple[Run, Seen]:
            async with _watching(self.endpoint, self._gauges) as seen:
                ran = await work(Asker(self.endpoint, timeout=self.timeout))
                return ran, seen

        done, seen = run(watched())
        return Measured(summarize(done, target), seen.between(done.window.begin, done.window.end))


def _within(mix: Mix, context: int) -> Mix:
    """The mix with prompts and answers that the model's context has room for."""
    answer = mix.answer and mix.answer.model_copy(
        update={"most": max(mix.answer.least, min(mix.answer.most, context // 4))}
    )
    room = context - (answer.most if answer else 0) - mix.shared - 64
    if room < mix.prompt.least:
        raise EndpointError(
            f"the mix {mix.name} has prompts of {mix.prompt.least} tokens or more, and the context is {context}",
            hint="take another mix, or a file of your own",
        )
    prompt = mix.prompt.model_copy(update={"most": min(mix.prompt.most, int(0.9 * room))})
    return mix.model_copy(update={"prompt": prompt, "answer": answer})


async def _meet(endpoint: Endpoint, mix: Mix, model: str | None) -> Met:
    asker = Asker(endpoint, timeout=_TIME_TO_MEET)
    try:
        name, context = await _model(asker, model)
        notes = []
        dialect = Dialect(name)
        words = probe_words(context)
        short, long = await _asked(asker, mix, dialect, words)
        if short.status in (400, 422) and mix.kind == "chat":
            plain = replace(dialect, exact=False)
            short, long = await _asked(asker, mix, plain, words)
            if short.error is None:
                dialect = plain
                notes.append(
                    "it does not know ignore_eos: answers end where the model ends them, at the latest as asked"
                )
        for exchange in (short, long):
            if exchange.error is not None:
                raise EndpointError(f"{endpoint.url} does not answer: {exchange.error}", hint=exchange.said or None)
        if short.prompt_tokens is None or long.prompt_tokens is None or long.prompt_tokens <= short.prompt_tokens:
            notes.append("it does not say how many tokens a prompt has: one for each word is assumed")
            return Met(dialect, Counting(), context, tuple(notes))
        counting = Counting.learned((words[0], short.prompt_tokens), (words[1], long.prompt_tokens))
        return Met(dialect, counting, context, tuple(notes))
    finally:
        asker.close()


async def _asked(asker: Asker, mix: Mix, dialect: Dialect, words: tuple[int, int]) -> tuple[Exchange, Exchange]:
    prompts = Prompts(mix.model_copy(update={"shared": 0}), dialect, Counting())
    short = await asker.ask(prompts.probe(words[0]), Window())
    return short, short if short.error else await asker.ask(prompts.probe(words[1]), Window())


async def _model(asker: Asker, model: str | None) -> tuple[str, int | None]:
    page = await asker.get(f"{asker.endpoint.path}/models")
    if page.error is not None:
        if model is not None and page.status:
            return model, None
        hint = "is the URL right? it ends with /v1 for most" if page.status == 404 else page.said or None
        raise EndpointError(f"{asker.endpoint.url}/models: {page.error}", hint=hint)
    try:
        served = {str(one["id"]): one.get("max_model_len") for one in json.loads(page.content)["data"]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EndpointError(f"{asker.endpoint.url}/models does not tell of models", hint=page.said) from error
    name = model or next(iter(served), None)
    if name is None:
        raise EndpointError(f"{asker.endpoint.url} serves no model")
    if name not in served:
        raise EndpointError(f"{asker.endpoint.url} does not serve {name}", hint=f"it serves {', '.join(served)}")
    return name, served[name] if isinstance(served[name], int) else None


def version_of(endpoint: Endpoint) -> str | None:
    """The engine's version, where it tells it as vLLM does (``/version``)."""

    async def ask() -> str | None:
        asker = Asker(endpoint, timeout=10.0)
        try:
            page = await asker.get("/version")
        finally:
            asker.close()
        if page.error is not None:
            return None
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return str(json.loads(page.content)["version"])[:100]
        return None

    return run(ask())


@contextlib.asynccontextmanager
async def _watching(endpoint: Endpoint, wanted: bool) -> AsyncIterator[Seen]:
    """Look at the engine's /metrics again and again, over a connection of their own."""
    seen = Seen()
    asker = Asker(replace(endpoint, api_key=None), timeout=5.0)

    async def look() -> None:
        while True:
            page = await asker.get("/metrics")
            if page.status == 404:
                return
            if page.error is None:
                seen.add(time.perf_counter(), page.content.decode("utf-8", "replace"))
            await asyncio.sleep(LOOK_EVERY)

    task = asyncio.ensure_future(look()) if wanted else None
    try:
        yield seen
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        asker.close()
