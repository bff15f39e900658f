"""The HTTP client of the worker, with the pool's own server and with servers that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fleetctl.pool.client import Client, EngineGoneError, address
from fleetctl.pool.http import Exchange, Server

Raw = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def test_requests_follow_each_other_on_a_unix_socket(tmp_path: Path) -> None:
    connections = set()

    async def handle(exchange: Exchange) -> None:
        connections.add(id(exchange._connection))
        exchange.answer(201, await exchange.read(1 << 20), exchange.header(b"content-type"))

    async def asked() -> None:
        server = Server(handle)
        await server.listen_unix(tmp_path / "s")
        client = Client(f"unix:{tmp_path / 's'}")
        for body in (b"one", b"", b"x" * 500_000):
            assert await client.whole("POST", "/v1/x", body, content_type="text/plain") == (201, "text/plain", body)
        assert len(connections) == 1
        client.close()
        await server.stop(1.0)

    asyncio.run(asked())


def test_a_stream_comes_as_it_is_sent_and_is_cut_when_nobody_reads_on(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        exchange.on_gone = gone.set
        exchange.begin(200, "text/event-stream")
        await exchange.send(b"first")
        await asyncio.sleep(60)

    async def cut() -> None:
        server = Server(handle)
        await server.listen_unix(tmp_path / "s")
        answer = await Client(f"unix:{tmp_path / 's'}").send("POST", "/", b"{}")
        assert (answer.status, answer.content_type, await answer.some()) == (200, "text/event-stream", b"first")
        answer.close()
        await asyncio.wait_for(gone.wait(), 10)
        await server.stop(0.0)

    asyncio.run(cut())


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(EngineGoneError, match="nobody listens at") as gone:
        asyncio.run(Client(f"unix:{tmp_path / 'none'}").whole("GET", "/"))
    assert not gone.value.reached


async def served(path: Path, raw: Raw) -> asyncio.AbstractServer:
    """A server that answers as it is written."""
    return await asyncio.start_unix_server(raw, str(path))


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", b"HTTP/1.1 200 OK\r\ncontent-le", b"nonsense\r\n\r\n"],
)
def test_an_engine_that_breaks_off_is_gone(tmp_path: Path, answer: bytes) -> None:
    async def raw(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async def asked() -> None:
        async with await served(tmp_path / "s", raw):
            with pytest.raises(EngineGoneError) as gone:
                await Client(f"unix:{tmp_path / 's'}").whole("GET", "/")
            assert gone.value.reached

    asyncio.run(asked())


def test_an_answer_may_end_with_its_connection(tmp_path: Path) -> None:
    async def raw(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nall of it")
        writer.close()

    async def asked() -> None:
        async with await served(tmp_path / "s", raw):
            assert (await Client(f"unix:{tmp_path / 's'}").whole("GET", "/")).body == b"all of it"

    asyncio.run(asked())


def test_a_connection_that_was_closed_while_idle_is_replaced(tmp_path: Path) -> None:
    asked = 0

    async def raw(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await reader.readuntil(b"\r\n\r\n")  # the next request is read, and the connection is closed without an answer
        writer.close()

    async def twice() -> None:
        async with await served(tmp_path / "s", raw):
            client = Client(f"unix:{tmp_path / 's'}")
            for _ in range(2):
                assert (await client.whole("GET", "/")).body == b"ok"
            assert asked == 2
            client.close()

    asyncio.run(twice())


@pytest.mark.parametrize(
    ("text", "authority"),
    [
        ("unix:/run/m.sock", "localhost"),
        ("http://10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://[::1]:80/a?b=c", "[::1]"),
        ("https://s3.example/bucket/key", "s3.example"),
    ],
)
def test_addresses(text: str, authority: str) -> None:
    assert address(text).authority == authority


@pytest.mark.parametrize("text", ["", "/run/m.sock", "ftp://x", "http://"])
def test_what_is_no_address_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="neither unix:PATH nor"):
        Client(text)
