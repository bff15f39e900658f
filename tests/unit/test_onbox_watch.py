"""Reading /metrics on a box: only what is counted travels, and no engine keeps anybody waiting."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fleetctl.onbox import metricspage, watch
from fleetctl.watch.names import wanted

PAGE = b"""\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
vllm:generation_tokens_total{engine="0"} 12.0
vllm:time_to_first_token_seconds_bucket{le="0.1"} 3.0
vllm:time_to_first_token_seconds_count 4.0
python_gc_objects_collected_total{generation="0"} 55.0
process_start_time_seconds 1.7e9
vllm:generation_tokens_totally_else 5
"""


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[int]:
    """A server whose every GET is answered by the function; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def page(body: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(body)

    return answer


def dripping(request: BaseHTTPRequestHandler) -> None:
    """A byte now and then, for ever: no single read runs into a time limit."""
    request.send_response(200)
    request.end_headers()
    try:
        while True:
            request.wfile.write(b"#")
            time.sleep(0.05)
    except OSError:
        return


def read(port: int, within: float = 5.0) -> dict[str, Any]:
    """What the op tells of one engine."""
    engine = {"id": "e", "address": "127.0.0.1", "port": port, "ranks": [{"box": "a", "unit": "no-such.service"}]}
    pages = watch._Pages([engine], set(wanted()), time.monotonic() + within)
    pages.wait()
    return pages.told()["e"]


def test_only_lines_of_figures_that_are_watched_travel() -> None:
    with serving(page(PAGE)) as port:
        told = read(port)
    assert told["lines"].split("\n") == [
        'vllm:generation_tokens_total{engine="0"} 12.0',
        "vllm:time_to_first_token_seconds_count 4.0",
        "process_start_time_seconds 1.7e9",
    ]


def test_a_page_that_is_too_large_or_has_too_much_to_count_is_refused() -> None:
    with serving(page(b"x" * (metricspage.LARGEST_PAGE + 1))) as port:
        assert "has more than 4 MiB" in read(port)["why"]
    with serving(page(b"vllm:prompt_tokens_total 1\n" * 20_000)) as port:
        assert "has more than 256 KiB" in read(port)["why"]


@pytest.mark.parametrize("answer", [dripping, lambda request: time.sleep(5)], ids=["a byte now and then", "nothing"])
def test_an_engine_that_is_slow_keeps_nobody_longer_than_the_limit(
    answer: Callable[[BaseHTTPRequestHandler], None],
) -> None:
    with serving(answer) as port:
        began = time.monotonic()
        told = read(port, within=0.3)
        assert time.monotonic() - began < 3
    assert "not answered in time" in told["why"]


def test_an_engine_whose_headers_never_end_leaves_no_thread_behind() -> None:
    """Every look would leave one: a box that is watched for a day would run out of them."""

    def endless(request: BaseHTTPRequestHandler) -> None:
        try:
            while True:
                request.wfile.write(b"HTTP/1.1 200 OK\r\n" if not request.close_connection else b"X")
                request.close_connection = True
                time.sleep(0.05)
        except OSError:
            return

    def reads() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if getattr(one, "_target", None) and "_read" in one.name]

    with serving(endless) as port:
        assert "not answered in time" in read(port, within=0.3)["why"]
        deadline = time.monotonic() + 10
        while reads() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not reads()


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"],
    ids=["with its length", "without"],
)
def test_a_page_that_broke_off_with_its_engine_is_not_read(head: bytes) -> None:
    """Its last number is another one, and what is missing would look as if it were counted anew."""

    def dying(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(head + b"vllm:prompt_tokens_total 12345")
        request.close_connection = True

    with serving(dying) as port:
        assert read(port)["why"] == f"127.0.0.1:{port}: its /metrics broke off"


def test_what_is_wrong_is_said_in_a_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert read(port)["why"] == f"nothing to read at 127.0.0.1:{port}: Connection refused"

    def refusing(request: BaseHTTPRequestHandler) -> None:
        request.send_error(404)

    with serving(refusing) as port:
        assert read(port)["why"] == f"127.0.0.1:{port}: GET /metrics is answered with 404"

    def rude(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"no HTTP \x1b[2J at all" + b"!" * 1000 + b"\n")

    with serving(rude) as port:
        why = read(port)["why"]
    assert why.startswith(f"127.0.0.1:{port} does not speak HTTP: no HTTP ?[2J at all!")
    assert len(why) < 150


def test_a_page_read_while_the_unit_was_started_anew_belongs_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its counters may be the old process' or the new one's: the next page tells."""
    monkeypatch.setattr(watch, "INVOCATIONS", f"{tmp_path}/invocation:")
    link = tmp_path / "invocation:no-such.service"
    link.symlink_to("first")

    def restarted(request: BaseHTTPRequestHandler) -> None:
        link.unlink()
        link.symlink_to("second")
        page(PAGE)(request)

    with serving(restarted) as port:
        assert read(port)["why"] == "no-such.service was started anew while it was read"
    with serving(page(PAGE)) as port:
        assert read(port)["run"] == "second"


def stat(*rows: str) -> list[dict[str, str]]:
    """Rows of ``show stat``: proxy, server, status, weight, scur, qcur."""
    keys = ("pxname", "svname", "status", "weight", "scur", "qcur")
    return [{"req_rate": "7", **dict(zip(keys, row.split(), strict=True))} for row in rows]


@pytest.mark.parametrize(
    ("what", "rows", "load"),
    [
        (
            "both engines full, two wait",
            ["m one UP 1 12 0", "m two UP 1 12 0", "m again nocheck 1 0 0", "m BACKEND UP 2 26 2"],
            (2, 0, 24),
        ),
        (
            "no engine is up: five are held",
            ["m one DOWN 1 0 0", "m two MAINT 1 0 0", "m again nocheck 1 0 0", "m BACKEND UP 1 5 0"],
            (0, 5, 0),
        ),
        (
            "the last one is drained: what runs there is not held",
            ["m one DRAIN 1 3 0", "m again nocheck 1 0 0", "m BACKEND UP 1 5 0"],
            (0, 2, 3),
        ),
        (
            "two that lost the last engine came round to the wait",
            ["m one DOWN 1 0 0", "m again nocheck 1 2 0", "m BACKEND UP 1 4 0", "fleetctl_again_m FRONTEND OPEN 0 2 0"],
            (0, 2, 0),
        ),
        (
            "one of three is answered by the bridge",
            ["m one DOWN 1 0 0", "m BACKEND UP 1 3 0", "fleetctl_bridge FRONTEND OPEN 0 1 0"],
            (0, 2, 0),
        ),
        ("a request that is being received is not held", ["m one UP 1 0 0", "m BACKEND UP 1 1 0"], (0, 0, 0)),
        ("an engine that leaves completions unanswered", ["m one UP 0 0 0", "m BACKEND UP 0 2 0"], (0, 2, 0)),
        ("another backend", ["fleetctl_unknown_model BACKEND UP 0 3 0"], (0, 0, 0)),
    ],
)
def test_what_the_proxy_has_to_do(what: str, rows: list[str], load: tuple[int, int, int]) -> None:
    told = watch.load(stat("fleetctl_clients FRONTEND OPEN 0 9 0", *rows), ["m"])
    assert (told["waiting"], told["held"], told["running"], told["rate"]) == (*load, 7), what


def test_a_proxy_that_hangs_hides_no_engine(tmp_path: Path) -> None:
    """It accepts the connection to its socket, and says nothing."""
    path = str(tmp_path / "admin.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        began = time.monotonic()
        assert watch._Later(lambda: watch._proxy(path, ["b"])).result(began + 0.2) is None
        assert time.monotonic() - began < 3
    assert watch._Later(lambda: watch._proxy(path, ["b"])).result(time.monotonic() + 5) is None


def test_pressure_is_unknown_where_the_kernel_does_not_say(tmp_path: Path) -> None:
    told = tmp_path / "memory"
    assert watch.pressure(str(told)) is None
    told.write_text("some avg10=1.25 avg60=0.00 avg300=0.00 total=7\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=3\n")
    assert watch.pressure(str(told)) == 1.25
    told.write_text("nonsense")
    assert watch.pressure(str(told)) is None
