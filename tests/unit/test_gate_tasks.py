"""Files of tasks that gates ask: found beside fleet.yaml, and checked before anything is planned."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from planned import OFFICE
from typer.testing import CliRunner

from fleetctl.cli.main import app
from fleetctl.remote.boxes import Boxes
from fleetctl.run.gate_tasks import LARGEST
from fleetctl.run.planning import wanted_release
from fleetctl.run.subject import Subject
from fleetctl.spec.load import load_fleet
from fleetctl.spec.problems import FleetFileError

GOOD = '{"prompt": "2+2?", "score": "numeric", "expected": 4}\n'
SIMILAR = '{"prompt": "2+2?", "score": "similar", "expected": "four"}\n'


def fleet_in(folder: Path, text: str | bytes | None) -> Path:
    """A fleet.yaml with one file of tasks beside it."""
    document = {**OFFICE, "gates": {"evaluations": [{"file": "sub/tasks.jsonl", "at_least": 80}]}}
    (folder / "fleet.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    (folder / "sub").mkdir()
    if text is not None:
        (folder / "sub/tasks.jsonl").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / "fleet.yaml"


def subject(path: Path) -> Subject:
    loaded = load_fleet(path)
    return Subject(loaded.fleet, loaded.text, Boxes({}), file=path)


def test_a_release_has_the_text_in_it_so_that_a_plan_needs_no_file(tmp_path: Path) -> None:
    release = wanted_release(subject(fleet_in(tmp_path, GOOD)), "replicas")
    assert release.tasks == {"sub/tasks.jsonl": GOOD}
    assert type(release).model_validate_json(release.model_dump_json()) == release


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "cannot read {}: No such file or directory"),
        (b"\xff\xfe\xfd", "{} is not UTF-8 text"),
        ("", "{} has no task in it"),
        (GOOD + "{", "{}:2 is not JSON"),
        ('{"prompt": "?", "score": "regex", "expected": "("}', "{}:1: expected is no regular expression"),
        (SIMILAR, "{}: line 1 is scored `similar`, which needs an embedding model: not in a gate"),
        (GOOD * (LARGEST // len(GOOD) + 1), "{} is larger than 256 KiB"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_where_fleet_yaml_names_it(
    tmp_path: Path, text: str | bytes | None, why: str
) -> None:
    path = fleet_in(tmp_path, text)
    with pytest.raises(FleetFileError) as failed:
        wanted_release(subject(path), "replicas")
    (problem,) = failed.value.problems
    assert problem.path == ("gates", "evaluations", 0, "file")
    assert path.read_text().splitlines()[problem.line - 1].strip() == "- file: sub/tasks.jsonl"
    assert why.format(tmp_path / "sub/tasks.jsonl") in problem.message


def test_render_tells_of_a_missing_file_before_it_writes_anything(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["render", "-f", str(fleet_in(tmp_path, None)), "--out", str(tmp_path / "out")])
    assert (type(said.exception), (tmp_path / "out").exists()) == (FleetFileError, False)
