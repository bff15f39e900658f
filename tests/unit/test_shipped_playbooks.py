"""``fleetctl playbook`` prints what can be copied, changed and run."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fleetctl.cli.main import app
from fleetctl.errors import SpecError
from fleetctl.plan.expand import STEPS
from fleetctl.plan.playbook import parse_playbook
from fleetctl.plan.shipped import playbook_text, shipped


@pytest.mark.parametrize("name", shipped())
def test_every_playbook_is_printed_as_it_is_run_and_says_what_it_is_for(name: str) -> None:
    ran = CliRunner().invoke(app, ["playbook", name])
    assert (ran.exit_code, ran.output) == (0, playbook_text(name))
    assert parse_playbook(ran.output, name, STEPS).name == name
    assert shipped()[name].endswith((".", ":"))


def test_all_are_listed_for_people_and_for_programs() -> None:
    assert [line.split()[0] for line in CliRunner().invoke(app, ["playbook"]).output.splitlines()] == list(shipped())
    told = json.loads(CliRunner().invoke(app, ["playbook", "--json"]).output)
    assert told == {"type": "playbooks", "playbooks": shipped()}


def test_a_name_that_is_none_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError) as told:
        playbook_text("cutovr")
    assert (told.value.message, told.value.hint) == ("there is no playbook cutovr", "did you mean cutover?")
    with pytest.raises(SpecError, match="there is no playbook"):
        playbook_text("../fleet")
