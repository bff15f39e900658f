"""The status page: it tells and does nothing else, whoever asks; the boxes are left alone when nobody looks."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetctl.lab.browser import NAMES, browser
from fleetctl.resources import root_text
from fleetctl.watch.feed import MOST, Feed
from fleetctl.watch.page import Page, is_ours
from fleetctl.watch.pool_sample import PoolEngineSample, PoolModelSample, PoolProgramSample, PoolSample
from fleetctl.watch.sample import BoxSample, Copy, Counts, Figures, ProxySample, Sample

GIB = 1024**3
ONE = Figures(2.0, 1.0, 812.0, 41.25, 18.0, 0.4, 0.12, 0.6, None)
COPIES = (
    Copy("replicas/qwen@a", "qwen", ("a",), "UP", "active", ONE, Counts()),
    Copy("replicas/qwen@b", "qwen", ("b",), "DOWN", "unknown", Figures(), Counts(), why="b: <no answer>"),
)
SAMPLE = Sample(
    1.0,
    "office",
    "replicas",
    7,
    COPIES,
    ONE,
    boxes={"a": BoxSample(128 * GIB, 32 * GIB, 0, 0.0, False), "b": BoxSample(why="no answer")},
    proxy=ProxySample(3, 2, 1.0),
    changed=5.0,
)
CHANGE = {"at": 3.0, "who": "ann@desk", "operation": "cutover", "result": "failed", "boxes": ["a"], "unit": None}
CHANGE |= {"from_layout": "split", "from_generation": 6, "to_layout": "replicas", "generation": 7, "why": "no room"}
STATE: dict[str, Any] = {"healthy": False, "problems": ["b cannot be reached: <b>off</b>"], "notes": ["a note"]}
STATE |= {"unfinished": None, "lock": None, "memory": {"a": {"engines": 96 * GIB, "lowest": None}}, "changes": [CHANGE]}


POOL = PoolSample(
    (PoolProgramSample("worker", "a", "w", "active", True, True), PoolProgramSample("nats", "b", "n", "failed")),
    (
        PoolEngineSample("pool/minilm@a", "minilm", "a", "loaded", True, None, GIB, 2, 1, 20.0, 200.0),
        PoolEngineSample("pool/small@a", "small", "a", "failed", running=0, reason="<no weights>"),
        PoolEngineSample("pool/minilm@b", "minilm", "b"),
    ),
    {"minilm": PoolModelSample(9, 2, 11, 240.0, 0, 3, 1, 20.0, 200.0, 26.0, 6.0)},
    waiting=9,
    oldest=240.0,
    refused_rate=6.0,
)


class Fleet:
    """Counts how often it is looked at."""

    def __init__(self) -> None:
        self.samples = self.states = 0
        self.copies = COPIES
        self.pool: PoolSample | None = None

    def sample(self) -> Sample:
        self.samples += 1
        return replace(SAMPLE, at=time.time(), copies=self.copies, pool=self.pool)

    def state(self) -> dict[str, Any]:
        self.states += 1
        return STATE


def quick(fleet: Fleet) -> Feed:
    return Feed(fleet.sample, fleet.state, every=0.05, state_every=5, linger=0.2)


@contextmanager
def served(fleet: Fleet) -> Iterator[Page]:
    feed = quick(fleet)
    page = Page(("127.0.0.1", 0), feed, ["status.office"])
    thread = threading.Thread(target=page.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield page
    finally:
        feed.close()
        page.shutdown()
        page.server_close()


def ask(page: Page, method: str = "GET", path: str = "/", host: str | None = None) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", page.server_port, timeout=20)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = "" if path == "/events" and answer.status == 200 else answer.read().decode()
    connection.close()
    return answer.status, body, dict(answer.headers)


def eventually(so: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not so():
        assert time.monotonic() < end
        time.sleep(0.02)


# Who is answered, and what


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("127.0.0.1:9791", True),
        ("localhost:9791", True),
        ("LOCALHOST", True),
        ("[::1]:9791", True),
        ("10.0.0.5:80", True),
        ("status.office:9791", True),
        ("evil.example:9791", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("", False),
        (None, False),
    ],
)
def test_a_name_that_somebody_else_points_here_is_not_answered(host: str | None, ours: bool) -> None:
    assert is_ours(host, ["status.office"]) is ours


def test_the_page_does_not_wait_for_a_dns_server_and_has_its_whole_name_when_that_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = threading.Event()
    monkeypatch.setattr("socket.getfqdn", lambda: "desk.office.example" if answered.wait(60) else "")
    with served(Fleet()) as page:
        assert ask(page)[0] == 200
        assert ask(page, host="desk.office.example")[0] == 421
        answered.set()
        eventually(lambda: ask(page, host="desk.office.example")[0] == 200)


def test_the_page_only_tells() -> None:
    fleet = Fleet()
    with served(fleet) as page:
        assert ask(page)[0] == 200
        assert ask(page, "HEAD")[:2] == (200, "")
        assert ask(page, path="/etc/passwd")[0] == ask(page, path="/../index.html")[0] == 404
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            status, _, headers = ask(page, method, "/api/status")
            assert (status, headers["Allow"]) == (405, "GET, HEAD")
        for path in ("/", "/api/status", "/events"):
            assert ask(page, path=path, host="evil.example")[0] == 421
        assert (fleet.samples, fleet.states) == (0, 0)
        assert ask(page, path="/api/status", host="status.office")[0] == 200


def test_nothing_runs_on_the_page_but_its_own_script_and_nothing_comes_from_elsewhere() -> None:
    html = root_text("web", "index.html")
    elsewhere = [url for url in re.findall(r"""https?://[^\s'"]+""", html) if "www.w3.org" not in url]
    assert elsewhere == [] and "innerHTML" not in html and not re.search(r"\s(style|on[a-z]+)=", html)
    with served(Fleet()) as page:
        _, _, headers = ask(page)
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self'") and "unsafe" not in policy
    assert policy.count("sha256-") == 2
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"


