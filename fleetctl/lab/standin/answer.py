"""The answer to a completion request, whole or as a stream of server-sent events."""

import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from . import text
from .asked import Asked
from .engine import Engine, Generation
from .errors import ApiError


class Answer:
    """The answer to one request while it is made."""

    def __init__(self, asked: Asked, engine: Engine) -> None:
        self.asked = asked
        self.engine = engine
        self.generation: Generation = engine.submit(asked.prompt, asked.prompt_tokens, asked.max_tokens, asked.natural)
        self.id = f"{'chatcmpl' if asked.chat else 'cmpl'}-{uuid.uuid4().hex[:16]}"
        self.created = int(time.time())
        self.words = text.words(text.seeded("answer", asked.model, asked.prompt))
        self.sent = 0

    def piece(self, count: int) -> str:
        """The text of the next `count` tokens."""
        if self.asked.fixed is None:
            return "".join(next(self.words) for _ in range(count))
        start, self.sent = self.sent, self.sent + count
        data = self.asked.fixed.encode()
        size = text.BYTES_PER_TOKEN
        return data[start * size : self.sent * size].decode(errors="ignore")

    async def pieces(self) -> AsyncIterator[tuple[str, str | None]]:
        """(new text, finish reason or None) until the end. Raises ApiError when the engine dies."""
        try:
            while True:
                event = await self.generation.events.get()
                if isinstance(event, ApiError):
                    raise event
                if isinstance(event, str):
                    yield "", event
                    return
                yield self.piece(event), None
        finally:
            self.engine.abort(self.generation)

    def usage(self) -> dict[str, Any]:
        """Token counts up to now."""
        prompt, made = self.asked.prompt_tokens, self.generation.made
        return {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}

    def envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """The outer object of an answer or chunk."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.asked.model,
            "choices": choices,
        }

    def tool_calls(self) -> list[dict[str, Any]]:
        """The call in OpenAI's form."""
        assert self.asked.tool
        name, arguments = self.asked.tool
        call_id = f"chatcmpl-tool-{self.id[-16:]}"
        return [{"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}]

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        parts: list[str] = []
        reason: str | None = None
        async for part, ended in self.pieces():
            parts.append(part)
            reason = ended
        content = "".join(parts)
        if not self.asked.chat:
            choice: dict[str, Any] = {"index": 0, "text": content, "logprobs": None, "finish_reason": reason}
            kind = "text_completion"
        else:
            message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
            if self.asked.tool and reason == "stop":
                message.update(content=None, tool_calls=self.tool_calls())
                reason = "tool_calls"
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
            kind = "chat.completion"
        choice["stop_reason"] = None
        return {**self.envelope(kind, [choice]), "usage": {**self.usage(), "prompt_tokens_details": None}}

    async def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events, `data: [DONE]` last."""
        try:
            async for chunk in self.chunks():
                yield sse(chunk)
        except ApiError as error:
            yield sse(error.content)
        yield b"data: [DONE]\n\n"

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a stream."""
        chat = self.asked.chat
        kind = "chat.completion.chunk" if chat else "text_completion"
        if chat:
            yield self.envelope(kind, [self.choice({"role": "assistant", "content": ""}, None)])
        async for part, reason in self.pieces():
            if not chat:
                choice = {
                    "index": 0,
                    "text": part,
                    "logprobs": None,
                    "finish_reason": reason,
                    "stop_reason": None,
                }
                yield self.envelope(kind, [choice])
                continue
            delta: dict[str, Any] = {"content": part}
            if self.asked.tool:
                if reason is None:
                    continue
                if reason == "stop":
                    delta = {"tool_calls": [{"index": 0, **call} for call in self.tool_calls()]}
                    reason = "tool_calls"
            yield self.envelope(kind, [self.choice(delta, reason)])
        if self.asked.include_usage:
            yield {**self.envelope(kind, []), "usage": self.usage()}

    @staticmethod
    def choice(delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        """One choice of a chat chunk."""
        ended = {"stop_reason": None} if reason else {}
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, **ended}


def sse(content: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
