"""``fleetctl bench`` and ``fleetctl tune`` as people and scripts meet them, against an engine and against nonsense."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from answering import Answering
from planned import BEFORE, boxes_in, layout, office
from pooled import all_in_pool, pooled
from pooled import server as pool_server
from rich.console import Console
from standin_process import Running, start

from fleetctl.bench import way
from fleetctl.bench.endpoint import Endpoint
from fleetctl.bench.knee import Answer, Kind, Point
from fleetctl.bench.mix import Lengths, Mix
from fleetctl.bench.prompts import Counting, Dialect, Prompts
from fleetctl.bench.replay import Recording, answer_tokens, from_log, read_recording, replayed, write_recording
from fleetctl.bench.report import Told, write_report
from fleetctl.bench.tune import Tuned
from fleetctl.cli.bench import endpoint_of
from fleetctl.cli.show_knee import bar, show_knee
from fleetctl.errors import BoxError, RefusedError, SpecError
from fleetctl.facts.types import Drained, ProxyFacts
from fleetctl.onbox.proxyrequests import _request
from fleetctl.run import benching
from fleetctl.run.planning import Subject

PROGRAM = [sys.executable, "-c", "from fleetctl.cli.main import main; main()"]
KEY_NAME = "BENCH_TEST_KEY"


def fleetctl(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "FLEETCTL_FLEET": "/nowhere/fleet.yaml", **environment},
    )


def events(ran: subprocess.CompletedProcess[str]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for line in ran.stdout.splitlines():
        told = json.loads(line)
        found.setdefault(told["type"], []).append(told)
    return found


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    settings: dict[str, Any] = {"load_seconds": 0.1, "prefill_seconds_per_token": 0, "speed": 20, "max_model_len": 8192}
    with start("--max-num-seqs", "4", "--no-enable-prefix-caching", **settings) as process:
        process.wait_ready()
        yield process


def url(process: Running) -> str:
    return str(process.client.base_url)


def test_an_engine_is_measured_and_all_figures_are_in_a_file(engine: Running, tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    words = ("--against", url(engine), "--mix", "agent", "-c", "3", "--duration", "1s", "--warm-up", "200ms")
    ran = fleetctl("bench", *words, "--target", "ttft=30s", "--out", str(out), "--json")
    assert ran.returncode == 0, ran
    (told,) = events(ran)["bench"]
    assert told["answered"] > 0 and told["errors"] == {} and told["concurrency"] == 3
    assert told["ttft"]["p50"] < told["total"]["p50"] and told["tokens_out_rate"] > 0
    assert told["good_share"] == 1.0 and told["engine"]["running_max"] == 3
    assert told["prompt_tokens"]["mean"] == pytest.approx(400, rel=0.5)
    assert json.loads(out.read_text())["answered"] == told["answered"]
    people = fleetctl("bench", *words)
    assert "first token" in people.stdout and "requests/min" in people.stdout


def test_an_open_loop_and_embeddings_are_measured(engine: Running) -> None:
    common = ("--against", url(engine), "--duration", "1s", "--warm-up", "0s", "--json")
    (opened,) = events(fleetctl("bench", "--rate", "20", "--mix", "agent", *common))["bench"]
    assert opened["rate"] == 20 and 5 <= opened["requests"] <= 45 and opened["errors"] == {}
    (vectors,) = events(fleetctl("bench", "--mix", "embeddings", *common))["bench"]
    assert vectors["answered"] > 0 and vectors["tokens_out_rate"] == 0 and vectors["tokens_in_rate"] > 0


def test_the_limit_of_an_engine_is_no_knee_and_the_report_has_all_numbers(engine: Running, tmp_path: Path) -> None:
    page = tmp_path / "tune.html"
    ran = fleetctl(
        "tune", "--against", url(engine), "--mix", "agent", "--duration", "700ms", "--html", str(page), "--json"
    )
    assert ran.returncode == 0, ran
    found = events(ran)
    (tuned,) = found["tuned"]
    assert (tuned["answer"]["kind"], tuned["answer"]["concurrency"]) == ("limit of the engine", 4)
    assert len(found["point"]) == len(tuned["points"]) == len(found["probe"])
    text = page.read_text()
    assert "http://" not in re.sub(re.escape(url(engine)), "", text).replace("http://www.w3.org", "")
    assert "<svg" in text and "max_num_seqs" in text
    raw = text.partition('id="numbers">')[2].partition("</script>")[0]
    assert len(json.loads(raw)[0]["tuned"]["points"]) == len(tuned["points"])


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("bench", "--against", "nonsense"), 2, "https://"),
        (("tune", "--hold"), 2, "--hold says nothing here"),
        (("tune", "--settings", "batched_tokens"), 2, "it has no values"),
        (("tune", "--against", "http://127.0.0.1:9", "--drain"), 2, "--against names the endpoint"),
        (("tune", "--profiles", "/nowhere/at/all"), 2, "there is no such folder"),
        (("profile", "show", "gb10-nvfp4"), 2, "did you mean gb10-nvfp4-71gib-office?"),
        (("profile", "save", "--fleet", "/nowhere/fleet.yaml"), 2, "/nowhere/fleet.yaml"),
        (("bench", "--against", "http://127.0.0.1:9", "-c", "1", "--rate", "2"), 2, "three ways"),
        (("bench", "--against", "http://127.0.0.1:9", "qwen"), 2, "--against names the endpoint"),
        (("bench", "--against", "http://127.0.0.1:9", "--mix", "tea"), 2, "there is no mix tea"),
        (("bench", "--against", "http://127.0.0.1:9", "--duration", "soon"), 2, "--duration soon"),
        (("bench", "--against", "http://127.0.0.1:9", "--replay", "/nowhere"), 2, "/nowhere"),
        (
            ("bench", "--against", "http://127.0.0.1:9", "--api-key-env", "NOT_SET_AT_ALL"),
            2,
            "NOT_SET_AT_ALL is not set",
        ),
        (("bench", "--against", "http://127.0.0.1:9"), 1, "connection refused"),
        (("tune", "--against", "http://127.0.0.1:9", "--write"), 2, "--write"),
        (("tune", "--against", "http://127.0.0.1:9"), 1, "connection refused"),
        (("bench", "qwen"), 2, "/nowhere/fleet.yaml"),
        (("tune",), 2, "/nowhere/fleet.yaml"),
        (("bench", "record", "/tmp/x", "--since", "ever"), 2, "--since ever"),
    ],
)
def test_bad_input_is_said_in_one_message(words: tuple[str, ...], status: int, said: str) -> None:
    ran = fleetctl(*words, "--json")
    assert ran.returncode == status, ran
    assert "Traceback" not in ran.stderr
    (error,) = events(ran)["error"]
    assert said in f"{error['message']}\n{error['hint']}"


def test_a_key_is_in_no_output() -> None:
    with Answering() as server:
        words = ("--against", server.url, "--api-key-env", KEY_NAME, "--duration", "200ms", "--warm-up", "0s", "--json")
        ran = fleetctl("bench", *words, **{KEY_NAME: "sesame"})
    assert ran.returncode == 0, ran
    assert "sesame" not in ran.stdout + ran.stderr
    assert any("Bearer sesame" in head for head in server.heads)


# Replays


def log_line(**changes: Any) -> bytes:
    told = {"client": "10.0.0.9", "key": "agents", "method": "POST", "path": "/v1/chat/completions", "status": 200}
    told |= {"backend": "qwen", "server": "replicas-a", "total_ms": 2000, "first_byte_ms": 100, "bytes": 21_400}
    return b"1796034652.500 box1 haproxy[7]: " + json.dumps(told | changes, separators=(",", ":")).encode()


def test_of_a_request_in_the_log_only_numbers_are_kept() -> None:
    told = _request(log_line(), ["mail", "qwen"])
    assert told == [1, 1796034650500, 1796034652500, 100, 21_400, 200]
    assert all(type(number) is int for number in told)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"-- No entries --",
        b"1796034652.500 box1 haproxy[7]: Server qwen/a is UP",
        log_line(method="GET"),
        log_line(backend="gone"),
        log_line(bytes="many"),
        log_line(total_ms=True),
        log_line(status=10**15),
        log_line()[:-20],
    ],
)
def test_a_line_that_is_no_request_is_left_out(line: bytes) -> None:
    assert _request(line, ["qwen"]) is None


def test_a_recording_is_read_as_it_was_written_and_sent_at_its_times(tmp_path: Path) -> None:
    log = [[0, 1000, 3000, 100, 21_400, 200], [0, 500, 900, 395, 850, 200], [0, 700, 800, 9, 99, 503]]
    recording = from_log(log)
    assert recording == Recording(((0.0, 100), (0.5, 100)), 2.5)
    file = tmp_path / "recording.jsonl"
    write_recording(file, recording)
    assert read_recording(file) == recording
    assert "10.0.0" not in file.read_text()
    mix = Mix(name="m", prompt=Lengths(median=50, mean=60), answer=Lengths(median=9, mean=9))
    sent = list(replayed(recording, Prompts(mix, Dialect("m"), Counting()), faster=2.0))
    assert [(at, request.tokens) for at, request in sent] == [(0.0, 100), (0.25, 100)]
    with Answering() as server:
        words = ("--against", server.url, "--replay", str(file), "--faster", "5", "--json")
        (told,) = events(fleetctl("bench", *words))["bench"]
    assert (told["requests"], told["answered"]) == (2, 2)


@pytest.mark.parametrize(
    ("size", "first", "total", "tokens"),
    [(21_400, 100, 2000, 100), (850, 1990, 2000, 100), (0, -1, 10, 1), (10**11, 1, 10**6, 100_000)],
    ids=["streamed", "in one piece", "nothing", "absurd"],
)
def test_tokens_are_told_from_bytes(size: int, first: int, total: int, tokens: int) -> None:
    assert answer_tokens(size, first, total) == tokens


@pytest.mark.parametrize(
    "text", ["", "{}", "nonsense", '{"format": "fleetctl bench recording 1", "seconds": 9}\n[1]', "[1, 2]"]
)
def test_a_file_that_is_no_recording_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "recording.jsonl"
    file.write_text(text)
    with pytest.raises(SpecError, match=r"recording\.jsonl"):
        read_recording(file)


# Engines of a fleet


def standing(name: str | None, monkeypatch: pytest.MonkeyPatch, *, live: bool = True) -> benching.Standing:
    """What a name means on two boxes with copies, of which b is drained."""
    facts = (
        boxes_in(layout("replicas"), b={"drained": Drained(since=1.0, by="ops")}) if live else boxes_in(BEFORE, None)
    )
    monkeypatch.setattr(benching, "gather_some", lambda boxes, asked: (facts, {}))
    return benching.standing(Subject(office(), "", cast(Any, None)), name)


@pytest.mark.parametrize(
    ("name", "engines", "serving"),
    [
        (None, ["replicas/qwen@a", "replicas/qwen@b"], ["replicas/qwen@a"]),
        ("qwen", ["replicas/qwen@a", "replicas/qwen@b"], ["replicas/qwen@a"]),
        ("replicas/qwen@b", ["replicas/qwen@b"], []),
        ("b", ["replicas/qwen@b"], []),
        ("a", ["replicas/qwen@a"], ["replicas/qwen@a"]),
    ],
)
def test_a_model_a_box_or_an_engine_is_named_and_what_serves_is_known(
    name: str | None, engines: list[str], serving: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = standing(name, monkeypatch)
    assert [engine.id for engine in found.engines] == engines
    assert list(found.serving) == serving


def test_a_name_that_nothing_has_and_a_fleet_without_a_layout_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="qwne") as caught:
        standing("qwne", monkeypatch)
    assert "qwen" in (caught.value.hint or "")
    with pytest.raises(RefusedError, match="no layout is live"):
        standing(None, monkeypatch, live=False)


def in_the_pool(
    monkeypatch: pytest.MonkeyPatch, name: str | None, task: str | None = "generate", up: str = "UP"
) -> benching.Standing:
    """What a name means where everything is in a pool, with one gateway."""
    release = pooled()
    proxy = ProxyFacts(
        description="", servers={f"{backend}/{server.name}": pool_server(up) for backend, server in release.gateways()}
    )
    facts = all_in_pool(boxes_in(release, a={"proxy": proxy}), release)
    monkeypatch.setattr(benching, "gather_some", lambda boxes, asked: (facts, {}))
    return benching.standing(Subject(office(), "", cast(Any, None)), name, task)


def test_models_of_a_pool_are_chosen_by_what_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    found = in_the_pool(monkeypatch, None)
    assert {engine.model for engine in found.engines} == {"small"} and found.pooled == found.engines
    assert {engine.model for engine in in_the_pool(monkeypatch, "minilm", "embed").engines} == {"minilm"}
    assert {engine.model for engine in in_the_pool(monkeypatch, None, None).engines} == {"minilm", "small"}
    assert found.out == ()
    with pytest.raises(RefusedError, match="minilm embeds: there are no answers") as caught:
        in_the_pool(monkeypatch, "minilm")
    assert "--mix embeddings" in (caught.value.hint or "")
    with pytest.raises(RefusedError, match="small embeds nothing"):
        in_the_pool(monkeypatch, "small", "embed")


def test_a_gateway_that_is_down_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    (told,) = in_the_pool(monkeypatch, "small", up="DOWN").out
    assert told.startswith("the gateway ")


def test_the_settings_of_a_pool_are_not_searched_and_why_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusedError, match="small is in the pool of pool: its worker measures"):
        benching.refuse_pooled(in_the_pool(monkeypatch, "small"), "its worker measures", "`fleetctl bench small`")
    benching.refuse_pooled(standing("qwen", monkeypatch), "it cannot be", "")


def test_a_model_of_a_pool_goes_through_the_proxy_and_a_box_of_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: dict[str, Any] = {"fleet": Path("f"), "via": None, "accept_new": False, "ssh_config": None}

    @contextlib.contextmanager
    def opened(*_: Any, **__: Any) -> Iterator[Any]:
        yield Subject(office(), "", cast(Any, None))

    way_in = way.Way(Endpoint("10.0.0.1", 8443), "through the proxy", 0.0)
    monkeypatch.setattr("fleetctl.cli.session.open_fleet", opened)
    monkeypatch.setattr(benching, "through_proxy", lambda subject, found: way_in)
    in_the_pool(monkeypatch, None)
    with endpoint_of("minilm", None, None, proxy=False, yes=True, json=True, task="embed", **ways) as tested:
        assert (tested.what, tested.served_as, tested.endpoint) == ("proxy", "minilm", way_in.endpoint)
    with (
        pytest.raises(SpecError, match=r"^b: requests for models of the pool wait in one queue") as caught,
        endpoint_of("b", None, None, proxy=False, yes=True, json=True, **ways),
    ):
        pass
    assert caught.value.hint == "name a model: fleetctl bench small"


def test_an_engine_that_cannot_be_reached_either_way_is_said_with_its_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way, "answers", lambda endpoint: False)
    gone = BoxError("b", "no route to host")
    subject = Subject(office(), "", cast(Any, {}), {"b": gone})
    engine = layout("replicas").engines[1]
    with pytest.raises(BoxError, match="b: no route to host"), benching.reached(subject, engine):
        pass


# What is shown


POINTS = tuple(
    Point(n, rate, ttft=0.1 * n, total=n / rate, requests=30)
    for n, rate in [(1, 36.0), (4, 81.0), (8, 113.0), (16, 87.0)]
)
TOLD = Told(
    "replicas/</script>@a",
    "qwen",
    "email",
    "2026-11-30 15:00 UTC",
    Tuned(POINTS, Answer(8, Kind.KNEE, 112.5, 0.93, "throughput falls beyond it", curve=((1, 36.0), (16, 87.0)))),
)


def test_the_terminal_shows_a_bar_for_each_concurrency_and_the_answer() -> None:
    out = io.StringIO()
    show_knee(TOLD, Console(file=out, width=160))
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["1", "4", "8", "16"]
    assert max(lines[2:6], key=lambda line: line.count("█")).split()[:2] == ["8", "113.0"]
    assert "8 at once (knee): throughput falls beyond it" in out.getvalue()
    assert (bar(0), bar(1), bar(2), bar(0.5)) == ("", "█" * 32, "█" * 32, "█" * 16)


def test_the_report_needs_nothing_else_and_escapes_what_it_shows(tmp_path: Path) -> None:
    file = tmp_path / "tune.html"
    write_report(file, [TOLD, replace(TOLD, what="other")])
    text = file.read_text()
    assert text.count("<svg") == 6 and text.count("</script>") == 1
    assert not re.search(r"(src|href)=", text)
    raw = text.partition('id="numbers">')[2].partition("</script>")[0]
    assert json.loads(raw)[0]["what"] == TOLD.what
