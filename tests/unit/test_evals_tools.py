"""The scorer itself: a perfect model has 100, and one with a planted fault loses that category's points alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from perfect_model import Fault, right, serving

from fleetctl.engine.client import EngineError
from fleetctl.evals.asking import Endpoint, run_suite
from fleetctl.evals.judge import Called, Reply, judge
from fleetctl.evals.scenario import load_suite
from fleetctl.evals.score import Outcome, Score, score, shown_all
from fleetctl.gates.scored import Exam, score_of

SUITE = load_suite()
CATEGORIES = SUITE.categories


def scored(fault: Fault | None = None, category: str = "", concurrency: int = 8) -> Score:
    with serving(SUITE, fault, category) as url:
        heard: list[Any] = []
        verdicts = run_suite(SUITE, Endpoint(url, "m"), concurrency=concurrency, seed=1, heard=heard.append)
    assert len(heard) == len(verdicts) == len(SUITE.scenarios)
    return score(verdicts)


def test_who_answers_nothing_at_all_has_no_score() -> None:
    with pytest.raises(EngineError, match="answered none of the 60 questions: not answered"):
        score_of(Exam("tools", 8, 60.0), Endpoint("http://127.0.0.1:9", "m"), lambda _: None)


def test_what_a_server_refuses_alike_is_one_line_and_each_wrong_answer_has_its_own() -> None:
    one, two, three, four = SUITE.scenarios[:4]
    refused, said = Reply(wrong="status 400"), Reply(text="no")
    lines = shown_all(
        [
            Outcome(one.id, "", 0, "status 400", refused),
            Outcome(two.id, "", 0, "no call", said),
            Outcome(three.id, "", 0, "status 400", refused),
            Outcome(four.id, "", 0, "no call", said),
        ]
    )
    assert lines[0] == f"{one.id} and 1 more: status 400"
    assert [line.split(":")[0] for line in lines[1:]] == [two.id, four.id]


def test_an_engine_without_a_tool_parser_gets_the_words_that_give_it_one(capsys: pytest.CaptureFixture[str]) -> None:
    from fleetctl.cli.eval import _show

    one = SUITE.scenarios[0]
    for why, told in (('"auto" tool choice requires --tool-call-parser to be set', True), ("no call", False)):
        _show("tools", "qwen", Score(0.0, {}, (Outcome(one.id, "", 0, why, Reply(wrong=why)),)), False)
        assert ("arguments: [--enable-auto-tool-choice, --tool-call-parser" in capsys.readouterr().out) is told


def test_there_are_twelve_categories_of_five_and_every_tool_is_known() -> None:
    assert len(CATEGORIES) == 12 and len(SUITE.scenarios) == 60
    for one in SUITE.scenarios:
        assert set(one.tools) <= set(SUITE.catalogue), one.id
        assert {name for call in one.calls for name in call} <= set(one.tools), one.id


def test_a_perfect_model_scores_100() -> None:
    told = scored()
    assert [f"{verdict.name}: {verdict.why}" for verdict in told.failures] == []
    assert told.total == 100


# Faults. Each spoils the answers of the category that it is planted in.


def other_tool(message: dict[str, Any]) -> None:
    for call in message["tool_calls"]:
        call["function"]["name"] = "nothing_like_it"


def numbers_as_text(message: dict[str, Any]) -> None:
    for call in message["tool_calls"]:
        arguments = {
            k: v if isinstance(v, str) else str(v) for k, v in json.loads(call["function"]["arguments"]).items()
        }
        call["function"]["arguments"] = json.dumps(arguments)


def one_call_only(message: dict[str, Any]) -> None:
    del message["tool_calls"][1:]


def call_anyway(message: dict[str, Any]) -> None:
    if not message["tool_calls"]:
        call = {"id": "x", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
        message.update(content=None, tool_calls=[call])


def the_other_way_round(message: dict[str, Any]) -> None:
    message["tool_calls"] = (
        [] if message["tool_calls"] else [{"id": "x", "function": {"name": "get_weather", "arguments": "{}"}}]
    )
    message["content"] = None if message["tool_calls"] else "Here you are."


def flattened(message: dict[str, Any]) -> None:
    for call in message["tool_calls"]:
        arguments = {
            k: json.dumps(v) if isinstance(v, (dict, list)) else v
            for k, v in json.loads(call["function"]["arguments"]).items()
        }
        call["function"]["arguments"] = json.dumps(arguments)


def as_text(message: dict[str, Any]) -> None:
    calls = [call["function"] for call in message["tool_calls"]]
    if calls:
        message.update(content=f'<tool_call>\n{{"name": "{calls[0]["name"]}", "arguments": {{}}}}', tool_calls=[])
    else:
        message["content"] = None


def cut_json(message: dict[str, Any]) -> None:
    for call in message["tool_calls"]:
        call["function"]["arguments"] = call["function"]["arguments"][:-1]


FAULTS: list[tuple[str, Fault, float]] = [
    ("right_tool", other_tool, 0),
    ("arguments", numbers_as_text, 0),
    ("several_calls", one_call_only, 0),
    ("no_call", call_anyway, 0),
    ("multi_turn", the_other_way_round, 0),
    ("unknown_tool", call_anyway, 0),
    ("long_lists", other_tool, 0),
    ("nested", flattened, 0),
    ("languages", other_tool, 0),
    ("streaming", as_text, 0),
    ("tool_choice", the_other_way_round, 0),
    ("hard_text", cut_json, 0),
]


@pytest.mark.parametrize(("category", "fault", "left"), FAULTS)
def test_a_planted_fault_loses_the_points_of_its_category_and_no_other(
    category: str, fault: Fault, left: float
) -> None:
    told = scored(fault, category)
    assert told.categories == {name: left if name == category else 100 for name in CATEGORIES}
    assert told.total == pytest.approx(100 * 11 / 12)


ROME, PARIS, RIGA, KIEV = (Called("get_weather", f'{{"city": "{city}"}}') for city in ("Rome", "Paris", "Riga", "Kiev"))
REFUND = Called("refund_order", '{"order_id": "B-7", "amount": 19.90, "reason": "damaged"}')
SCENARIOS = {one.id: one for one in SUITE.scenarios}


def replied(id_: str, **changes: Any) -> Reply:
    message = right(SCENARIOS[id_])
    calls = tuple(Called(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"])
    return Reply(**{"text": message["content"] or "", "calls": calls, "finish_reason": "stop", **changes})


@pytest.mark.parametrize(
    ("id_", "changes", "why"),
    [
        ("right_tool.1", {}, ""),
        ("right_tool.1", {"calls": (Called("get_weather", '{"city": " oslo. "}'),)}, ""),
        ("right_tool.1", {"calls": (Called("get_weather", '{"city": "Oslo", "unit": "celsius"}'),)}, ""),
        ("right_tool.1", {"calls": (Called("get_weather", '{"city": "Oslo", "unit": "kelvin"}'),)}, "unit"),
        ("right_tool.1", {"calls": (Called("get_weather", '{"city": "Oslo", "when": "now"}'),)}, "when"),
        ("right_tool.1", {"calls": (Called("get_weather", '{"town": "Oslo"}'),)}, "get_weather"),
        ("right_tool.1", {"calls": (Called("get_weather", "[1]"),)}, "not an object"),
        ("right_tool.1", {"calls": (Called("get_weather", "{'city': 'Oslo'}"),)}, "not JSON"),
        ("right_tool.1", {"calls": (), "text": "It is cold."}, "no call, but text"),
        ("right_tool.1", {"calls": ()}, "neither a call nor text"),
        ("right_tool.1", {"wrong": "status 500: x", "calls": ()}, "status 500"),
        ("right_tool.1", {"finish_reason": "length"}, "cut off"),
        ("right_tool.1", {"calls": (), "text": '<tool_call>\n{"name": "get_weather"}'}, "came as text"),
        ("right_tool.1", {"calls": (), "text": '[TOOL_CALLS][{"name": "get_weather"}]'}, "came as text"),
        ("right_tool.1", {"calls": (), "text": '```json\n{"name": "f"}\n```'}, "came as text"),
        ("right_tool.1", {"calls": 2 * (Called("get_weather", '{"city": "Oslo"}'),)}, "a call too many"),
        ("arguments.2", {"calls": (Called("control_light", '{"room": "kitchen", "on": 1, "brightness": 40}'),)}, "on"),
        ("arguments.5", {"calls": (REFUND,)}, ""),
        ("several_calls.1", {"calls": (ROME, PARIS)}, ""),
        ("several_calls.1", {"calls": 2 * (ROME,)}, "Rome"),
        ("long_lists.1", {"calls": (Called("crm_list_contract_0", '{"contract_id": "1"}'),)}, "not the right tool"),
        ("unknown_tool.5", {"calls": (Called("play_music", "{}"),)}, "a call where none was due"),
        ("multi_turn.1", {"text": "It is Tuesday."}, "says nothing"),
        ("languages.4", {"calls": (Called("get_stock_price", '{"symbol": "tsla"}'),)}, ""),
        ("streaming.3", {"calls": (KIEV, RIGA)}, ""),
    ],
)
def test_an_answer_is_judged_by_what_was_asked(id_: str, changes: dict[str, Any], why: str) -> None:
    told = judge(SUITE, SCENARIOS[id_], replied(id_, **changes))
    assert told.right == (not why)
    assert why in told.why


def test_the_order_of_the_tools_is_that_of_the_seed() -> None:
    one = SCENARIOS["long_lists.3"]

    def tools(seed: int) -> list[str]:
        return [tool["function"]["name"] for tool in SUITE.request(one, "m", max_tokens=9, seed=seed)["tools"]]

    assert tools(1) == tools(1) != tools(2)
    assert len(set(tools(1))) == len(tools(1)) == 82


def test_an_engine_that_is_not_there_has_0_and_says_why() -> None:
    verdicts = run_suite(SUITE, Endpoint("http://127.0.0.1:1", "m"), concurrency=4, seed=1, heard=lambda one: None)
    told = score(verdicts)
    assert told.total == 0
    assert {verdict.why.split(":")[0] for verdict in told.failures} == {"not answered"}
