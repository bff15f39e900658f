"""Ready entries for pools: each is fleet.yaml as it stands, and says of every value where it is from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from test_cli import fleetctl

from fleetctl.engine.runtimes.known import RUNTIMES
from fleetctl.errors import SpecError
from fleetctl.profiles.entry import Entry, parse_entry
from fleetctl.profiles.folders import ENTRIES, known_entries
from fleetctl.spec.load import parse_fleet

FLEET = """\
fleet: office
boxes: {spark1: {address: 10.0.0.1, memory: 24GiB, reserve: 4GiB}}
proxy: {box: spark1}
pool:
  nats:
    boxes: [spark1]
    passwords: {gateway: {env: A}, worker: {env: B}, operator: {env: C}}
"""


@pytest.mark.parametrize("entry", known_entries().values(), ids=lambda one: one.entry)
def test_an_entry_is_what_fleet_yaml_takes(entry: Entry) -> None:
    fleet = parse_fleet(FLEET + entry.text("spark1"), "fleet.yaml")
    model, place = fleet.models[entry.entry], fleet.layouts["pool"][entry.entry]
    assert model == entry.model
    assert (place.memory, place.concurrency) == (entry.place.memory, entry.place.concurrency)
    assert entry.task in RUNTIMES[entry.model.runtime].tasks
    assert (ENTRIES / f"{entry.entry}.yaml").exists()
    assert entry.place.memory > (entry.model.weights_size or 0)


def test_they_are_listed_and_shown_by_name(tmp_path: Path) -> None:
    listed = fleetctl("profile", "list", cwd=tmp_path)
    assert all(name in listed.stdout for name in known_entries())
    shown = fleetctl("profile", "show", "minilm", cwd=tmp_path)
    assert "runtime: encoder" in shown.stdout and "measured: 144 MB once loaded" in shown.stdout
    event = json.loads(fleetctl("profile", "show", "minilm", "--json", cwd=tmp_path).stdout)
    assert (event["type"], event["task"], list(yaml.safe_load(event["text"]))) == (
        "entry",
        "embed",
        ["models", "layouts"],
    )
    wrong = fleetctl("profile", "show", "minilmm", cwd=tmp_path)
    assert wrong.returncode == 2 and "minilm" in wrong.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"place": {"memory": "1GiB", "concurrency": 8, "pin": True}}, "place: pin"),
        ({"evidence": []}, "evidence"),
        ({"evidence": [{"about": ["memory"], "how": "computed", "told": "x"}]}, "nothing says where"),
        ({"evidence": [{"about": ["memory"], "how": "guessed", "told": "x"}]}, "how"),
        ({"model": {"weights": "x"}}, "model"),
    ],
)
def test_a_file_that_is_no_entry_is_refused_with_the_key(change: dict[str, object], said: str) -> None:
    tree = yaml.safe_load((ENTRIES / "minilm.yaml").read_text())
    with pytest.raises(SpecError, match=said):
        parse_entry(yaml.safe_dump({**tree, **change}), "x.yaml")
