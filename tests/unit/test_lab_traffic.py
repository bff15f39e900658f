"""The demo's traffic: open loop, every request recorded, and nothing but a whole answer counts as one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from standin_process import start

from fleetctl.lab.demo import Event, Move, figures, report, timeline
from fleetctl.lab.traffic import Crowd, Request, Traffic, fault

STREAM = (
    'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
    'data: {"choices":[{"delta":{"content":"held"},"finish_reason":null}]}\n\n'
    'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    "data: [DONE]\n\n"
)
WHOLE = '{"choices":[{"message":{"content":"held"},"finish_reason":"stop"}]}'


def test_a_whole_answer_and_a_whole_stream_have_no_fault() -> None:
    assert fault(200, WHOLE.encode(), streamed=False) is None
    assert fault(200, STREAM.encode(), streamed=True) is None


@pytest.mark.parametrize(
    ("status", "body", "streamed", "words"),
    [
        (503, '{"error":{"message":"no engine"}}', False, "status 503: "),
        (502, "", True, "status 502"),
        (200, "", False, "not an answer"),
        (200, "", True, "broke off after 0 events"),
        (200, STREAM.replace("data: [DONE]\n\n", ""), True, "broke off after 3 events"),
        (200, 'data: {"error":{"message":"the engine died"}}\n\ndata: [DONE]\n\n', True, "an error in the stream"),
        (200, STREAM.replace('"held"', '""'), True, "a stream without text"),
        (200, STREAM.replace('"stop"', "null"), True, "a stream that did not finish"),
        (200, WHOLE.replace('"held"', '""'), False, "an answer without text"),
        (200, WHOLE.replace('"stop"', "null"), False, "an answer that did not finish"),
        (200, WHOLE.replace('"stop"', '"abort"'), False, "an answer that the engine aborted"),
        (200, STREAM.replace('"stop"', '"abort"'), True, "a stream that the engine aborted"),
        (200, '{"object":"error"}', False, "not an answer"),
        (200, 'data: {"choi\n\ndata: [DONE]\n\n', True, "not an answer"),
        (200, "[]", False, "not an answer"),
    ],
)
def test_anything_but_a_whole_answer_with_status_200_is_a_fault(
    status: int, body: str, streamed: bool, words: str
) -> None:
    assert words in (fault(status, body.encode(), streamed=streamed) or "no fault")


def test_every_request_to_an_engine_is_answered_and_recorded() -> None:
    with start("--served-model-name", "m", speed=50) as engine:
        engine.wait_ready()
        with Traffic(engine.url, "m", rate=40, max_tokens=4) as traffic:
            time.sleep(1.0)
        told = traffic.requests()
    assert [request.error for request in told if not request.answered] == []
    assert [request.number for request in told] == list(range(len(told)))
    assert {request.streamed for request in told[:2]} == {True, False}
    for request in told:
        assert request.first_byte and request.end
        assert request.start <= request.first_byte <= request.end
    counts = traffic.counts()
    assert (counts.sent, counts.answered, counts.waiting, counts.failed) == (len(told), len(told), 0, 0)


@contextmanager
def server(answer: bytes, after: threading.Event | None = None) -> Iterator[str]:
    """A server that takes a request, waits for ``after``, says ``answer`` and closes the connection."""

    def serve(connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            if after is not None:
                after.wait(30)
            connection.sendall(answer)

    def accept() -> None:
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def test_requests_go_out_at_their_rate_while_none_is_answered_and_leaving_waits_for_their_answers() -> None:
    length = "HTTP/1.1 503 Busy\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbusy"
    open_now = threading.Event()
    with server(length.encode(), open_now) as url:
        with Traffic(url, "m", rate=50) as traffic:
            time.sleep(1.0)
            held = traffic.counts()
            open_now.set()
        after = traffic.counts()
    assert held.waiting == held.sent >= 10
    assert after.failed == after.sent >= held.sent
    assert after.waiting == 0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "before any byte"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\ndata: {", "after 7 bytes"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n7\r\ndata: {\r\n", "after 7 bytes"),
    ],
)
def test_a_connection_that_breaks_is_a_failed_request(answer: bytes, words: str) -> None:
    with server(answer) as url, Traffic(url, "m", rate=20) as traffic:
        time.sleep(0.5)
    told = traffic.requests()
    assert told
    assert all(request.failed and words in (request.error or "") for request in told), told


HEAD = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 900\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "begun"),
    [
        ("", False),
        ("HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy", False),
        (HEAD + STREAM[:90], True),
        (HEAD, True),
        (HEAD + ": waiting for an engine\n\n", False),
        (HEAD + ': waiting\n\ndata: {"error":{"code":"engine_lost"}}\n\n', False),
        (HEAD + ": waiting\n\n" + STREAM[:90], True),
    ],
)
def test_a_stream_breaks_once_its_answer_has_begun_and_fails_before(answer: str, begun: bool) -> None:
    with server(answer.encode()) as url, Crowd(url, "m", clients=2, period=0.2) as crowd:
        time.sleep(0.3)
    streams = [request for request in crowd.requests() if request.streamed]
    assert streams and all(request.failed for request in streams)
    assert {(request.broken, request.failed_before_first_byte) for request in streams} == {(begun, not begun)}


def test_a_crowd_asks_no_more_often_than_it_is_told_and_half_of_it_streams() -> None:
    with start("--served-model-name", "m", speed=50) as engine:
        engine.wait_ready()
        with Crowd(engine.url, "m", clients=6, period=0.3, max_tokens=4) as crowd:
            time.sleep(1.5)
        told = crowd.requests()
    assert [request.error for request in told if not request.answered] == []
    assert 12 <= len(told) <= 6 * 6
    assert sum(request.streamed for request in told) == pytest.approx(len(told) / 2, abs=3)


@pytest.mark.parametrize("retry", [False, True])
def test_a_client_whose_connection_is_cut_before_the_answer_asks_once_more_if_it_is_one_that_does(retry: bool) -> None:
    with server(b"") as url, Crowd(url, "m", clients=2, period=0.2, retry=retry) as crowd:
        time.sleep(0.3)
    told = crowd.requests()
    assert told and all(request.failed_before_first_byte for request in told)
    assert {request.retried is not None for request in told} == {retry}


def test_an_address_where_nothing_listens_fails_every_request_and_ends_the_traffic_in_order() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with Traffic(url, "m", rate=20) as traffic:
        time.sleep(0.3)
    assert traffic.requests()
    assert all("ConnectError" in (request.error or "") for request in traffic.requests())


# Figures. Times are seconds; the move holds at 100, the engine is ready at 107 and open at 107.3.


def step(kind: str, at: float, **result: object) -> Event:
    name = f"stage.{kind}.x"
    return {"type": "step", "state": "done", "step": name, "at": at, "summary": kind, "result": result}


def moved(*, to: str = "replicas", began: float = 99.0, **end: object) -> Move:
    told = {
        "held_from": 100.0,
        "ready": {"replicas/m@a": 107.2, "replicas/m@b": 107.0},
        "loads": {"replicas/m@a": 5.4, "replicas/m@b": 5.25},
        "stops": {"a/split.service": 0.5, "b/split.service": 0.25},
        **end,
    }
    engines = [{"id": f"replicas/m@{box}", "ranks": [{"box": box}]} for box in ("a", "b")]
    events = [
        {"type": "plan", "plan": {"release": {"engines": engines}}},
        step("drain", 100.2, waited=0.2),
        step("open", 107.31, open_at=107.3),
        step("open", 107.61, open_at=107.6),
        {"type": "move", "state": "done", **told},
    ]
    return Move(to, began, 0, tuple(events))


def sent(start: float, first_byte: float | None, *, error: str | None = None) -> Request:
    end = first_byte if first_byte is not None else start
    return Request(0, False, start, first_byte, end, 200 if error is None else 503, error)


BEFORE = [sent(98.0, 98.2), sent(99.5, 99.75)]
DRAINED = [sent(99.9, 100.15)]
HELD = [sent(100.5, 107.5), sent(103.0, 107.4), sent(107.1, 107.45)]
AFTER = [sent(107.35, 107.8), sent(109.0, 109.1)]


def test_figures_are_measured_where_the_client_is() -> None:
    every = BEFORE + DRAINED + HELD + AFTER
    told = figures(moved(), every, every)
    assert told.record() == {
        "to": "replicas",
        "requests": 8,
        "failed": 0,
        "held": 3,
        "gap_s": 7.65,  # from 99.75, the last answer begun before the hold, to 107.4
        "engine_load_s": 5.25,  # of the copy that was ready first
        "overhead_s": 2.15,  # 7.65 - 0.25 (what its own box needed to stop) - 5.25
        "recovery_s": 0.4,
    }
    assert told.engine_stop_s == 0.25


def test_a_failed_request_is_counted_and_its_answer_ends_no_gap() -> None:
    every = [*BEFORE, sent(101.0, 107.05, error="status 503"), *HELD]
    told = figures(moved(), every, every)
    assert (told.failed, told.gap_s, told.recovery_s) == (1, 7.65, 0.4)


def test_a_move_that_nobody_had_to_wait_for_has_no_gap() -> None:
    told = figures(moved(held_from=None), BEFORE, BEFORE)
    assert (told.held, told.gap_s, told.overhead_s, told.recovery_s) == (0, None, None, None)


def test_a_move_that_failed_has_its_requests_but_no_times_and_decides_the_exit_status() -> None:
    move = Move("replicas", 99.0, 6, ({"type": "error", "message": "the gate failed"},))
    told = report([move], BEFORE)
    assert told.exit_code == 6
    assert told.moves[0].error == "the gate failed"
    assert told.figures[0].record() == {
        "to": "replicas",
        "requests": 2,
        "failed": 0,
        "held": 0,
        **dict.fromkeys(("gap_s", "engine_load_s", "overhead_s", "recovery_s")),
    }


def test_each_request_counts_for_one_move() -> None:
    moves = [moved(), moved(to="split", began=108.0)]
    told = report(moves, BEFORE + HELD + AFTER)
    assert [one.requests for one in told.figures] == [6, 1]
    assert [one.to for one in told.figures] == ["replicas", "split"]
    assert told.exit_code == 0


def test_one_failed_request_is_enough_for_a_bad_exit_status() -> None:
    moves = [moved(), moved(to="split", began=108.0)]
    told = report(moves, [*BEFORE, *HELD, *AFTER, sent(110.0, None, error="ReadError")])
    assert told.exit_code == 9
    assert [one.failed for one in told.figures] == [0, 1]


def test_the_timeline_runs_from_the_hold_to_the_first_answer() -> None:
    move = moved()
    told = timeline(move, report([move], HELD).first_answer(move))
    assert told[0] == (0.0, "new requests are held")
    assert [what for _, what in told][-2:] == ["the first answer reaches a client", "done: open"]
    assert [at for at, _ in told] == sorted(at for at, _ in told)
