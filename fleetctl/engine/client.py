"""Talking to one engine over its OpenAI API, directly and never through the proxy."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from fleetctl.engine.exchange import Exchange
from fleetctl.engine.runtimes.runtime import OPENAI_LIST, ModelList, Reranking
from fleetctl.errors import FleetError

LARGEST = 32 << 20  # bytes of an answer
LONGEST = 10  # times the limit for a piece of an answer that all of a stream may take


class EngineError(FleetError):
    """An engine did not answer, or not as it has to. ``answer`` is the body it sent, cut to a readable length.

    ``exchanges`` are the requests that tell why, with what came back, where several were made.
    """

    def __init__(self, message: str, *, answer: str = "", exchanges: Sequence[Exchange] = ()) -> None:
        super().__init__(message, hint=f"it answered: {answer[:400]}" if answer else None)
        self.answer = answer
        self.exchanges = tuple(exchanges)


@dataclass(frozen=True)
class Answer:
    """A completion: its text (reasoning counts as text), why it ended, and seconds to the first token and the last.

    ``prompt_tokens`` as the engine counted them; 0: it did not say.
    """

    text: str
    finish_reason: str
    first_token: float
    total: float
    prompt_tokens: int = 0


class EngineClient:
    """One engine. ``socket`` is a Unix socket that leads to it (a tunnel); without it ``url`` is called as it is.

    ``exchanges`` has every request that was sent, with what came back, in order.
    """

    def __init__(self, url: str, *, socket: Path | None = None, api_key: str | None = None, timeout: float) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        transport = httpx.HTTPTransport(uds=str(socket)) if socket else httpx.HTTPTransport()
        self.exchanges: list[Exchange] = []
        self._timeout = timeout
        self._client = httpx.Client(
            base_url=url, transport=transport, headers=headers, timeout=httpx.Timeout(timeout), trust_env=False
        )

    def models(self, listed: ModelList = OPENAI_LIST) -> dict[str, int | None]:
        """Names the engine serves, with the longest request each takes where it says so."""
        body = self._json(self._send("GET", listed.path))
        try:
            return listed.read(body)
        except (TypeError, KeyError, AttributeError, ValueError, OverflowError):
            raise EngineError(f"{listed.path} does not list models", answer=json.dumps(body)) from None

    def embed(self, model: str, texts: Sequence[str]) -> list[list[float]]:
        """The vectors of texts, in their order. Raises EngineError for what are no vectors of numbers."""
        question = {"model": model, "input": list(texts), "encoding_format": "float"}
        body = self._json(self._send("POST", "/v1/embeddings", json=question))
        try:
            by_index = {int(one["index"]): [float(number) for number in one["embedding"]] for one in body["data"]}
            return [by_index[index] for index in range(len(texts))]
        except (ValueError, TypeError, LookupError, OverflowError):
            raise EngineError("what came are no embeddings of these texts", answer=json.dumps(body)) from None

    def rerank(self, form: Reranking, model: str, query: str, documents: Sequence[str]) -> dict[int, float]:
        """Number of a document → how well it answers the query."""
        question = {"model": model, "query": query, form.documents: list(documents)}
        body = self._loaded(self._send("POST", form.path, json=question))
        try:
            return form.read(body)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
            raise EngineError("what came is no ranking of documents", answer=json.dumps(body)) from None

    def chat(self, model: str, prompt: str, max_tokens: int) -> Answer:
        """A chat completion in one piece. Raises EngineError unless it has text."""
        answer, body = self._chat(model, prompt, max_tokens)
        if not answer.text:
            raise EngineError("a completion came back without text", answer=json.dumps(body))
        return answer

    def counted_chat(self, model: str, prompt: str, max_tokens: int, *, deterministic: bool = False) -> Answer:
        """The same, with or without text; ``deterministic``: at temperature 0, so that it can be compared."""
        return self._chat(model, prompt, max_tokens, **({"temperature": 0, "seed": 1} if deterministic else {}))[0]

    def _chat(self, model: str, prompt: str, max_tokens: int, **more: Any) -> tuple[Answer, dict[str, Any]]:
        began = time.monotonic()
        question = {**_question(model, prompt, max_tokens), **more}
        body = self._json(self._send("POST", "/v1/chat/completions", json=question))
        took = time.monotonic() - began
        try:
            choice = (body.get("choices") or [{}])[0]
            counted = int((body.get("usage") or {}).get("prompt_tokens") or 0)
            text = _text(choice.get("message") or {})
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
            raise EngineError("what came is no chat completion", answer=json.dumps(body)) from None
        return Answer(text, str(choice.get("finish_reason")), took, took, counted), body

    def stream(self, model: str, prompt: str, max_tokens: int) -> Answer:
        """A streamed chat completion. Raises EngineError unless it has text and ends with ``[DONE]``."""
        began = time.monotonic()
        question = {**_question(model, prompt, max_tokens), "stream": True}
        text, reason, first, done = "", "", None, False
        heard = self._exchange("POST", "/v1/chat/completions", question)
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=question) as answer:
                heard.status = answer.status_code
                if answer.status_code != 200:
                    body = b"".join(_pieces(answer, began + 2 * self._timeout, heard)).decode("utf-8", "replace")
                    raise EngineError(f"a streamed completion got status {answer.status_code}", answer=body)
                for data in _events(_lines(answer, began + LONGEST * self._timeout, heard)):
                    if data == "[DONE]":
                        done = True
                        break
                    choice = (json.loads(data).get("choices") or [{}])[0]
                    piece = _text(choice.get("delta") or {})
                    if piece and first is None:
                        first = time.monotonic() - began
                    text += piece
                    reason = choice.get("finish_reason") or reason
        except httpx.HTTPError as error:
            heard.over(_why(error))
            raise EngineError(f"a streamed completion broke off: {_why(error)}") from error
        except (ValueError, RecursionError) as error:
            raise EngineError(f"a streamed completion is not JSON: {error}") from error
        except (TypeError, LookupError, AttributeError) as error:
            raise EngineError(f"what was streamed is no chat completion: {error}") from error
        if not text or not done or first is None:
            raise EngineError("a streamed completion ended without text or without [DONE]", answer=text)
        return Answer(text, reason, first, time.monotonic() - began)

    def _exchange(self, method: str, path: str, body: Any) -> Exchange:
        self.exchanges.append(Exchange(method, path, body))
        return self.exchanges[-1]

    def _send(self, method: str, path: str, **more: Any) -> httpx.Response:
        began = time.monotonic()
        heard = self._exchange(method, path, more.get("json"))
        try:
            with self._client.stream(method, path, **more) as answer:
                heard.status = answer.status_code
                body = b"".join(_pieces(answer, began + 2 * self._timeout, heard))
                answer = httpx.Response(answer.status_code, content=body, request=answer.request)
        except httpx.HTTPError as error:
            heard.over(_why(error))
            raise EngineError(f"{method} {path} was not answered: {_why(error)}") from error
        if answer.status_code != 200:
            raise EngineError(f"{method} {path} got status {answer.status_code}", answer=answer.text)
        return answer

    def _json(self, answer: httpx.Response) -> dict[str, Any]:
        body = self._loaded(answer)
        if not isinstance(body, dict):
            raise EngineError(f"{answer.request.url.path} did not answer with a JSON object", answer=answer.text)
        return body

    def _loaded(self, answer: httpx.Response) -> Any:
        try:
            return answer.json()
        except (ValueError, RecursionError) as error:
            raise EngineError(f"{answer.request.url.path} did not answer with JSON", answer=answer.text) from error

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()


def _question(model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}


def _text(message: dict[str, Any]) -> str:
    """Text of a message; a reasoning model that has only thought so far has answered too."""
    parts = (message.get(key) for key in ("reasoning_content", "reasoning", "content"))
    return "".join(part for part in parts if isinstance(part, str))


def _events(lines: Iterator[str]) -> Iterator[str]:
    """Data of server-sent events."""
    for line in lines:
        if line.startswith("data:"):
            yield line[5:].strip()


def _pieces(answer: httpx.Response, deadline: float, heard: Exchange) -> Iterator[bytes]:
    """The body as it comes. EngineError for one that never ends, or is larger than any answer."""
    size = 0
    for piece in answer.iter_bytes():
        heard.hear(piece)
        size += len(piece)
        if size > LARGEST:
            raise EngineError(f"{answer.request.url.path}: the answer has more than {LARGEST >> 20} MiB")
        if time.monotonic() > deadline:
            raise EngineError(f"{answer.request.url.path}: the answer does not end")
        yield piece


def _lines(answer: httpx.Response, deadline: float, heard: Exchange) -> Iterator[str]:
    rest: list[bytes] = []
    for piece in _pieces(answer, deadline, heard):
        *whole, last = piece.split(b"\n")
        if whole:
            yield from (b.decode("utf-8", "replace") for b in (b"".join([*rest, whole[0]]), *whole[1:]))
            rest = []
        rest.append(last)


def _why(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__
