"""A small engine for the worker's tests: ``python standin_engine.py SOCKET MODEL``, a process that can be killed.

What the texts say decides what happens: ``bad …`` is refused, ``poison …`` ends the process, ``slow N …`` takes N
milliseconds; a stream dies at ``die`` and is silent for a while after ``pause``. An embedding is made of the text
alone, so that a test knows what belongs to what.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any

from fleetctl.pool.http import Exchange, Server


def embedding(text: str) -> list[float]:
    """Two numbers that tell a text from others."""
    return [float(len(text)), float(zlib.crc32(text.encode()) % 1000)]


class Engine:
    """Counts calls and requests, and how many were at work at once."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.calls = self.inputs = self.now = self.most = self.cut = 0

    async def handle(self, exchange: Exchange) -> None:
        """One call."""
        if exchange.path == "/health":
            exchange.answer(200, b"{}")
        elif exchange.path == "/seen":
            names = ("calls", "inputs", "most", "cut")
            exchange.answer(200, json.dumps({name: getattr(self, name) for name in names}).encode())
        else:
            self.now += 1
            self.calls += 1
            self.most = max(self.most, self.now)
            try:
                await self._work(exchange, json.loads(await exchange.read(64 << 20)))
            finally:
                self.now -= 1

    async def _work(self, exchange: Exchange, body: dict[str, Any]) -> None:
        given = body.get("input", body.get("prompt", ""))
        texts = given if isinstance(given, list) else [given]
        self.inputs += len(texts)
        if any(text.startswith("poison") for text in texts):
            os._exit(1)
        waits = [int(text.split()[1]) for text in texts if text.startswith("slow")]
        if waits:
            await asyncio.sleep(max(waits) / 1000)
        if any(text.startswith("bad") for text in texts):
            exchange.answer(400, b'{"error":{"message":"a bad text"}}')
        elif body.get("stream"):
            await self._stream(exchange, texts[0])
        elif exchange.path == "/v1/embeddings":
            data = [{"object": "embedding", "index": n, "embedding": embedding(t)} for n, t in enumerate(texts)]
            tokens = sum(len(text) for text in texts)
            usage = {"prompt_tokens": tokens, "total_tokens": tokens}
            answer = {"object": "list", "data": data, "model": self.model, "usage": usage}
            exchange.answer(200, json.dumps(answer).encode())
        else:
            text = texts[0] if len(texts[0]) < 1000 else f"{len(texts[0])} characters"
            answer = {"choices": [{"text": text}], "long": "x" * body.get("long", 0), "usage": {"total_tokens": 7}}
            exchange.answer(200, json.dumps(answer).encode())

    async def _stream(self, exchange: Exchange, text: str) -> None:
        exchange.begin(200, "text/event-stream")
        try:
            for word in text.split():
                await exchange.send(f"data: {word}\n\n".encode())
                await asyncio.sleep(0.05)
                if exchange.gone:
                    self.cut += 1
                    return
                if word == "pause":
                    await asyncio.sleep(0.7)
                if word == "die":
                    os._exit(1)
            exchange.end(b"data: [DONE]\n\n")
        except Exception:
            self.cut += 1
            raise


async def serve(path: str, model: str) -> None:
    """Until killed."""
    server = Server(Engine(model).handle)
    await server.listen_unix(Path(path))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2]))
