#!/usr/bin/env python3
"""A server that answers every chat completion with four streamed tokens, 2 ms apart, as cheaply as can be.

Every request for embeddings is answered with one short vector, at once. ``python3 bench/_answers.py PORT``: it is what
a load generator is measured against, where an engine would be the bottleneck. Needs uvloop.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

TOKENS, PAUSE = 4, 0.002  # tokens of an answer, and seconds between two
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PAGE = b'{"data":[{"id":"answers","max_model_len":8192}]}'
WHOLE = b'{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":%d,"completion_tokens":1}}'
VECTOR = (
    b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1]}],'
    b'"model":"answers","usage":{"prompt_tokens":8,"total_tokens":8}}'
)


def _chunk(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


TOKEN = _chunk(
    b'data: {"id":"a","object":"chat.completion.chunk","created":1,"model":"answers","choices":[{"index":0,"delta":'
    b'{"content":" word"},"finish_reason":null}]}\n\n'
)
END = _chunk(
    b'data: {"id":"a","choices":[],"usage":{"prompt_tokens":50,"completion_tokens":%d}}\n\n' % TOKENS
) + _chunk(b"data: [DONE]\n\n")


class Answers(asyncio.Protocol):
    """One client."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.read = b""

    def data_received(self, data: bytes) -> None:
        self.read += data
        head = self.read.find(b"\r\n\r\n") + 4
        if head < 4:
            return
        embeddings = self.read.startswith(b"POST /v1/embeddings")
        if self.read.startswith(b"GET"):
            self.read = b""
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(PAGE), PAGE))
            return
        mark = self.read[:head].lower().index(b"content-length: ") + 16
        length = int(self.read[mark : self.read.index(b"\r\n", mark)])
        if len(self.read) < head + length:
            return
        body, self.read = self.read[head : head + length], self.read[head + length :]
        if embeddings or b'"stream":true' not in body:
            answer = VECTOR if embeddings else WHOLE % body.count(b" ")
            kind = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
            self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (kind, len(answer), answer))
            return
        self.transport.write(HEAD + TOKEN)
        asyncio.get_running_loop().call_later(PAUSE, self.more, TOKENS - 1)

    def more(self, left: int) -> None:
        """The next token, or the end."""
        if left:
            self.transport.write(TOKEN)
            asyncio.get_running_loop().call_later(PAUSE, self.more, left - 1)
        else:
            self.transport.write(END + b"0\r\n\r\n")


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Answers, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1])))
