"""Logs of several boxes as one: order, names, times, and what is taken out of a line before it is shown."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import office

from fleetctl.errors import RefusedError, SpecError
from fleetctl.onbox import logs as onbox
from fleetctl.onbox.redacted import redacted as on_the_box
from fleetctl.remote.errors import ConnectionLost, OpFailed
from fleetctl.render.layout import render_layout
from fleetctl.watch.logs.clean import HIDDEN, lines_of, redacted
from fleetctl.watch.logs.line import Line, Note
from fleetctl.watch.logs.merge import LONGEST, STALL, WINDOW, Merge, Phase
from fleetctl.watch.logs.moment import parse_moment
from fleetctl.watch.logs.names import Source, chosen, sources_of
from fleetctl.watch.logs.reading import Reading
from fleetctl.watch.logs.stream import Wanted

# What is shown of a line


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("vllm serve m --api-key sk-abc --port 8000", f"vllm serve m --api-key {HIDDEN} --port 8000"),
        ("vllm serve m --api-key=abc,def x", f"vllm serve m --api-key={HIDDEN} x"),
        ("args: ['serve', '--api-key', 'very secret', '-x']", f"args: ['serve', '--api-key', '{HIDDEN}', '-x']"),
        (
            "non-default args: {'api_key': ['one two', 'b'], 'port': 1}",
            f"non-default args: {{'api_key': {HIDDEN}, 'port': 1}}",
        ),
        (
            "Namespace(api_key=['abc'], hf_token='hf_x', seed=0)",
            f"Namespace(api_key={HIDDEN}, hf_token={HIDDEN}, seed=0)",
        ),
        ("api_key=None, hf_token=None, ssl_keyfile=None", "api_key=None, hf_token=None, ssl_keyfile=None"),
        ("HF_TOKEN=hf_short VLLM_API_KEY='a b' X=1", f"HF_TOKEN={HIDDEN} VLLM_API_KEY={HIDDEN} X=1"),
        ("AWS_SECRET_ACCESS_KEY: abc/def", f"AWS_SECRET_ACCESS_KEY: {HIDDEN}"),
        ('{"password": "it\\"s", "user": "me"}', f'{{"password": {HIDDEN}, "user": "me"}}'),
        ("Authorization: Bearer abc.def-123", f"Authorization: Bearer {HIDDEN}"),
        ("x-api-key: 12345", f"x-api-key: {HIDDEN}"),
        ("fetching https://me:pass@hub.example/x", f"fetching https://me:{HIDDEN}@hub.example/x"),
        ("token hf_abcdefghijklmnopqrstuv is bad", f"token {HIDDEN} is bad"),
        ("key sk-proj_0123456789abcdef used", f"key {HIDDEN} used"),
        ('body={\\"api_key\\": \\"abc\\"}', f'body={{\\"api_key\\": {HIDDEN}\\"}}'),
        ('{"accessToken":"abc", "token": "def"}', f'{{"accessToken":{HIDDEN}, "token": {HIDDEN}}}'),
        ("authorization: Token abcdef", f"authorization: Token {HIDDEN}"),
        ("(b'authorization', b'abcdef')", f"(b'authorization', b'{HIDDEN}')"),
        ("Cookie: session=abc; other=def", f"Cookie: {HIDDEN}"),
        ("http://me:p@ss@host/x", f"http://me:{HIDDEN}@host/x"),
        ("GET /x?token=abc&a=1 and ?X-Amz-Signature=abc", f"GET /x?token={HIDDEN}&a=1 and ?X-Amz-Signature={HIDDEN}"),
        ("DB_PASS=abc MYSQL_PWD=abc PWD=/root", f"DB_PASS={HIDDEN} MYSQL_PWD={HIDDEN} PWD=/root"),
        ("--api-key ['abc', 'd'] x", f"--api-key {HIDDEN} x"),
        ('api_key = "abc', f"api_key = {HIDDEN}"),
        ("github_pat_0123456789abcdefgh", HIDDEN),
        ("eyJhbGciOiJIUzI1NiJ9.eyJhIjoxfQabc.abc", HIDDEN),
        # Nothing secret in these.
        ("unexpected token: 'x', token=5 http://host:8000/users/a b@c", None),
        ("Avg generation throughput: 12.0 tokens/s, Running: 1 reqs", None),
        ("max_num_batched_tokens=8192, eos_token_id: 2, pad_token='<pad>', token_ids=[1]", None),
        ("max_tokens=16 prompt_tokens: 5 tokenizer=/models/x KEY=1", None),
        ("GPU KV cache size: 1,520,000 tokens", None),
        ("--tokenizer-mode auto --max-num-seqs 4", None),
    ],
)
def test_values_of_keys_and_tokens_are_hidden_and_nothing_else(said: str, shown: str | None) -> None:
    assert lines_of(said) == [said if shown is None else shown]


@pytest.mark.parametrize(
    "piece", ["a_", "a-", "-a", "A_", "aA_", "a.", "hf_token", "access_", "secret ", "'a',", "a://b:"]
)
@pytest.mark.parametrize("hide", [redacted, on_the_box], ids=["log", "box"])
def test_no_line_takes_long_to_be_made_safe(piece: str, hide: Callable[[str], str]) -> None:
    """Twice as long a line may take a little more than twice the time, and not four times and more."""

    def took(length: int) -> float:
        line = f"--api-key ['{piece}" + piece * (length // len(piece))
        began = time.process_time()
        hide(line)
        return time.process_time() - began

    took(1000)
    assert min(took(16_000) for _ in range(3)) < 0.05 + 12 * min(took(4_000) for _ in range(3))


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("\x1b[1;36m(EngineCore pid=9)\x1b[0;0m INFO", ["(EngineCore pid=9) INFO"]),
        ("\x1b]0;owned\x07title", ["title"]),
        (
            "bell \x07, back \x08, csi \x9b2J, turned \u202eabc",
            ["bell \\x07, back \\x08, csi \\x9b2J, turned \\u202eabc"],
        ),
        ("loading 10%\rloading 50%\rloading 100%\r", ["loading 100%"]),
        ("two\nlines\n", ["two", "lines"]),
        ("", [""]),
        ("a\tb", ["a       b"]),
    ],
)
def test_a_terminal_gets_nothing_to_obey(said: str, shown: list[str]) -> None:
    assert lines_of(said) == shown


@given(st.text())
def test_whatever_an_engine_prints_no_control_character_is_left(text: str) -> None:
    for line in lines_of(text):
        assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in line)


# Order


def line(box: str, at: float) -> Line:
    return Line(box, "u.service", at, at, "", "", "", f"{box} {at:g}")


def test_what_was_there_before_comes_in_order_however_late_a_box_is() -> None:
    merge = Merge(["a", "b"], patient=True)
    merge.add("a", [line("a", 1), line("a", 3), line("a", 5)], 5, now=100)
    assert merge.take(100 + 10 * STALL) == [], "b has not told anything yet"
    merge.add("b", [], 2, now=100)
    assert [one.at for one in merge.take(100)] == [1], "b has been read up to 2, and had nothing"
    merge.add("b", [line("b", 4)], 4, now=101)
    assert [one.at for one in merge.take(101)] == [3, 4]
    merge.expect("b", Phase.AWAY, 101)
    assert [one.at for one in merge.take(101)] == [5]
    merge.expect("b", Phase.OVER, 101)
    assert not merge.over()
    merge.expect("a", Phase.AWAY, 101)
    assert not merge.over(), "it may come back"
    merge.expect("a", Phase.OVER, 101)
    assert merge.over()


def followed() -> Merge:
    merge = Merge(["a", "b"], patient=False)
    for box in ("a", "b"):
        merge.expect(box, Phase.LIVE, 99)
    return merge


def test_a_line_waits_a_moment_for_an_earlier_one_of_another_box() -> None:
    merge = followed()
    merge.add("a", [line("a", 100)], 100, now=100.05)
    assert merge.take(100.1) == []
    merge.add("b", [line("b", 99.9)], 99.9, now=100.2)
    assert [one.box for one in merge.take(100.2)] == ["b"]
    assert [one.box for one in merge.take(100 + WINDOW)] == ["a"]


def test_no_clock_holds_a_line_back_for_long() -> None:
    merge = followed()
    merge.add("a", [line("a", 4000)], 4000, now=100)
    assert merge.take(100.5) == []
    assert [one.at for one in merge.take(100 + LONGEST)] == [4000]


def test_a_box_that_hangs_while_it_is_read_is_not_waited_for_when_following() -> None:
    merge = Merge(["a", "b"], patient=False)
    merge.add("a", [line("a", 1)], 1, now=100)
    assert merge.take(100 + STALL / 2) == []
    assert [one.at for one in merge.take(100 + 2 * STALL)] == [1]


def test_a_clock_that_is_set_back_does_not_turn_a_box_round() -> None:
    merge = Merge(["a"], patient=True)
    merge.add("a", [line("a", 10), line("a", 7)], 7, now=100)
    merge.expect("a", Phase.AWAY, 100)
    told = merge.take(100)
    assert [(one.text, one.at, one.box_at) for one in told] == [("a 10", 10, 10), ("a 7", 10, 7)]


def test_any_mixture_comes_out_complete_and_each_box_in_its_own_order() -> None:
    dice = random.Random(7)
    for _ in range(50):
        boxes = ["a", "b", "c"]
        merge, out, put = Merge(boxes, patient=True), [], []
        times = {box: sorted(dice.uniform(0, 100) for _ in range(30)) for box in boxes}
        left = {box: list(of) for box, of in times.items()}
        while any(left.values()):
            box = dice.choice([name for name in boxes if left[name]])
            piece, left[box] = left[box][:5], left[box][5:]
            put += piece
            merge.add(box, [line(box, at) for at in piece], piece[-1], now=0)
            out += merge.take(0)
        for box in boxes:
            merge.expect(box, Phase.AWAY, 0)
        out += merge.take(0)
        assert [one.at for one in out] == sorted(put)


# Boxes


class Journal:
    """A box whose clock is ahead, with lines to tell; the connection to it breaks after some of them, once."""

    def __init__(self, name: str, ahead: float, times: list[float], breaks_after: int | None = None) -> None:
        self.name, self._ahead, self._times, self._breaks_after = name, ahead, times, breaks_after
        self.asked: list[str | None] = []

    def call(self, op: str, /, **_: Any) -> Any:
        return time.time() + self._ahead if op == "clock" else {}

    def call_with(self, op: str, args: dict[str, Any], on_event: Callable[[dict[str, Any]], None]) -> Any:
        self.asked.append(args["cursor"])
        for number in range(int(args["cursor"] or 0), len(self._times)):
            if number == self._breaks_after:
                self._breaks_after = None
                raise ConnectionLost(self.name, "the connection is gone")
            at = int((self._times[number] + self._ahead) * 1e6)
            line = [at, "u.service", "python3", "7", "6", f"{self.name} {number}"]
            on_event({"lines": [line], "cursor": str(number + 1), "at": at, "live": False, "skipped": 0})
        raise OpFailed(self.name, op, "OpError", "journalctl ended")

    def reconnect(self) -> None: ...

    def cancel(self, ops: object) -> None: ...


def read(*boxes: Journal, follow: bool) -> tuple[list[Line | Note], list[str]]:
    sources = [Source(box.name, "u.service", "u") for box in boxes]
    wanted = Wanted((), follow, None, 0.0, None, None)
    told: list[Line | Note] = []
    with Reading(sources, wanted, {box.name: box for box in boxes}, None, {}) as reading:  # type: ignore[misc]
        for item in reading:
            told += [item] if item is not None else []
            if follow and sum(isinstance(one, Line) for one in told) == 4:
                break
    return told, [error.message for error in reading.errors()]


def test_lines_of_a_box_whose_clock_is_wrong_are_put_where_they_belong_and_it_is_said() -> None:
    now = time.time() - 60
    told, failed = read(Journal("a", 0, [now, now + 2]), Journal("b", 40, [now + 1, now + 3]), follow=False)
    lines = [one for one in told if isinstance(one, Line)]
    assert [one.text for one in lines] == ["a 0", "b 0", "a 1", "b 1"]
    assert lines[1].at == pytest.approx(now + 1, abs=0.1) and lines[1].box_at == pytest.approx(now + 41, abs=0.1)
    assert Note("b", "its clock is 40.0 s ahead of this machine's; times are shown by this machine's") in told
    assert sorted(failed) == ["a: journalctl ended", "b: journalctl ended"]


def test_a_log_that_is_followed_goes_on_behind_the_last_line_after_a_lost_connection() -> None:
    now = time.time() - 60
    box = Journal("a", 0, [now, now + 1, now + 2, now + 3], breaks_after=2)
    told, failed = read(box, follow=True)
    assert [one.text for one in told if isinstance(one, Line)] == ["a 0", "a 1", "a 2", "a 3"]
    assert box.asked == [None, "2"] and failed == []
    assert [one.text for one in told if isinstance(one, Note)][:2] == [
        "the connection is gone; trying again until it is back",
        "is back",
    ]


# Times


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("10 min ago", 600),
        ("10min", 600),
        ("-2h", 7200),
        ("1 day 2 hours ago", 93600),
        ("90s", 90),
        ("now", 0),
        ("@1796034600", 52),
        ("2026-11-30 10:30:00", 52),
        ("2026-11-30T10:30", 52),
        ("2026-11-30", 10 * 3600 + 30 * 60 + 52),
        ("today", 10 * 3600 + 30 * 60 + 52),
        ("10:30", 52),
        ("10:30:51.5", 0.5),
    ],
)
def test_moments_are_understood_here(text: str, before: float) -> None:
    now = datetime(2026, 11, 30, 10, 30, 52).timestamp()
    wanted = 1796034600.0 if text.startswith("@") else now - before
    assert parse_moment(text, now) == pytest.approx(wanted)


@pytest.mark.parametrize("text", ["", "soon", "25:00", "10 parsecs", "@", "2026-13-01", "ago", "9" * 30 + " days ago"])
def test_what_is_no_moment_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="write like"):
        parse_moment(text, 1796034652.0)


# Names


def test_names_are_boxes_models_engines_layouts_and_units() -> None:
    fleet = office()
    live = render_layout(fleet, "replicas")
    sources = sources_of(fleet, live)

    def of(*names: str, everything: bool = False) -> list[str]:
        return [f"{s.box} {s.unit}" for s in chosen(sources, names, live, fleet.boxes, everything=everything)]

    one, two = fleet.boxes
    copy = "fleetctl-replicas-qwen.service"
    assert of() == of("qwen") == of("replicas") == of(copy) == of(copy.removesuffix(".service"))
    assert of() == [f"{one} {copy}", f"{two} {copy}"]
    assert of(two) == of(f"replicas/qwen@{two}") == [f"{two} {copy}"]
    assert of(one, two) == of(one, two, one) == of()
    assert of("split") == [f"{box} fleetctl-split-qwen.service" for box in (one, two)], "of another layout, if named"
    assert f"{one} fleetctl-proxy.service" in of(everything=True)
    assert of("proxy") == of("fleetctl-proxy") == [f"{one} fleetctl-proxy.service"]
    with pytest.raises(SpecError, match="there is no box, model, engine or unit qwn") as wrong:
        of("qwn")
    assert wrong.value.hint == "did you mean qwen?"
    with pytest.raises(SpecError) as wrong:
        of("other.yaml")
    assert "--fleet other.yaml" in (wrong.value.hint or "")
    assert all(isinstance(source, Source) for source in sources)


def test_before_the_first_layout_there_is_no_engine_to_read() -> None:
    fleet = office()
    sources = sources_of(fleet, None)
    with pytest.raises(RefusedError, match="no layout is live yet"):
        chosen(sources, [], None, fleet.boxes, everything=False)
    assert chosen(sources, ["split"], None, fleet.boxes, everything=False)


# On the box


@pytest.mark.parametrize(
    ("value", "text"),
    [("plain", "plain"), ([104, 105, 255], "hi\ufffd"), (None, ""), (["a", "b"], "a\nb"), ([], ""), (7, "7")],
)
def test_fields_of_the_journal_in_all_their_forms_are_text(value: object, text: str) -> None:
    assert onbox.text_of(value) == text


def test_a_pattern_without_capitals_matches_any_case_and_health_checks_do_not_count() -> None:
    from fleetctl.cli.logs import HEALTH_CHECKS

    sieve = onbox.Sieve("error", HEALTH_CHECKS)
    assert sieve.keeps("ValueError: no") and not sieve.keeps("fine")
    assert not onbox.Sieve("Error", None).keeps("an error")
    quiet = onbox.Sieve(None, HEALTH_CHECKS)
    assert not quiet.keeps('INFO:     10.0.0.1:33492 - "GET /health HTTP/1.1" 200 OK')
    assert quiet.keeps('INFO:     10.0.0.1:33492 - "GET /health HTTP/1.1" 503 Service Unavailable')
    assert quiet.keeps('INFO:     10.0.0.1:33492 - "POST /v1/chat/completions HTTP/1.1" 200 OK')
