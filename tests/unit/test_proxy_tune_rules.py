"""What is advised for each setting, from what was measured; and that what was advised once stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.proxy.tune.advice import STEPS, Advice, fitted, written
from fleetctl.proxy.tune.figures import (
    Changes,
    Checks,
    EngineFigures,
    HistogramsTold,
    Log,
    Measured,
    Requests,
    Times,
)
from fleetctl.proxy.tune.rules_checks import OUT_WITHIN, out_after
from fleetctl.proxy.tune.tune import tune
from fleetctl.spec.checks.proxy import CHECKS
from fleetctl.spec.fleet_proxy import Proxy
from fleetctl.spec.load import parse_fleet
from fleetctl.spec.units import parse_duration

FILE = """\
fleet: office
boxes: {a: {address: 10.0.0.1, memory: 100GiB, reserve: 20GiB}}
models: {m: {weights: org/m, context: 8192, launch: {venv: /opt/vllm}}}
layouts: {one: {m: {copies: [a]}}}
proxy:
  box: a
"""


def times(longest: float, count: int = 1000, usual: float | None = None) -> Times:
    """``count`` durations of ``usual`` seconds, and the longest one."""
    usual = longest if usual is None else usual
    return Times(buckets=((round(usual * 1000), count - 1), (round(longest * 1000), 1)), longest=round(longest * 1000))


def requests(count: int = 1000, **figures: Any) -> Requests:
    """Quick requests, but for what is said."""
    quick = {"run": 2.0, "first_byte": 1.0, "queue": 0.5, "connect": 0.002, "idle": 3.0}
    given_ = {name: figures.pop(name, longest) for name, longest in quick.items()}
    named = {name: one if isinstance(one, Times) else times(one, count) for name, one in given_.items()}
    counts = {"requests": count, **figures.pop("counts", {})}
    return Requests.model_validate({**named, "counts": counts, **figures})


def engine(id_: str = "replicas/m@a", *, first: float | None = None, prompt: float = 0) -> EngineFigures:
    """An engine; ``first`` are the seconds of its slowest first token, ``prompt`` the tokens of its longest prompt."""
    told = None
    if first is not None:
        told = HistogramsTold(
            time_to_first_token_seconds=((0.1, 500.0), (first, 3.0)), request_prompt_tokens=((prompt, 503.0),)
        )
    return EngineFigures(id_, "m", 100_000, 12, told)


PAIR = (engine("replicas/m@a"), engine("replicas/m@b"))


def measured(
    given_: dict[str, Any] | None = None,
    *,
    engines: tuple[EngineFigures, ...] = PAIR,
    loads: tuple[float, ...] = (40.0, 43.0),
    took: float | None = 0.004,
    checked: int = 2,
    failed: int = 0,
    qmax: int = 0,
    changes: dict[str, Any] | None = None,
    **figures: Any,
) -> Measured:
    """A fleet in which nothing is odd, but for what is said."""
    log = Log(
        lines=5000, oldest=1.0, newest=2.0, backends={"m": requests(**figures)}, changes=Changes(**(changes or {}))
    )
    return Measured(
        settings=Proxy.model_validate({"box": "a", **(given_ or {})}),
        engines=engines,
        log=log,
        checks=None if took is None else Checks(took=times(took, 20), checked=checked, failed=failed, qmax={"m": qmax}),
        loads={"replicas/m@a": loads} if loads else {},
        stops=(3.0,),
    )


def advised(measured_: Measured, setting: str) -> Advice:
    return next(advice for advice in tune(measured_) if advice.setting == setting)


CASES: list[tuple[str, Measured, str, str]] = [
    # setting, measured, advised, part of why
    ("hold", measured(), "20m", "the longest of 2 starts took 43 s"),
    ("hold", measured({"hold": "2m"}), "4m", "it has to be 3 min or more"),
    ("hold", measured({"hold": "20m"}, loads=(900.0,)), "30m", "took 15 min"),
    ("hold", measured({"hold": "3m"}, engines=PAIR[:1]), "10m", "3 min to boot"),
    ("hold", measured({"hold": 0}, run=100.0), "4m", "with a drain of 2 min"),
    ("hold", measured({"hold": "12h"}), "4m", "starts"),
    ("hold", measured(counts={"hold_over": 7}), "20m", "7 requests ran out of it"),
    ("drain", measured(), "2m", "99 in 100 took at most 2.0 s, the longest 2.0 s"),
    ("drain", measured({"drain": "1s"}), "30s", "of 1000 answers"),
    ("drain", measured(run=200.0), "5m", "the longest 3 min"),
    ("drain", measured({"hold": "2m"}, run=200.0, loads=()), "2m", "the longest 3 min"),
    ("drain", measured(run=5000.0, first_byte=1.0), "15m", "those above 10 min are not waited for"),
    ("drain", measured({"drain": "1h", "hold": "1h"}), "30s", "of 1000 answers"),
    ("stream_limit", measured(), "1h", "the longest answer took 2.0 s, 1.0 s of silence"),
    ("stream_limit", measured(first_byte=2000.0), "2h", "33 min of silence"),
    ("stream_limit", measured(run=4000.0), "2h", "67 min"),
    ("stream_limit", measured({"stream_limit": "20s"}), "10m", "of silence"),
    ("stream_limit", measured(engines=(engine(first=40.0, prompt=2000), PAIR[1])), "3h", "whole context may take"),
    ("stream_limit", measured(engines=(engine(first=40.0, prompt=200_000), PAIR[1])), "10m", "up to 40 s (replicas"),
    ("stream_limit", measured(ends={"sH": 4}), "1h", "4 requests were given up at the limit"),
    ("check_interval", measured(), "500ms", "2 engines are checked, and answer within 4 ms"),
    ("check_interval", measured({"check_interval": "2s"}), "500ms", "stays in for 4.0 s"),
    ("check_interval", measured({"check_interval": "60ms"}), "500ms", "in the way of requests"),
    ("check_interval", measured({"check_interval": "300ms"}), "300ms", "answer within"),
    ("check_interval", measured(checked=65), "750ms", "65 engines"),
    ("check_interval", measured(took=2.0), "1s", "that is slow"),
    ("check_interval", measured(changes={"false_alarms": 5}), "500ms", "engines are checked"),
    (
        "check_interval",
        measured({"check_interval": "900ms"}, changes={"false_alarms": 5}),
        "500ms",
        "stays in for 3.3 s",
    ),
    ("fall", measured(), "2", "never was an engine out"),
    ("fall", measured(failed=5), "2", "5 checks have failed since the last reload"),
    ("fall", measured({"fall": 1}), "2", "a single lost packet"),
    ("fall", measured({"fall": 9}), "3", "more would take longer than 3.0 s"),
    ("fall", measured(changes={"false_alarms": 2}), "2", "twice"),
    ("fall", measured(changes={"false_alarms": 3}), "3", "3 times an engine was out"),
    ("fall", measured({"fall": 3}, changes={"false_alarms": 9}), "3", "see what keeps the engine"),
    ("rise", measured(), "1", "never"),
    ("rise", measured({"rise": 9}), "1", "never"),
    ("rise", measured(changes={"relapses": 3}), "2", "3 times an engine came back and was out again"),
    ("retries", measured(), "3", "2 copies; 0 of 1000 requests were tried again"),
    ("retries", measured({"retries": 0}), "2", "2 copies"),
    ("retries", measured({"retries": 9}), "3", "2 copies"),
    ("retries", measured(engines=PAIR * 2, counts={"lost_after_retries": 1}), "4", "1 failed all the same"),
    ("retries", measured(engines=PAIR[:1], tries={"1": 3, "2": 1}), "3", "1 engine; 4 of 1000 requests"),
    ("timeout_connect", measured({"timeout_connect": "2s"}), "500ms", "the slowest 2 ms; another copy has it sooner"),
    (
        "timeout_connect",
        measured({"timeout_connect": "800ms"}),
        "800ms",
        "99 in 100 took at most 2 ms, the slowest 2 ms",
    ),
    ("timeout_connect", measured(connect=0.15), "1500ms", "150 ms"),
    ("timeout_connect", measured(connect=times(0.45, usual=0.002)), "750ms", "2 ms, the slowest 450 ms"),
    ("timeout_connect", measured(connect=1.01), "3s", "slowest 1.0 s"),
    ("timeout_connect", measured(engines=PAIR[:1]), "2s", "2 ms"),
    ("timeout_connect", measured({"timeout_connect": "500ms"}, engines=PAIR[:1]), "2s", "one engine only"),
    ("timeout_queue", measured(), "hold", "take 24 at once; the longest wait for a place was 500 ms"),
    ("timeout_queue", measured(qmax=31), "hold", "up to 31 waited at the same time"),
    ("timeout_queue", measured({"timeout_queue": "1m"}), "1m", "500 ms"),
    ("timeout_queue", measured({"timeout_queue": "1m"}, queue=50.0), "3m", "50 s"),
    ("timeout_queue", measured({"timeout_queue": "1m"}, queue=5000.0), "20m", "83 min"),
    ("timeout_queue", measured({"timeout_queue": "1m"}, ends={"sQ": 3}), "20m", "3 requests ran out of it"),
    ("timeout_queue", measured(ends={"CQ": 2}, left_queue=times(9.0, 2)), "hold", "2 clients left"),
    ("timeout_http_keep_alive", measured(), "1m", "used again was 3.0 s"),
    ("timeout_http_keep_alive", measured(idle=58.0), "2m", "clients keep connections for longer"),
    ("timeout_http_keep_alive", measured({"timeout_http_keep_alive": "2s"}, idle=0.1), "1m", "100 ms"),
    ("timeout_http_keep_alive", measured({"timeout_http_keep_alive": "1h"}), "1m", "3.0 s"),
]


@pytest.mark.parametrize(("setting", "seen", "value", "why"), CASES, ids=[f"{c[0]}-{c[3][:30]}" for c in CASES])
def test_what_is_advised_and_why(setting: str, seen: Measured, value: str, why: str) -> None:
    advice = advised(seen, setting)
    assert (advice.advised, advice.missing) == (value, None)
    assert why in advice.why
    assert advice.outage


@pytest.mark.parametrize(
    ("seen", "settings_", "missing"),
    [
        (measured(loads=()), {"hold"}, "a start of an engine"),
        (measured(took=None), {"check_interval"}, "the running proxy"),
        (measured(count=37), {"drain", "stream_limit", "timeout_queue", "timeout_http_keep_alive"}, "163 more"),
        (measured(count=37), {"timeout_connect"}, "163 more connections (37 of 200)"),
        (measured(engines=()), {"retries"}, "an engine in the live layout"),
        (Measured(settings=Proxy(box="a")), {"fall", "rise"}, "the proxy's log"),
        (Measured(settings=Proxy(box="a")), {"drain"}, "200 more answers (0 of 200)"),
    ],
)
def test_too_little_data_gives_no_advice_and_says_what_is_missing(
    seen: Measured, settings_: set[str], missing: str
) -> None:
    told = {advice.setting: advice for advice in tune(seen)}
    for setting in settings_:
        assert (told[setting].advised, told[setting].changes) == (None, False)
        assert missing in (told[setting].missing or "")


def test_every_rule_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "proxy-tune.md").read_text()
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(advice.setting for advice in tune(measured()))


def test_every_setting_of_time_or_tries_has_an_advice_once() -> None:
    fixed = {"box", "address", "port", "boxes", "floating", "keepalive", "balance", "tls", "api_keys", "bridge"}
    assert sorted(advice.setting for advice in tune(measured())) == sorted(set(Proxy.model_fields) - fixed)


DURATIONS = st.sampled_from([seconds for seconds, _ in STEPS if 0.1 <= seconds <= 3600])
SECONDS = st.floats(0, 7200).map(lambda value: round(value, 3))
ODD = st.builds(
    lambda given_, engines, **more: measured(given_, engines=engines, **more),
    st.fixed_dictionaries(
        {},
        optional={
            "hold": DURATIONS,
            "stream_limit": DURATIONS.filter(lambda value: value >= 1),
            "check_interval": DURATIONS.filter(lambda value: value <= 5),
            "fall": st.integers(2, 10),
            "rise": st.integers(1, 10),
            "retries": st.integers(0, 10),
            "timeout_connect": DURATIONS.filter(lambda value: value <= 30),
            "timeout_queue": DURATIONS,
            "timeout_http_keep_alive": DURATIONS.filter(lambda value: value >= 1),
            "drain": st.just(0.05),
        },
    ),
    st.lists(st.builds(engine, first=SECONDS, prompt=st.floats(1, 1e6)), max_size=6).map(tuple),
    loads=st.lists(SECONDS, max_size=3).map(tuple),
    took=st.none() | st.floats(0.001, 5).map(lambda value: round(value, 3)),
    checked=st.integers(0, 500),
    changes=st.fixed_dictionaries({"false_alarms": st.integers(0, 9), "relapses": st.integers(0, 9)}),
    count=st.integers(2, 5000),
    run=SECONDS,
    first_byte=SECONDS,
    queue=SECONDS,
    idle=SECONDS,
    connect=st.floats(0, 5).map(lambda value: round(value, 3)),
    counts=st.fixed_dictionaries({"lost_after_retries": st.integers(0, 3), "hold_over": st.integers(0, 3)}),
    ends=st.fixed_dictionaries({"sQ": st.integers(0, 2), "sH": st.integers(0, 2)}),
)


def applied(seen: Measured) -> Measured:
    """The same figures in a fleet that took the advice."""
    told = {advice.setting: advice.advised for advice in tune(seen) if advice.changes}
    whole = {key: int(value) for key, value in told.items() if value and value.isdecimal()}
    values = {key: parse_duration(value) for key, value in told.items() if value and key not in whole}
    proxy = seen.settings.model_copy(update={**values, **whole})
    return Measured(proxy, seen.engines, seen.log, seen.checks, seen.loads, seen.stops)


@settings(max_examples=400)
@given(ODD)
def test_what_was_advised_is_accepted_in_the_file_and_advised_again(seen: Measured) -> None:
    after = applied(seen)
    keys = {
        key: value for key in after.settings.model_fields_set if (value := getattr(after.settings, key)) is not None
    }
    lines = "".join(f"  {key}: {value}\n" for key, value in keys.items() if key != "box")
    parse_fleet(FILE + lines, "fleet.yaml")
    again = {advice.setting: (advice.now, advice.advised) for advice in tune(after) if advice.changes}
    assert again == {}


@settings(max_examples=200)
@given(ODD.filter(lambda seen: seen.checks is not None))
def test_with_the_advice_a_silent_box_is_out_in_time(seen: Measured) -> None:
    now = applied(seen).settings
    assert out_after(now.check_interval, now.fall, now.timeout_connect) <= OUT_WITHIN + 1e-9


@given(st.integers(0, 10**8))
def test_a_duration_is_written_so_that_it_is_read_as_the_same(milliseconds: int) -> None:
    assert parse_duration(written(milliseconds / 1000)) == pytest.approx(milliseconds / 1000, rel=1e-9)


@given(*[st.floats(0.1, 10_000)] * 4)
def test_a_fitted_value_is_within_its_bounds_and_stays(now: float, least: float, target: float, most: float) -> None:
    least, target, most = sorted((least, target, most))
    value = fitted(now, least, target, most)
    assert least <= value <= most
    assert fitted(value, least, target, most) == value


def test_the_checks_of_the_file_know_the_settings() -> None:
    assert {"health_checks", "limits"} <= {check.__name__ for check in CHECKS}
