"""The HTTP API of vLLM 0.32: routes, API keys, faults, errors."""

import asyncio
import hashlib
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from . import VERSION, log, text
from .adapters import failed
from .answer import Answer
from .asked import read_request
from .engine import Engine
from .errors import ApiError, UnauthorizedError, engine_dead, internal, invalid, plain_status, unknown_model
from .httpd import Request, Response

GUARDED = ("/v1", "/v2", "/inference", "/cohere")
PROMETHEUS = "text/plain; version=1.0.0; charset=utf-8"
SSE = "text/event-stream; charset=utf-8"
Route = Callable[[Request], Awaitable[Response]]


def json_response(content: Any) -> Response:
    """200 with a JSON body."""
    return Response(200, json.dumps(content).encode())


class Api:
    """Answers requests for one engine.

    `before_completion` is called with the number of each completion (from 1) before it starts; it may
    raise ApiError. The server uses it for deaths that show only at the next request.
    """

    def __init__(self, engine: Engine, before_completion: Callable[[int], Awaitable[None]]) -> None:
        self.engine = engine
        self.before_completion = before_completion
        self.completions = 0
        self.started = int(time.time())
        self.keys = [hashlib.sha256(key.encode()).digest() for key in engine.args.api_keys]
        self.routes: dict[str, dict[str, Route]] = {
            "/health": {"GET": self.health},
            "/ping": {"GET": self.health, "POST": self.health},
            "/version": {"GET": self.version},
            "/metrics": {"GET": self.metrics},
            "/v1/models": {"GET": self.models},
            "/v1/chat/completions": {"POST": self.chat},
            "/v1/completions": {"POST": self.complete},
            "/v1/embeddings": {"POST": self.embeddings},
            "/v1/rerank": {"POST": self.rerank},
            "/tokenize": {"POST": self.tokenize},
        }
        if os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "").lower() in ("1", "true"):
            log.plain("WARNING:  LoRA dynamic loading & unloading is enabled in the API server.")
            self.routes["/v1/load_lora_adapter"] = {"POST": self.load_adapter}
            self.routes["/v1/unload_lora_adapter"] = {"POST": self.unload_adapter}

    async def handle(self, request: Request) -> Response:
        """The answer to any request; never raises ApiError."""
        try:
            if request.path.startswith(GUARDED) and request.method != "OPTIONS":
                self.check_key(request)
            if self.engine.control.now().error_500 and request.path != "/health":
                raise internal()
            methods = self.routes.get(request.path)
            if methods is None:
                raise plain_status(404)
            route = methods.get("GET" if request.method == "HEAD" else request.method)
            if route is None:
                raise plain_status(405)
            return await route(request)
        except ApiError as error:
            return Response(error.status, error.body())

    def check_key(self, request: Request) -> None:
        """Raise UnauthorizedError unless no key is set or the bearer token is one of them."""
        if not self.keys:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(token.encode("latin-1")).digest()
        matches = [secrets.compare_digest(digest, key) for key in self.keys]
        if scheme.lower() != "bearer" or not any(matches):
            raise UnauthorizedError

    def context(self) -> int:
        """The context length in tokens."""
        return self.engine.args.max_model_len or self.engine.control.now().max_model_len

    def read_json(self, request: Request) -> dict[str, Any]:
        """The body as an object. Raises ApiError 400."""
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise ApiError(
                400,
                "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
                "Bad Request",
            )
        try:
            body = json.loads(request.body)
        except json.JSONDecodeError as error:
            raise invalid("json_invalid", f"body.{error.pos}", "JSON decode error", {}) from error
        except UnicodeDecodeError as error:
            raise ApiError(400, "There was an error parsing the body", "Bad Request") from error
        if not isinstance(body, dict):
            raise invalid("model_attributes_type", "body", "Input should be a valid dictionary", body)
        return body

    async def health(self, _: Request) -> Response:
        """200 with an empty body while the engine is alive, else 503 (500 in some versions)."""
        dead = self.engine.control.now().dead_engine
        return Response((dead or 503) if dead or self.engine.dead else 200)

    async def version(self, _: Request) -> Response:
        """The version, as `vllm --version` prints it."""
        return json_response({"version": VERSION})

    async def metrics(self, _: Request) -> Response:
        """Prometheus text."""
        engine = self.engine
        return Response(200, engine.metrics.render(*engine.reported), PROMETHEUS)

    async def models(self, _: Request) -> Response:
        """The served names, then the LoRA adapters."""
        args = self.engine.args
        base = [(name, args.model, None, self.context()) for name in args.served_model_name]
        adapters = [(n, path, args.served_model_name[0], None) for n, path in self.engine.adapters.loaded.items()]
        cards = [
            {
                "id": name,
                "object": "model",
                "created": self.started,
                "owned_by": "vllm",
                "root": root,
                "parent": parent,
                "max_model_len": length,
            }
            for name, root, parent, length in [*base, *adapters]
        ]
        return json_response({"object": "list", "data": cards})

    async def load_adapter(self, request: Request) -> Response:
        """POST /v1/load_lora_adapter: a sentence, not JSON."""
        body = self.read_json(request)
        for name in ("lora_name", "lora_path"):
            if name not in body:
                raise invalid("missing", f"body.{name}", "Field required", body)
        if self.engine.control.now().lora_fails:
            raise failed("out of memory")
        said = self.engine.adapters.load(body["lora_name"], body["lora_path"], bool(body.get("load_inplace")))
        log.info("serving.py:249", f"Loaded new LoRA adapter: name '{body['lora_name']}', path '{body['lora_path']}'")
        return Response(200, said.encode())

    async def unload_adapter(self, request: Request) -> Response:
        """POST /v1/unload_lora_adapter."""
        body = self.read_json(request)
        if "lora_name" not in body:
            raise invalid("missing", "body.lora_name", "Field required", body)
        return Response(200, self.engine.adapters.unload(body["lora_name"]).encode())

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self.answer(request, chat=True)

    async def complete(self, request: Request) -> Response:
        """POST /v1/completions."""
        return await self.answer(request, chat=False)

    async def answer(self, request: Request, *, chat: bool) -> Response:
        """A completion, streamed if asked for."""
        asked = read_request(self.read_json(request), self.engine, chat, self.context())
        self.completions += 1
        await self.before_completion(self.completions)
        settings = self.engine.control.now()
        if settings.dead_engine:
            raise engine_dead()
        if settings.health_lies:
            raise internal("EngineCore encountered an error while running the model")
        answer = Answer(asked, self.engine)
        if asked.stream:
            return Response(200, self.stream(answer), SSE)
        return json_response(await answer.whole())

    async def stream(self, answer: Answer) -> AsyncIterator[bytes]:
        """The events of a stream; the engine is told when the client goes away before they begin."""
        try:
            async for event in answer.events():
                yield event
        finally:
            self.engine.abort(answer.generation)

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings: one vector per input."""
        body = self.read_json(request)
        served = self.engine.args.served_model_name
        model = body.get("model") or served[0]
        if model not in served:
            raise unknown_model(str(model), served)
        given = body.get("input")
        inputs = [item for item in (given if isinstance(given, list) else [given]) if isinstance(item, str)]
        if not inputs or (isinstance(given, list) and len(inputs) < len(given)):
            raise invalid("string_type", "body.input", "Input should be a valid string", given)
        tokens = sum(text.count_tokens(item) for item in inputs)
        settings = self.engine.control.now()
        await asyncio.sleep(tokens * settings.prefill_seconds_per_token / settings.speed)
        self.engine.metrics.add("prompt_tokens", tokens)
        self.engine.metrics.success["stop"] += len(inputs)
        data = [
            {"index": index, "object": "embedding", "embedding": text.embedding(model, item)}
            for index, item in enumerate(inputs)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
        return json_response(
            {"object": "list", "created": int(time.time()), "model": model, "data": data, "usage": usage}
        )

    async def rerank(self, request: Request) -> Response:
        """POST /v1/rerank: how much of the query's words each document has."""
        ranked = self.ranked(self.read_json(request), "documents")
        results = [
            {"index": index, "document": {"text": document}, "relevance_score": score}
            for index, document, score in ranked
        ]
        return json_response({"model": self.engine.args.served_model_name[0], "results": results})

    def ranked(self, body: dict[str, Any], key: str) -> list[tuple[int, str, float]]:
        """Number, text and score of each document under `key`, the best first."""
        documents = [str(document) for document in body.get(key) or []]
        scores = [text.likeness(str(body.get("query", "")), document) for document in documents]
        self.engine.metrics.add("prompt_tokens", sum(text.count_tokens(document) for document in documents))
        self.engine.metrics.success["stop"] += 1
        return sorted(zip(range(len(documents)), documents, scores, strict=True), key=lambda one: -one[2])

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize: a prompt, or messages."""
        body = self.read_json(request)
        messages = body.get("messages")
        prompt = text.render_chat(messages, []) if isinstance(messages, list) else str(body.get("prompt", ""))
        tokens = text.token_ids(prompt)
        return json_response({"count": len(tokens), "max_model_len": self.context(), "tokens": tokens})
