"""The paths that this server answers: OpenAI's /v1/embeddings and /v1/models, /health, /metrics."""

from __future__ import annotations

import asyncio
import functools
import time
from dataclasses import dataclass, field
from typing import Any

from fleetctl.pool.encoder import answer, metrics, pooling
from fleetctl.pool.encoder.batching import Batcher
from fleetctl.pool.encoder.errors import RequestError
from fleetctl.pool.encoder.recipe import Recipe
from fleetctl.pool.encoder.request import Wanted, answers_msgpack, read_request
from fleetctl.pool.encoder.tokens import Tokens
from fleetctl.pool.http import BodyTooLongError, Exchange

PATHS = {"/v1/embeddings": "POST", "/v1/models": "GET", "/health": "GET", "/metrics": "GET"}
MOST_BODY = 64 << 20
"""Bytes of a request."""
INLINE = 8192
"""Bytes of a request that is read at once; a longer one is read in a thread, so that others go on meanwhile."""


@dataclass(frozen=True)
class Api:
    """A model that is served under ``names``."""

    names: tuple[str, ...]
    recipe: Recipe
    size: int
    """Numbers of a vector."""
    tokens: Tokens
    batcher: Batcher
    figures: metrics.Figures
    since: int = field(default_factory=lambda: int(time.time()))

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request."""
        as_msgpack = answers_msgpack(exchange.header(b"content-type"), exchange.header(b"accept"))
        try:
            method = PATHS.get(exchange.path)
            if method is None:
                raise RequestError(f"there is no {exchange.path} here", status=404)
            if exchange.method != method and (exchange.method, method) != ("HEAD", "GET"):
                raise RequestError(f"{exchange.path} takes {method}", status=405, kind="MethodNotAllowedError")
            if method == "POST":
                await self._embeddings(exchange, as_msgpack)
            elif exchange.path == "/v1/models":
                exchange.answer(200, *answer.packed(self._models(), as_msgpack))
            elif exchange.path == "/metrics":
                page = metrics.text(self.figures, self.names[0])
                exchange.answer(200, page.encode(), "text/plain; version=0.0.4; charset=utf-8")
            else:
                exchange.answer(200, b"", "")
        except RequestError as problem:
            self.figures.refuse(problem.status)
            exchange.answer(problem.status, *answer.error(problem, as_msgpack))

    async def _embeddings(self, exchange: Exchange, as_msgpack: bool) -> None:
        begin = time.perf_counter()
        try:
            body = await exchange.read(MOST_BODY)
        except BodyTooLongError:
            raise RequestError(f"a body has {MOST_BODY} bytes at most", status=413) from None
        read = functools.partial(self._understood, body, exchange.header(b"content-type"))
        wanted, inputs, size = read() if len(body) <= INLINE else await asyncio.to_thread(read)
        if exchange.gone:
            return
        work = asyncio.ensure_future(self.batcher.embed(inputs))
        exchange.on_gone = functools.partial(_cancel, work)
        try:
            vectors = await work
        except asyncio.CancelledError:
            if exchange.gone:
                return
            raise
        if size is not None:
            vectors = pooling.shortened(vectors, size, self.recipe.normalise)
        count = sum(map(len, inputs))
        self.figures.succeeded += 1
        self.figures.request_tokens.observe(count)
        self.figures.whole.observe(time.perf_counter() - begin)
        exchange.answer(200, *answer.embeddings(vectors, wanted.model, count, wanted.encoding, as_msgpack))

    def _understood(self, body: bytes, content_type: str) -> tuple[Wanted, list[list[int]], int | None]:
        """A request, the tokens of its inputs, and the size of its vectors where it is not the model's."""
        wanted = read_request(body, content_type)
        if wanted.model not in self.names:
            told = f"The model `{wanted.model}` does not exist. It serves {', '.join(self.names)}."
            raise RequestError(told, status=404, parameter="model")
        return wanted, self._inputs(wanted), self._dimensions(wanted)

    def _inputs(self, wanted: Wanted) -> list[list[int]]:
        most, least = self.recipe.most_tokens, self.tokens.special + 1
        cut = most if wanted.truncate == -1 else wanted.truncate
        if cut is not None and not least <= cut <= most:
            told = f"truncate_prompt_tokens is {cut}; with this model it can be {least} to {most}, or -1 for {most}"
            raise RequestError(told, parameter="truncate_prompt_tokens")
        if wanted.tokens:
            inputs = [list(one[:cut]) for one in wanted.tokens]
            strange = next((one for ids in inputs for one in ids if not 0 <= one < self.tokens.size), None)
            if strange is not None:
                told = f"there is no token {strange}; the last is {self.tokens.size - 1}"
                raise RequestError(told, parameter="input")
        else:
            inputs = self.tokens.read(wanted.texts, cut)
        long = next((index for index, ids in enumerate(inputs) if len(ids) > most), None)
        if long is not None:
            raise RequestError(
                f"This model's maximum context length is {most} tokens; input {long} has {len(inputs[long])}. Send a "
                "shorter one, or truncate_prompt_tokens -1 to leave the rest of it out.",
                parameter="input",
            )
        return inputs

    def _dimensions(self, wanted: Wanted) -> int | None:
        """Numbers that the client wants, where they are fewer than the model's."""
        size, sizes = wanted.dimensions, self.recipe.sizes
        if size is None or size == self.size:
            return None
        if size > self.size or (sizes is not None and size not in sizes):
            known = f"1 to {self.size}" if sizes is None else ", ".join(map(str, (*sizes, self.size)))
            raise RequestError(f"dimensions can be {known} with this model", parameter="dimensions")
        return size

    def _models(self) -> dict[str, Any]:
        told = {"object": "model", "created": self.since, "owned_by": "fleetctl", "root": str(self.recipe.folder)}
        told |= {"parent": None, "max_model_len": self.recipe.most_tokens}
        return {"object": "list", "data": [{"id": name, **told} for name in self.names]}


def _cancel(work: asyncio.Future[Any]) -> None:
    work.cancel()
