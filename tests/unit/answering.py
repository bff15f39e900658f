"""A server of the OpenAI API in this process, whose answers a test writes itself, byte by byte."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

Write = Callable[[bytes], None]
CLOSE = "close"
Script = Callable[[int, Write], Awaitable[str | None]]
"""Writes the answer to the nth completion (from 1); the connection is closed after it if it returns CLOSE."""

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(text: str) -> bytes:
    """One chunk of a body."""
    data = text.encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(**told: Any) -> bytes:
    """One event of a stream."""
    return chunk(f"data: {json.dumps(told)}\n\n")


def piece(text: str = " word") -> bytes:
    """An event with something of the answer."""
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}])


def ending(tokens: int, prompt: int = 10) -> bytes:
    """The events at the end of a stream, with what the server counted."""
    return event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": tokens}) + chunk("data: [DONE]\n\n")


def whole(status: int, body: bytes, more: bytes = b"") -> bytes:
    """An answer in one piece."""
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n%b\r\n%b" % (status, len(body), more, body)


async def streamed(number: int, write: Write) -> None:
    """A well-behaved answer of three tokens."""
    write(HEAD + event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}]))
    for _ in range(3):
        await asyncio.sleep(0.002)
        write(piece())
    write(ending(3) + END)


class Answering:
    """The server, in a thread of its own. ``asked`` has the bodies of all streamed requests, ``at`` their times."""

    def __init__(self, script: Script = streamed, *, knows_ignore_eos: bool = True) -> None:
        self.script = script
        self.knows_ignore_eos = knows_ignore_eos
        self.asked: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.at: list[float] = []
        self.port = 0
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Answering:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._client, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(asyncio.sleep(0))

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                self.heads.append(head)
                if head.startswith("GET"):
                    page = b'{"data":[{"id":"m","max_model_len":4096}]}' if "/models" in head else b""
                    writer.write(whole(200 if page else 404, page))
                    continue
                length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                if not self.knows_ignore_eos and "ignore_eos" in body:
                    writer.write(whole(400, b'{"error": "unknown field ignore_eos"}'))
                elif not body.get("stream") and body.get("max_tokens") == 1:
                    writer.write(whole(200, self._counted(body)))
                else:
                    self.asked.append(body)
                    self.at.append(time.perf_counter())
                    if await self.script(len(self.asked), writer.write) == CLOSE:
                        break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    @staticmethod
    def _counted(body: dict[str, Any]) -> bytes:
        text = body["messages"][0]["content"]
        usage = {"prompt_tokens": len(text.split()) + 5, "completion_tokens": 1}
        return json.dumps({"choices": [{"message": {"content": "a"}}], "usage": usage}).encode()
