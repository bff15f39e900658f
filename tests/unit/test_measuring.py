"""A copy that is measured while the others serve: what is planned, what is refused, and what is rendered."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from planned import boxes_in, layout, office, playbook, unit
from rich.console import Console
from test_trial import COPY, HUB, ONE, SPLIT, TEXT

from fleetctl.bench.asked import Asked
from fleetctl.bench.knee import Range
from fleetctl.bench.mix import load_mix
from fleetctl.bench.report import Tried, write_report
from fleetctl.bench.settings import Outcome, Says, Verdict
from fleetctl.cli.show_settings import event, show_settings
from fleetctl.cli.writing_tuned import write_settings
from fleetctl.engine.runtimes.flags import flag_values
from fleetctl.engine.runtimes.vllm import ALIASES
from fleetctl.errors import FleetError, RefusedError, SpecError
from fleetctl.facts.types import MoveFacts
from fleetctl.plan.types import Plan
from fleetctl.remote.boxes import Boxes
from fleetctl.render.candidate import with_values
from fleetctl.render.engine import Place
from fleetctl.render.release import Release
from fleetctl.render.trial import render_trial
from fleetctl.run.measures import measures
from fleetctl.run.measuring import Wanted, parse_settings, plan_knee, plan_settings, results_of
from fleetctl.run.planning import Look, Subject
from fleetctl.spec.units import seconds

CHANGES: dict[str, Any] = {
    **HUB,
    "models__qwen__speculative": {"method": "mtp", "num_speculative_tokens": 4},
    "models__qwen__arguments": ["--max-num-batched-tokens", "4096"],
}
SUBJECT = Subject(office(**CHANGES), TEXT, Boxes({}))
REPLICAS = layout("replicas", **CHANGES)
CACHED: dict[str, Any] = {"a": {}, "b": {"kv_cache_memory": "9GiB"}}
ASKED = Asked(mix=load_mix("email"), model="qwen", duration=10)


def tried(
    settings: dict[str, tuple[float, ...]] | None = None, release: Release = REPLICAS, hold: bool = False, **more: Any
) -> Plan:
    wanted = Wanted({"batched_tokens": (2048, 4096, 8192)} if settings is None else settings, 4)
    look = Look({}, boxes_in(release, 1, **more))
    return plan_settings(SUBJECT, look, playbook("tune_settings"), "b", "qwen", ASKED, wanted, hold=hold)


def knee(release: Release = REPLICAS, hold: bool = False, **more: Any) -> Plan:
    look, engine = Look({}, boxes_in(release, 1, **more)), release.engines[-1]
    return plan_knee(SUBJECT, look, playbook("tune"), engine, ASKED, Range(32, 20, 8), hold=hold)


def kinds(plan: Plan) -> list[str]:
    return [step.kind for step in plan.steps]


def step(plan: Plan, kind: str) -> Any:
    return next(one for one in plan.steps if one.kind == kind)


def test_a_copy_leaves_the_proxy_is_measured_alone_proved_and_put_back() -> None:
    plan = knee()
    assert kinds(plan) == ["preflight", "preflight", "hold", "drain", "measure_knee", "gate", "open"]
    assert (plan.operation, plan.gap.expected, plan.generation) == ("tune", 0.0, 1)
    assert plan.steps[2].summary == "new requests go to the other copies: drain qwen/replicas-b"
    assert step(plan, "measure_knee").summary == "measure replicas/qwen@b alone, at 1 to 32 requests at once"
    assert plan.warnings[-1].startswith("at most 20 measurements: at most about")
    assert plan.warnings[-1].endswith("the knee is expected near 8")


def test_a_copy_is_stopped_started_with_every_value_and_started_as_it_was() -> None:
    plan = tried({"batched_tokens": (2048, 4096, 8192), "speculative_tokens": (2,)})
    back = ["start_engine", "await_ready", "gate", "open"]
    want = ["preflight", "preflight", "hold", "drain", "stop_engine", "await_free", "try_settings", *back]
    assert kinds(plan) == want and plan.gap.why == "another copy serves meanwhile"
    told = step(plan, "try_settings")
    assert told.summary == (
        "try batched_tokens 2048, 8192; speculative_tokens 2 on replicas/qwen@b, started outside of the proxy"
    )
    assert (
        "at most 9 starts, each measured 4 times at 12 at once: how long a start takes is not known yet; "
        "batched_tokens is 4096 now, speculative_tokens is 4 now"
    ) in plan.warnings
    assert len(told.params["candidates"]) == 6, "the search may come to any of them, and the plan has them all"
    assert any("random words" in warning for warning in plan.warnings)


def test_how_long_it_takes_is_told_where_starts_were_measured() -> None:
    end = {"result": "done", "loads": {"replicas/qwen@b": 100.0}}
    move = MoveFacts(
        move="m", end=end, operation="cutover", from_layout=None, to_layout="replicas", who="ann", started=0.0
    )
    plan = tried(a={"moves": (move,)})
    # Five starts of 100 s, each with four measurements of 10 s and as long a warm-up; and the one of the way back.
    assert any(f": at most about {seconds(1000)}" in warning for warning in plan.warnings)


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ({"release": SPLIT}, RefusedError, "one engine over a, b: its settings cannot be tried on b alone"),
        ({"release": ONE}, RefusedError, "use --hold"),
        ({"b": {"units": {COPY: unit("failed")}}}, RefusedError, "fleetctl restart b"),
        ({"settings": {"batched_tokens": (4096.0,)}}, RefusedError, "every value that was named is what it has now"),
        ({"settings": {"memory_share": (0.95,)}}, RefusedError, "it leaves 6.4 GiB of b, and its reserve is 16.0 GiB"),
        ({"settings": {"speculative_tokens": (2,)}, "release": ONE}, RefusedError, "no engine serves qwen"),
        ({"settings": {"batched_tokens": tuple(range(16, 80))}}, SpecError, "at most 48 are planned at a time"),
    ],
)
def test_what_cannot_be_tried_is_refused_with_the_way_out(
    how: dict[str, Any], error: type[FleetError], says: str
) -> None:
    with pytest.raises(error) as refused:
        tried(**how)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "setting", "says"),
    [
        ({}, "speculative_tokens", "has no speculative:"),
        ({"models__qwen__arguments": ["-sc", "{}"]}, "speculative_tokens", "write it under speculative:"),
        ({"layouts__replicas__qwen__copies": CACHED}, "memory_share", "kv_cache_memory"),
        ({"models__qwen__runtime": "sglang"}, "batched_tokens", "is a flag of vLLM, and qwen is served by SGLang"),
        ({"models__qwen__runtime": "infinity"}, "batched_tokens", "is a flag of vLLM, and qwen is served by infinity"),
        ({"models__qwen__runtime": "infinity"}, "memory_share", "infinity takes no share of memory"),
    ],
)
def test_a_setting_that_the_copy_does_not_have_is_named(changes: dict[str, Any], setting: str, says: str) -> None:
    subject = Subject(office(**HUB, **changes), TEXT, Boxes({}))
    look, wanted = Look({}, boxes_in(layout("replicas", **HUB, **changes), 1)), Wanted({setting: (0.5,)})
    with pytest.raises(RefusedError) as refused:
        plan_settings(subject, look, playbook("tune_settings"), "b", "qwen", ASKED, wanted, hold=False)
    assert says in str(refused.value)


def test_with_hold_the_only_copy_is_measured_too_and_the_plan_says_who_waits() -> None:
    plan = tried(release=ONE, hold=True, settings={"batched_tokens": (2048,)})
    assert plan.gap.why == "as long as 5 starts and loads take: requests for qwen wait in the proxy"
    assert "requests for qwen wait in the proxy meanwhile" in knee(ONE, hold=True).gap.why


def test_a_box_that_is_drained_stays_drained() -> None:
    proxy = boxes_in(REPLICAS)["a"].proxy
    assert proxy is not None
    servers = {**proxy.servers, "qwen/replicas-b": {"status": "DRAIN"}}
    drained = {"b": {"drained": {"since": 0.0, "by": "ann"}}, "a": {"proxy": {"description": "", "servers": servers}}}
    assert not {"hold", "open"} & {*kinds(knee(**drained)), *kinds(tried(**drained))}


def test_what_is_started_differs_from_the_engine_in_what_is_tried_and_in_its_address() -> None:
    fleet = office(**CHANGES, layouts__replicas__qwen__copies=CACHED)
    place = Place("replicas", "qwen", "b", 0, ("b",), 8000, 0.87)

    def flags(values: dict[str, float | None]) -> dict[str, str]:
        trial = render_trial(*with_values(fleet, place, values), loaded=100)
        assert "RuntimeMaxSec=730" in trial.content
        line = next(line for line in trial.content.splitlines() if line.startswith("ExecStart="))
        return flag_values(line.split()[3:], ALIASES)

    now, other = flags({}), flags({"batched_tokens": 2048, "speculative_tokens": 2, "memory_share": 0.5})
    changed = {key: (now.get(key), other.get(key)) for key in now | other if now.get(key) != other.get(key)}
    assert set(changed) == {"--max-num-batched-tokens", "--speculative-config", "--gpu-memory-utilization"}
    assert changed["--max-num-batched-tokens"] == ("4096", "2048")
    assert "--kv-cache-memory-bytes" in now, "it is measured as it runs"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["batchedtokens=1"], "did you mean batched_tokens?"),
        (["batched_tokens"], "it has no values"),
        (["batched_tokens=1", "batched_tokens=2"], "named twice"),
        (["batched_tokens=0"], "at least 1"),
        (["batched_tokens=1.5"], "whole number"),
        (["batched_tokens=1,"], "nothing is no value"),
        (["batched_tokens=inf"], "no value"),
        (["speculative_tokens=nan"], "no value"),
        (["memory_share=1.2"], "a share is more than 0 and at most 1"),
    ],
)
def test_settings_that_are_none_are_refused(words: list[str], says: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_settings(words)
    assert says in str(refused.value)


def test_settings_keep_their_order_and_lose_what_is_named_twice() -> None:
    found = parse_settings(["memory_share=0.74,0.78", "batched_tokens=2048,4096,2048"])
    assert list(found.items()) == [("memory_share", (0.74, 0.78)), ("batched_tokens", (2048, 4096))]


def test_what_the_move_measured_is_found_in_its_end() -> None:
    plan = knee()
    name = step(plan, "measure_knee").id
    end = measures(plan, {name: {"knee": {"points": []}}})
    assert results_of(plan, end) == {"knee": {"points": []}} and end["gap"] == 0.0


# What is shown and written

OUTCOME = Outcome(
    {"batched_tokens": 2048, "memory_share": 0.7},
    (
        Verdict("batched_tokens", 2048, Says.BETTER, rate=120.0, present=100.0),
        Verdict("batched_tokens", 16, Says.NOT, "it did not </script> start"),
        Verdict("memory_share", 0.7, Says.BETTER, rate=130.0, present=120.0),
    ),
    7,
)
ROW = {"values": {"batched_tokens": None}, "rates": [1.0], "why": None, "load": 3.0}
TRIED = Tried("replicas/qwen@b", "email", "2026-11-30 15:00 UTC", 12, OUTCOME, [ROW])


def test_the_table_the_page_and_the_event_have_every_candidate(tmp_path: Path) -> None:
    out, page = io.StringIO(), tmp_path / "page.html"
    show_settings(TRIED, Console(file=out, width=160))
    write_report(page, tried=[TRIED])
    for text in (out.getvalue(), page.read_text()):
        assert "batched_tokens 2048" in text and "better" in text and "it did not" in text
    assert page.read_text().count("</script>") == 1
    assert [one["says"] for one in event(TRIED)["verdicts"]] == ["better", "not measured", "better"]


def test_what_is_better_is_written_and_where_copies_differ_only_what_is_each_ones_own(
    tmp_path: Path, capsys: Any
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(TEXT)
    stays = Tried("replicas/qwen@a", "email", "", 12, Outcome({"batched_tokens": 8192}, (), 3), [])
    place = (file, TEXT, "replicas", "qwen")
    write_settings(*place, ["a", "b"], [stays, TRIED], yes=True, json=True)
    said = capsys.readouterr().out
    assert "the copies differ (as it is, 2048)" in said
    assert file.read_text() == TEXT.replace("[a, b]", "{a: {}, b: {gpu_memory_utilization: 0.7}}")
    write_settings(file, file.read_text(), *place[2:], ["b"], [TRIED], yes=True, json=False)
    assert '--max-num-batched-tokens, "2048"' in file.read_text() and "# ours" in file.read_text()
