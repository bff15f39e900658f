"""``fleetctl import`` as people and scripts meet it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from planned import OFFICE

from fleetctl.importing.kind import Kind
from fleetctl.importing.kinds import READERS
from fleetctl.spec.load import load_fleet

PROGRAM = [sys.executable, "-c", "from fleetctl.cli.main import main; main()"]
COMMAND = "HF_TOKEN=hf_0123456789abcdefg vllm serve org/m --served-model-name m --max-model-len 8192 -tp 2"


def fleetctl(*words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, "import", *words],
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "200"},
    )


def test_the_kinds_of_the_option_are_those_that_can_be_read() -> None:
    assert [kind.value for kind in Kind] == [kind.value for kind in READERS]


def test_entries_are_printed_and_what_was_not_understood_beside_them() -> None:
    done = fleetctl("--command", COMMAND)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["models"]["m"]["weights"] == "org/m"
    assert "--command:1: HF_TOKEN is a secret" in done.stderr and "0123456789" not in done.stdout + done.stderr
    assert fleetctl("-", text=COMMAND).stdout.replace("standard input", "--command") == done.stdout


def test_json_has_the_text_and_a_line_for_each_note() -> None:
    done = fleetctl("--command", COMMAND, "--json")
    first, *rest = [json.loads(line) for line in done.stdout.splitlines()]
    assert (first["type"], first["of"]) == ("entries", "command") and "models:" in first["yaml"]
    assert [(note["type"], note["file"], note["line"]) for note in rest] == [("note", "--command", 1)] * 2


def test_a_fleet_is_written_only_when_that_is_agreed_to_and_keeps_its_comments(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("# ours\n" + yaml.safe_dump(OFFICE, sort_keys=False))
    before = file.read_text()
    refused = fleetctl("--command", COMMAND, "--into", str(file))
    assert refused.returncode == 2 and "--yes" in refused.stderr and "+  m:" in refused.stdout
    assert file.read_text() == before
    done = fleetctl("--command", COMMAND, "--into", str(file), "--layout", "both", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"`fleetctl plan --to both --fleet {file}`" in done.stdout, "the command is for the file that was written"
    fleet = load_fleet(file).fleet
    assert file.read_text().startswith("# ours\n") and fleet.models["m"].context == 8192
    assert list(fleet.layouts["both"]["m"].split or {}) == ["a", "b"]
    written = fleetctl("--command", COMMAND, "--into", str(file), "--boxes", "b,a", "--yes", "--json")
    (event,) = (told for line in written.stdout.splitlines() if (told := json.loads(line))["type"] == "written")
    assert "+      split: [b, a]" in event["diff"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name a file"),
        (("x", "--command", "vllm serve m"), "name a file"),
        (("missing",), "cannot read missing"),
        (("--command", "ls"), "has nothing for fleet.yaml"),
        (("--command", "vllm serve m", "--into", "missing.yaml"), "missing.yaml: there is no such file"),
        (("--command", "vllm serve m", "--kind", "helm"), "helm"),
    ],
)
def test_bad_input_gets_one_message_and_status_2(words: tuple[str, ...], said: str) -> None:
    done = fleetctl(*words)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_the_next_command_names_the_file_only_where_it_would_take_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file, variable in (("fleet.yaml", ""), ("other.yaml", str(tmp_path / "other.yaml"))):
        (tmp_path / file).write_text(yaml.safe_dump(OFFICE, sort_keys=False))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("FLEETCTL_FLEET", variable)
        done = fleetctl("--command", COMMAND, "--into", file, "--layout", "both", "--yes")
        assert "`fleetctl plan --to both` shows" in done.stdout, done
