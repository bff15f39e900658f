"""The pool's HTTP server, by clients that do what clients do."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import uvloop

from fleetctl.pool.http import BodyTooLongError, Exchange, Handler, Server


class Served:
    """A server on a thread of its own."""

    def __init__(self, handler: Handler, uds: Path | None = None, **limits: float) -> None:
        self.server = Server(handler, **limits)
        self.port = 0
        self._uds = uds
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(10)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self.loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        if self._uds:
            await self.server.listen_unix(self._uds)
        else:
            self.port = await self.server.listen("127.0.0.1", 0)
        self._ready.set()
        await self._end.wait()
        await self.server.stop(0)

    def stop(self, grace: float) -> Callable[[], int]:
        """Begins to stop; the result waits for how many were cut."""
        return asyncio.run_coroutine_threadsafe(self.server.stop(grace), self.loop).result

    def close(self) -> None:
        """Ends the thread."""
        self.loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)


@contextmanager
def serving(handler: Handler, uds: Path | None = None, **limits: float) -> Iterator[Served]:
    """A server for the length of a with block."""
    served = Served(handler, uds, **limits)
    try:
        yield served
    finally:
        served.close()


async def echo(exchange: Exchange) -> None:
    """Answers with the body."""
    body = await exchange.read(1 << 20)
    exchange.answer(200, body, "application/x-echo", [("x-path", exchange.path), ("x-query", exchange.query)])


def raw(port: int, data: bytes) -> socket.socket:
    """A connection on which ``data`` was sent."""
    client = socket.create_connection(("127.0.0.1", port), 10)
    client.sendall(data)
    return client


def all_of(client: socket.socket) -> bytes:
    """What comes until the server closes."""
    found = b""
    while piece := client.recv(65536):
        found += piece
    return found


def test_one_connection_serves_many_requests() -> None:
    with serving(echo) as served:
        client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
        for number in range(20):
            client.request("POST", f"/a/b?n={number}", b"x" * number)
            answer = client.getresponse()
            assert (answer.status, answer.read()) == (200, b"x" * number)
            assert (answer.headers["x-path"], answer.headers["x-query"]) == ("/a/b", f"n={number}")
        assert len(served.server.connections) == 1


def test_it_serves_a_unix_socket(tmp_path: Path) -> None:
    with serving(echo, tmp_path / "s.sock"), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "s.sock"))
        client.sendall(b"POST / HTTP/1.1\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi")
        assert all_of(client).endswith(b"\r\n\r\nhi")


def test_requests_sent_ahead_are_answered_in_their_order() -> None:
    with serving(echo) as served:
        many = b"".join(b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\n%03d" % number for number in range(50))
        client = raw(served.port, many + b"POST / HTTP/1.1\r\nconnection: close\r\ncontent-length: 3\r\n\r\nend")
        bodies = [part.split(b"\r\n\r\n")[1] for part in all_of(client).split(b"HTTP/1.1 200 OK")[1:]]
        assert bodies == [b"%03d" % number for number in range(50)] + [b"end"]


def test_a_body_in_chunks_is_read() -> None:
    with serving(echo) as served:
        client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
        client.request("POST", "/", iter([b"one ", b"two ", b"three"]), encode_chunked=True)
        assert client.getresponse().read() == b"one two three"


def test_what_follows_a_body_in_chunks_is_no_header() -> None:
    async def headers(exchange: Exchange) -> None:
        await exchange.read(1 << 20)
        exchange.answer(200, b",".join(sorted(exchange.headers)))

    with serving(headers) as served:
        head = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        told = all_of(raw(served.port, head + b"3\r\nabc\r\n0\r\nx-model: other\r\nhost: y\r\n\r\n"))
        assert told.endswith(b"connection,host,transfer-encoding")


def test_a_body_is_read_no_faster_than_it_is_taken() -> None:
    taken: list[int] = []

    async def slow(exchange: Exchange) -> None:
        await asyncio.sleep(0.3)
        size = len(exchange._held and b"".join(exchange._held))
        taken.append(size)
        while piece := await exchange.some():
            taken.append(len(piece))
        exchange.answer(200, b"%d" % sum(taken[1:]))

    with serving(slow) as served:
        client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
        client.request("POST", "/", b"x" * (16 << 20))
        assert client.getresponse().read() == b"%d" % (16 << 20)
        assert taken[0] <= 1 << 20


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_long_is_refused_and_the_client_hears_of_it(chunked: bool) -> None:
    async def small(exchange: Exchange) -> None:
        try:
            await exchange.read(10_000)
        except BodyTooLongError:
            exchange.answer(413, b"too long")

    with serving(small) as served:
        client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
        body = b"x" * (1 << 20)
        client.request("POST", "/", iter([body]) if chunked else body, encode_chunked=chunked)
        answer = client.getresponse()
        assert (answer.status, answer.read(), answer.headers["connection"]) == (413, b"too long", "close")


def test_a_client_that_asks_first_is_told_to_go_on_only_when_the_body_is_wanted() -> None:
    async def choosy(exchange: Exchange) -> None:
        if exchange.path == "/no":
            exchange.answer(404, b"no")
        else:
            await echo(exchange)

    head = b"POST %b HTTP/1.1\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    with serving(choosy) as served:
        refused = raw(served.port, head % b"/no")
        assert refused.recv(65536).startswith(b"HTTP/1.1 404")
        wanted = raw(served.port, head % b"/yes")
        assert wanted.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        wanted.sendall(b"hi")
        assert all_of(wanted).endswith(b"hi")


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_an_answer_in_pieces_arrives_piece_by_piece(version: str) -> None:
    seen = threading.Event()

    async def stream(exchange: Exchange) -> None:
        exchange.begin(200, "text/event-stream")
        await exchange.send(b"first\n")
        assert await asyncio.to_thread(seen.wait, 10)
        await exchange.send(b"second\n")
        exchange.end(b"last\n")

    with serving(stream) as served:
        client = raw(served.port, f"GET / HTTP/{version}\r\nconnection: close\r\n\r\n".encode())
        found = b""
        while b"first" not in found:
            found += client.recv(65536)
        assert b"second" not in found
        seen.set()
        found += all_of(client)
        assert found.index(b"first") < found.index(b"second") < found.index(b"last")
        assert found.endswith(b"0\r\n\r\n") == (version == "1.1")


def test_the_handler_hears_that_its_client_went_away() -> None:
    heard = threading.Event()

    async def wait(exchange: Exchange) -> None:
        over = asyncio.Event()
        exchange.on_gone = over.set
        await over.wait()
        heard.set()

    with serving(wait) as served:
        client = raw(served.port, b"GET / HTTP/1.1\r\n\r\n")
        time.sleep(0.1)
        client.close()
        assert heard.wait(5)


def test_a_client_that_takes_nothing_stops_the_handler_until_it_goes() -> None:
    sent: list[int] = []
    ended = threading.Event()

    async def much(exchange: Exchange) -> None:
        exchange.begin(200, "text/plain")
        try:
            for _ in range(1000):
                await exchange.send(b"x" * 100_000)
                sent.append(1)
        finally:
            ended.set()

    with serving(much) as served:
        client = raw(served.port, b"GET / HTTP/1.1\r\n\r\n")
        before = -1
        while before != len(sent):
            before = len(sent)
            time.sleep(0.2)
        assert len(sent) < 1000
        client.close()
        assert ended.wait(5)


def test_an_answer_that_breaks_off_is_seen_to_be_broken() -> None:
    async def broken(exchange: Exchange) -> None:
        exchange.begin(200, "text/plain")
        await exchange.send(b"half")
        raise RuntimeError("on purpose")

    with serving(broken) as served:
        client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
        client.request("GET", "/")
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            client.getresponse().read()


def test_a_handler_that_fails_answers_500_and_the_next_request_is_served() -> None:
    async def fails(exchange: Exchange) -> None:
        raise RuntimeError("on purpose")

    with serving(fails) as served:
        client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
        for _ in range(2):
            client.request("GET", "/")
            answer = client.getresponse()
            assert answer.status == 500
            assert b"internal error" in answer.read()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\nabc", b"400"),
        (b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000, b"431"),
        (b"GET /" + b"y" * 100_000, b"431"),
    ],
)
def test_what_is_not_http_is_refused(data: bytes, status: bytes) -> None:
    with serving(echo) as served:
        assert all_of(raw(served.port, data)).startswith(b"HTTP/1.1 " + status)


def test_a_header_cannot_bring_another_one_with_it() -> None:
    async def splits(exchange: Exchange) -> None:
        exchange.answer(200, b"", headers=[("x-a", "b\r\nx-c: d")])

    with serving(splits) as served:
        client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
        client.request("GET", "/")
        assert client.getresponse().status == 500


def test_stopping_lets_what_is_at_work_finish_and_takes_no_more() -> None:
    go = threading.Event()

    async def wait(exchange: Exchange) -> None:
        assert await asyncio.to_thread(go.wait, 10)
        exchange.answer(200, b"done")

    with serving(wait) as served:
        idle = socket.create_connection(("127.0.0.1", served.port), 10)
        client = raw(served.port, b"GET / HTTP/1.1\r\n\r\n")
        time.sleep(0.1)
        cut = served.stop(10)
        assert idle.recv(10) == b""
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", served.port), 10).recv(1)
        go.set()
        found = all_of(client)
        assert found.endswith(b"done")
        assert b"connection: close" in found
        assert cut() == 0


def test_stopping_cuts_what_takes_too_long() -> None:
    async def never(exchange: Exchange) -> None:
        await asyncio.sleep(1000)

    with serving(never) as served:
        client = raw(served.port, b"GET / HTTP/1.1\r\n\r\n")
        time.sleep(0.1)
        assert served.stop(0.1)() == 1
        with suppress(ConnectionError):
            assert client.recv(1) == b""


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nx-slow: ", b"HTTP/1.1 408"),
        (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"HTTP/1.1 200"),
    ],
    ids=["silent", "a head that does not come", "idle after an answer"],
)
def test_a_connection_on_which_nothing_comes_is_closed(sent: bytes, told: bytes) -> None:
    with serving(echo, head=0.2, idle=0.4) as served, raw(served.port, sent) as client:
        came = b""
        while piece := client.recv(65536):  # it ends, which is what is tested
            came += piece
        assert came.startswith(told) and bool(came) == bool(told)


def test_a_head_that_comes_drop_by_drop_is_cut_and_a_long_answer_is_not() -> None:
    async def slow(exchange: Exchange) -> None:
        await asyncio.sleep(0.8)
        exchange.answer(200, b"done")

    with serving(slow, head=0.2, idle=0.2) as served:
        with raw(served.port, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n") as client:
            assert client.recv(65536).endswith(b"done")
        with raw(served.port, b"GET / HTTP/1.1\r\n") as client:
            client.settimeout(0.02)
            cut = False
            for number in range(500):
                try:
                    client.sendall(b"x-%d: a\r\n" % number)
                    cut = cut or b"408" in client.recv(65536)
                except TimeoutError:
                    continue
                except OSError:
                    cut = True
                if cut:
                    break
            assert cut