def test_the_status_is_there_as_json() -> None:
    fleet = Fleet()
    with served(fleet) as page:
        told = json.loads(ask(page, path="/api/status")[1])
        ask(page, path="/api/status")
    assert told["state"] == STATE
    assert told["sample"]["copies"][1]["why"] == "b: <no answer>"
    assert told["sample"]["total"]["generation_rate"] == 41.25


# The boxes are asked for those who look


def test_many_viewers_share_one_look_and_nobody_looks_for_nobody() -> None:
    fleet = Fleet()
    feed = quick(fleet)
    time.sleep(0.2)
    assert (fleet.samples, feed.at_work) == (0, False)
    with feed.viewer() as one, feed.viewer() as two:
        assert next(one)[0][0] == next(two)[0][0] == "past"
        eventually(lambda: fleet.samples >= 5)
        kinds = {kind for _ in range(20) for kind, _ in next(one)}
        assert kinds == {"sample", "state"}
        assert fleet.states == 1
        seen = fleet.samples
        with feed.viewer() as late:
            (kind, past), *_ = next(late)
            assert kind == "past" and len(json.loads(past)) >= seen
    eventually(lambda: not feed.at_work)
    rest = fleet.samples
    time.sleep(0.3)
    assert fleet.samples == rest
    with feed.viewer() as again:
        next(again)
        eventually(lambda: fleet.samples > rest)
    feed.close()


def test_one_viewer_too_many_is_told_so() -> None:
    fleet = Fleet()
    with served(fleet) as page:
        viewers = [page.feed.viewer() for _ in range(MOST)]
        for viewer in viewers:
            viewer.__enter__()
        assert ask(page, path="/events")[0] == 503
        for viewer in viewers:
            viewer.__exit__(None, None, None)
        assert ask(page, path="/events")[0] == 200


