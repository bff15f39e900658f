"""Playbooks: the two that ship are right, and a wrong one says what is wrong and where."""

import pytest
from planned import boxes_in, layout, playbook

from fleetctl.errors import RefusedError, SpecError
from fleetctl.plan.build import build_plan
from fleetctl.plan.expand import STEPS
from fleetctl.plan.playbook import parse_playbook
from fleetctl.resources import root_text
from fleetctl.steps import KINDS


@pytest.mark.parametrize("name", ["cutover", "rollback"])
def test_a_shipped_playbook_has_the_stages_of_the_design_and_only_known_steps(name: str) -> None:
    book = parse_playbook(root_text("playbooks", f"{name}.yaml"), f"{name}.yaml", STEPS)
    tried = ["try"] if name == "cutover" else []  # on the way back nothing new is loaded to be tried
    assert [stage.stage for stage in book.stages] == ["prepare", "hold", "switch", "prove", "open", *tried, "settle"]
    assert [stage.stage for stage in book.stages if stage.flow] == ["prove", "open"]


def test_the_rolling_playbook_does_one_engine_after_the_other() -> None:
    book = parse_playbook(root_text("playbooks", "rolling.yaml"), "rolling.yaml", STEPS)
    assert [stage.stage for stage in book.stages if stage.one_at_a_time] == ["roll"]
    assert [use.step for use in book.stages[2].steps][-4:] == ["await_ready", "gate", "load_adapters", "open"]


@pytest.mark.parametrize("name", ["drain", "undrain"])
def test_a_box_is_drained_and_put_back_by_known_steps(name: str) -> None:
    assert parse_playbook(root_text("playbooks", f"{name}.yaml"), f"{name}.yaml", STEPS).name == name


def test_every_step_that_can_be_planned_can_be_executed() -> None:
    assert set(STEPS) <= set(KINDS)  # changes that have no playbook (setup, weights, images, adapters) have steps too


STAGE = "stages: [{stage: s, summary: x, steps: [%s]}]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\nstages: [", "my.yaml is no YAML: "),
        ("[]", "my.yaml is not a playbook"),
        ("name: x\n" + STAGE % "stop_engines", "did you mean stop_engine?"),
        ("name: x\n" + STAGE % "hold, hold", "used more than once: hold"),
        ("name: x\nstages: []", "stages"),
        ("name: x\nstages: [{stage: s, steps: [hold]}]", "summary"),
        ("name: x\nunknown: 1\n" + STAGE % "hold", "unknown"),
    ],
)
def test_a_wrong_playbook_is_refused_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_playbook(text, "my.yaml", STEPS)
    assert said in str(refused.value)
    assert "my.yaml" in str(refused.value)


@pytest.mark.parametrize("missing", ["make_current", "install_files", "stop_engine", "open", "enable_units"])
def test_a_copied_playbook_without_a_step_that_the_move_needs_is_refused(missing: str) -> None:
    book = playbook("cutover")
    stages = [
        stage.model_copy(update={"steps": tuple(use for use in stage.steps if use.step != missing)})
        for stage in book.stages
    ]
    source, target = layout("split"), layout("replicas")
    with pytest.raises(RefusedError, match=f"the playbook cutover has no step {missing}, and this has to be done"):
        build_plan(
            source=source,
            target=target,
            observed=boxes_in(source),
            questions={},
            playbook=book.model_copy(update={"stages": tuple(stages)}),
            operation="cutover",
            lead="a",
            move="m",
            generation=2,
            previous=1,
        )
