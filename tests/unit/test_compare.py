"""Two layouts beside each other: which loads may be compared, what a restart takes, the table and the conclusion."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planned import boxes_in, layout, office
from rich.console import Console

from fleetctl.bench.mix import load_mix
from fleetctl.bench.patient import Patience
from fleetctl.bench.stored import Goal, StoredRun, Wanted, choose, load_of, read_runs
from fleetctl.cli.show_compare import age, event, show_comparison
from fleetctl.errors import SpecError
from fleetctl.facts.types import MoveFacts
from fleetctl.plan.gap import gap_between
from fleetctl.plan.losses import losses
from fleetctl.remote.boxes import Boxes
from fleetctl.run.comparing import layouts_of
from fleetctl.run.comparison import Comparison, MeasuredGap, Room, Side, Way
from fleetctl.run.subject import Subject

GOLDEN = Path(__file__).parent / "golden" / "compare.txt"
BOTH = ("split", "replicas")
NOW = 1_000_000.0


def a_run(layout_name: str, at: float = NOW, mix: str = "email", **changes: Any) -> StoredRun:
    """What a layout made of a load; ``changes`` are of the load, or of the run itself."""
    how = {"seed": 0, "stream": True, "clients": 12} | {
        key: changes.pop(key) for key in ("seed", "stream", "clients", "rate") if key in changes
    }
    rate = 180.0 if layout_name == "split" else 210.0
    figures = {"requests": 60, "answered": 60, "requests_per_minute": 27.0, "tokens_in_rate": 1700.0}
    times = {"mean": 1.0, "p50": 0.9, "p90": 1.4, "p99": 2.0}
    figures |= {"tokens_out_rate": rate, "ttft": times, "tpot": dict.fromkeys(times, 0.08), "total": times}
    figures |= changes.pop("figures", {})
    told = {"at": at, "layout": layout_name, "generation": 3, "duration": 60.0, "warm_up": 5.0, "figures": figures}
    return StoredRun.model_validate({**told, "load": load_of("qwen", load_mix(mix), **how), **changes})


WANTED = Wanted(model="qwen")


def test_of_the_loads_that_both_had_the_one_measured_last_is_compared_and_of_each_layout_its_last_run() -> None:
    runs = [a_run("split", 1), a_run("replicas", 2), a_run("split", 3), a_run("split", 9, mix="chat")]
    chosen = choose(runs, BOTH, WANTED)
    assert [run and run.at for run in chosen.runs.values()] == [3, 2]
    chosen = choose([*runs, a_run("replicas", 10, mix="chat")], BOTH, WANTED)
    assert [run and (run.at, run.load.mix) for run in chosen.runs.values()] == [(9, "chat"), (10, "chat")]
    assert chosen.notes == ()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"seed": 1}, "seed 1"),
        ({"mix": "chat"}, "chat"),
        ({"clients": 8}, "8 at once"),
        ({"clients": None, "rate": 2.0}, "2 requests/s"),
        ({"stream": False}, "in one piece"),
    ],
)
def test_runs_of_different_loads_are_never_compared_and_what_there_is_is_named(
    other: dict[str, Any], said: str
) -> None:
    chosen = choose([a_run("split"), a_run("replicas", **other)], BOTH, WANTED)
    assert list(chosen.runs.values()) == [None, None]
    assert "not compared" in chosen.notes[0] and said in chosen.notes[0] and "12 at once" in chosen.notes[0]


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ({"mix": "email"}, True),
        ({"mix": "chat"}, False),
        ({"seed": 0, "clients": 12}, True),
        ({"seed": 1}, False),
        ({"clients": 8}, False),
        ({"rate": 1.0}, False),
        ({"digest": "0"}, False),
        ({"target": Goal(ttft=2)}, False),
    ],
)
def test_only_runs_of_the_load_that_was_asked_for_count(wanted: dict[str, Any], fits: bool) -> None:
    chosen = choose([a_run("split"), a_run("replicas")], BOTH, WANTED.model_copy(update=wanted))
    assert [run is not None for run in chosen.runs.values()] == [fits, fits]


def test_a_layout_without_a_run_leaves_the_other_its_own() -> None:
    chosen = choose([a_run("split")], BOTH, WANTED)
    assert [run is not None for run in chosen.runs.values()] == [True, False] and chosen.notes == ()


def test_what_may_count_between_two_runs_of_one_load_is_said() -> None:
    one = a_run("split", target=Goal(ttft=2), builds={"/opt/vllm": "0.31"}, figures={"saturated": True})
    other = a_run("replicas", builds={"/opt/vllm": "0.32"}, duration=30.0, figures={"errors": {"status 503": 2}})
    notes = "\n".join(choose([one, other], BOTH, WANTED).notes)
    for words in ("ttft=2s", "for 60 s", "for 30 s", "did not keep up", "status 503: 2", "split 0.31, replicas 0.32"):
        assert words in notes


def test_a_mix_of_the_same_name_with_other_lengths_or_a_shared_beginning_is_another_load() -> None:
    email = load_mix("email")
    alike = load_of("qwen", email.model_copy(update={"about": "other words"}), seed=0, stream=True)
    other = load_of("qwen", email.model_copy(update={"shared": 500}), seed=0, stream=True)
    assert alike.digest == load_of("qwen", email, seed=0, stream=True).digest != other.digest
    assert other.model_copy(update={"clients": 4}).command.endswith("--concurrency 4 --shared-prefix 500")


def test_records_that_are_damaged_or_by_another_version_do_not_hide_the_others() -> None:
    good = a_run("split").model_dump(mode="json")
    assert len(read_runs([{}, {**good, "figures": 1}, {**good, "new": "thing"}, 4])) == 1
    for no_number in (float("nan"), float("inf"), None, "much"):
        damaged = {**good, "figures": {**good["figures"], "tokens_out_rate": no_number}}
        assert read_runs([damaged, {**good, "at": no_number}, good]) == read_runs([good])


def test_what_a_restart_takes_is_the_model_a_share_of_it_or_nothing() -> None:
    fleet = {"boxes__c": {"address": "10.0.0.3", "memory": "64GiB", "reserve": "8GiB"}, "proxy__box": "c"}
    split = losses(layout("split", **fleet), "qwen", {"split/qwen": 300.0})
    replicas = losses(layout("replicas", **fleet), "qwen", {})
    assert [(loss.box, loss.share) for loss in split] == [("a", 1), ("b", 1), ("c", 0)]
    assert split[1].words == (
        "the whole model until the box is up, and 5 min more to load; up to 12 running requests fail; "
        "new ones wait up to 20 min"
    )
    assert replicas[0].words == (
        "half of the throughput until the box is up and its engine has loaded; up to 12 running requests fail"
    )
    assert "the proxy, so everything" in split[2].words


def test_two_proxies_leave_only_what_engines_are_lost() -> None:
    told = losses(layout("replicas", proxy={"boxes": ["a", "b"], "floating": {"address": "10.0.0.50"}}), "qwen", {})
    assert [loss.proxy for loss in told] == [False, False]


def test_the_gap_of_a_move_from_a_layout_that_is_not_live_is_told_from_what_its_units_and_engines_took() -> None:
    end = {"loads": {"replicas/qwen@a": 50.0, "replicas/qwen@b": 40.0}, "stops": {"a/fleetctl-split-qwen.service": 4.0}}
    facts = {"move": "m", "end": end, "operation": "cutover", "from_layout": "split", "to_layout": "replicas"}
    moves = (MoveFacts.model_validate({**facts, "who": "me", "started": 1.0}),)
    observed = boxes_in(layout("replicas"), a={"moves": moves})
    assert gap_between(layout("split"), layout("replicas"), observed).expected == 45.0
    assert gap_between(layout("replicas"), layout("split"), observed).expected is None


@pytest.mark.parametrize(
    ("names", "model", "said"),
    [
        (("split", "replicaz"), None, "did you mean replicas"),
        (("split", "split"), None, "not the same"),
        (("split", "replicas"), "qwem", "did you mean qwen"),
        (("split", "other"), None, "no model is in both"),
    ],
)
def test_layouts_and_models_that_cannot_be_compared_are_refused(
    names: tuple[str, str], model: str | None, said: str
) -> None:
    small = {"weights": "/models/small", "context": 4096, "launch": {"venv": "/opt/vllm"}}
    fleet = office(models__small=small, layouts__other={"small": {"copies": ["a"]}})
    with pytest.raises(SpecError) as refused:
        layouts_of(Subject(fleet, "", Boxes({})), names, model)
    assert said in str(refused.value)


# The table


def side(name: str, run: StoredRun | None, tokens: tuple[int | None, ...]) -> Side:
    rooms = tuple(Room(f"{name}/qwen@{number}", 262_144, size, None) for number, size in enumerate(tokens))
    return Side(name, run, rooms, losses(layout(name), "qwen", {}), live=name == "split")


def comparison(one: StoredRun | None, other: StoredRun | None, **changes: Any) -> Comparison:
    """The two boxes of the field notes."""
    gap = MeasuredGap(NOW - 7200, 660.0, "20260101T000000Z-aaaa", "cutover")
    found = Comparison(
        fleet="office",
        model="qwen",
        sides=(side("split", one, (3_000_000,)), side("replicas", other, (760_000, 1_080_000))),
        ways=(
            Way("split", "replicas", 640.0, "the old engines stop first", live=True, measured=(gap,)),
            Way("replicas", "split", None, "not measured here yet", live=False),
        ),
    )
    return replace(found, **changes)


def shown(found: Comparison, monkeypatch: pytest.MonkeyPatch, width: int = 160, **saw: Patience) -> str:
    monkeypatch.setattr("time.time", lambda: NOW + 3 * 86400)
    out = Console(file=io.StringIO(), width=width, color_system=None)
    show_comparison(found, {("split", "replicas"): saw["there"]} if saw else {}, out)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_the_table_and_the_conclusion_are_the_golden_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    goal = {"target": Goal(ttft=2.0, tpot=0.1), "figures": {"good_share": 0.95, "good_per_minute": 25.6}}
    found = comparison(a_run("split", **goal), a_run("replicas", NOW + 7200, **goal), notes=("a note",))
    text = shown(found, monkeypatch, there=Patience(asked=9, longest=655.0))
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_without_runs_the_rest_is_told_and_what_would_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = comparison(None, None, missing={"split": "fleetctl bench qwen …", "replicas": "fleetctl cutover …"})
    text = shown(found, monkeypatch)
    assert "tokens/s out" not in text and "3,000,000 tokens" in text
    assert "split: no run of this load is kept. To measure it: fleetctl bench qwen" in text
    assert "--run` measures both" in text and "not compared" in found.conclusion
    assert event(found, {})["missing"] == found.missing


CASES: list[tuple[str, Comparison, list[str], list[str]]] = [
    (
        "the fleet of the field notes",
        comparison(a_run("split"), a_run("replicas")),
        [
            "replicas makes 17% more tokens/s (210 against 180) and keeps a copy of the model when either box restarts",
            "given up for that is cache room: a request can use its own copy's alone, 760,000 tokens (2.9 full",
            "where split has 3,000,000 tokens (11.4",
            "split is for when they are not",
        ],
        ["not compared"],
    ),
    (
        "throughput that is about the same",
        comparison(a_run("split"), a_run("replicas", figures={"tokens_out_rate": 183.0})),
        ["replicas keeps a copy"],
        ["tokens/s"],
    ),
    (
        "a split that is faster",
        comparison(a_run("split", figures={"tokens_out_rate": 400.0}), a_run("replicas")),
        ["split makes 90% more tokens/s", "given up for that is a copy on every box"],
        [],
    ),
    (
        "first tokens that come sooner",
        comparison(a_run("split"), a_run("replicas", figures={"ttft": {"mean": 1, "p50": 1, "p90": 1, "p99": 1}})),
        ["has its first tokens sooner (p90 1.00 s against 1.40 s)"],
        [],
    ),
    (
        "copies that are too small for one request",
        comparison(
            a_run("split"),
            a_run("replicas"),
            sides=(side("split", None, (3_000_000,)), side("replicas", None, (200_000, 200_000))),
        ),
        ["A copy of replicas does not hold one request of full context: split is for those who need it."],
        ["are enough"],
    ),
    (
        "caches that are not known",
        comparison(None, None, sides=(side("split", None, (None,)), side("replicas", None, (None, None)))),
        ["Nothing that is known speaks for split."],
        ["cache"],
    ),
    (
        "embeddings",
        comparison(
            a_run("split", figures={"tokens_out_rate": 0.0}),
            a_run("replicas", figures={"tokens_out_rate": 0.0, "requests_per_minute": 54.0}),
        ),
        ["makes 100% more requests/min (54 against 27)"],
        [],
    ),
]


@pytest.mark.parametrize(("found", "said", "unsaid"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_conclusion_says_what_is_had_and_what_is_given_up(
    found: Comparison, said: list[str], unsaid: list[str]
) -> None:
    for words in said:
        assert words in found.conclusion
    for words in unsaid:
        assert words not in found.conclusion


@pytest.mark.parametrize(
    ("past", "said"), [(0.4, "0 s"), (119, "119 s"), (600, "10 min"), (7200, "2 h"), (172_800, "2 days"), (-5, "0 s")]
)
def test_how_long_ago_is_said_as_people_do(past: float, said: str) -> None:
    assert age(past) == said