# What a reader sees


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_every_colour_of_words_can_be_read_on_its_ground(mode: int) -> None:
    block = re.findall(r":root \{(.*?)\}", root_text("web", "index.html"), re.DOTALL)[mode]
    colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", block))
    for word in ("ink", "soft", "good", "warn", "bad", "mark"):
        for ground in ("ground", "card"):
            dark, light = sorted((luminance(colours[word]), luminance(colours[ground])))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (word, ground)  # WCAG 2, level AA


can_browse = pytest.mark.skipif(
    os.geteuid() != 0 and not any(map(shutil.which, NAMES)), reason="no chromium, and only root can install one"
)


@can_browse
def test_a_browser_shows_what_is_known_and_what_is_not_on_a_desk_and_on_a_phone(tmp_path: Path) -> None:
    fleet = Fleet()
    with served(fleet) as page, browser() as tab:
        tab.go(f"http://127.0.0.1:{page.server_port}/")
        tab.until("document.querySelector('#wrong li') && document.querySelector('#copies tr')")
        cells = "[...document.querySelectorAll('#copies tr')].map(row => [...row.children].map(c => c.innerText))"
        known, unknown = tab.evaluate(cells)
        assert known[1:5] == ["active, proxy UP", "2", "1", "41.3"]
        assert unknown[1].split("\n") == ["unknown", "b: <no answer>"]
        assert unknown[2:6] == ["unknown"] * 4
        text = tab.evaluate("document.body.innerText")
        assert "wrongb cannot be reached: <b>off</b>" in text
        assert "tokens/s out (1 of 2 copies)" in text
        assert "cutover split (6) → replicas (7): failed" in text and "by ann@desk: no room" in text
        assert "96.0 GiB" in text and "75 %" in text
        fleet.copies = (COPIES[0], replace(COPIES[0], id="replicas/qwen@b"))
        tab.until("!document.querySelector('[data-known=false]')")
        for width, phone in ((1200, False), (360, True)):
            tab.size(width, 800, phone=phone)
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
        ground = "getComputedStyle(document.body).backgroundColor"
        light = tab.evaluate(ground)
        tab.dark(True)
        assert tab.evaluate(ground) != light
        page.feed.close()
        page.shutdown()
        page.server_close()
        tab.until("document.body.classList.contains('stale')")
        assert "no news since" in tab.evaluate("document.getElementById('live').textContent")
        assert [error for error in tab.errors if "Failed to load" not in error and "ERR_" not in error] == []


@can_browse
def test_a_browser_shows_a_pool_as_top_does(tmp_path: Path) -> None:
    fleet = Fleet()
    fleet.copies, fleet.pool = (), POOL
    with served(fleet) as page, browser() as tab:
        tab.go(f"http://127.0.0.1:{page.server_port}/")
        tab.until("document.querySelector('#pool-engines tr')")
        cells = "[...document.querySelectorAll('#{} tr')].map(row => [...row.children].map(c => c.innerText))"
        loaded, failed, unknown = tab.evaluate(cells.format("pool-engines"))
        assert loaded[1:] == ["loaded, pinned, drained", "2", "1", "20", "200", "1.0 GiB", "now"]
        assert failed[1].split("\n") == ["failed, drained", "<no weights>"] and failed[-1] == "never"
        assert unknown[1:4] == ["unknown", "unknown", "unknown"]
        assert tab.evaluate(cells.format("pool-models")) == [["minilm", "9", "4 min", "2", "3", "1", "20", "6"]]
        assert tab.evaluate("document.getElementById('pool-programs').innerText") == (
            "worker on a: active; NATS on b: failed"
        )
        assert tab.evaluate("document.getElementById('of-copies').hidden")
        for width, phone in ((1200, False), (360, True)):
            tab.size(width, 800, phone=phone)
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
        fleet.copies, fleet.pool = COPIES, None
        tab.until("document.getElementById('of-pool').hidden && document.querySelector('#copies tr')")
        assert tab.errors == []
