"""The command line as people and scripts meet it, without any box."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fleetctl.cli.main import app, needed

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "templates" / "example.yaml"


def fleetctl(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from fleetctl.cli.main import main; main()"]
    return subprocess.run([*program, *words], capture_output=True, text=True, cwd=cwd, timeout=60, check=False)


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    heavy = ("pydantic", "paramiko", "yaml", "jinja2", "httpx")
    code = "import sys; sys.argv=['fleetctl', '--help']\nfrom fleetctl.cli.main import main\n"
    code += f"try:\n    main()\nexcept SystemExit:\n    print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    for command in ("init", "schema", "render", "plan", "cutover", "rollback", "status", "history", "web", "lab"):
        assert command in done.stdout
    assert done.stdout.strip().endswith("[]")


def test_every_command_has_help() -> None:
    for command in ("init", "schema", "render", "plan", "cutover", "rollback", "status", "history", "web", "lab"):
        done = fleetctl(command, "--help")
        assert done.returncode == 0, done.stderr
        assert "Usage" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "-f", "missing.yaml"], "missing.yaml: there is no such file"),
        (["cutover"], "--to LAYOUT"),
        (["cutover", "--to", "a", "--plan", "b"], "not both"),
        (["cutover", "--to", "split", "-f", "bad.yaml"], "bad.yaml:2:1"),
        (["cutover", "--to", "split", "--playbook", "missing.yaml"], "missing.yaml cannot be read"),
        (["web", "--listen", "9791"], "is not ADDRESS:PORT"),
        (["web", "--listen", "127.0.0.1:99999"], "is not ADDRESS:PORT"),
        (["setup", "-f", "missing.yaml"], "missing.yaml: there is no such file"),
        (["init", "a", "a"], "named twice"),
        (["init", "a", "--out", "bad.yaml"], "bad.yaml exists"),
    ],
)
def test_bad_input_gets_one_message_and_status_2(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("fleet: x\nboxen: {}\n")
    done = fleetctl(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    as_json = fleetctl(*words, "--json", cwd=tmp_path)
    event = json.loads(as_json.stdout.splitlines()[-1])
    assert event["type"] == "error"
    assert event["exit_code"] == 2


def test_render_writes_every_file_and_keeps_secrets_out(tmp_path: Path) -> None:
    done = fleetctl("render", "-f", str(EXAMPLE), "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    unit = tmp_path / "split/spark2/etc/systemd/system/fleetctl-split-qwen.service"
    assert "--node-rank 1" in unit.read_text()
    secrets = tmp_path / "replicas/spark1/etc/fleetctl/secrets/replicas-qwen.env"
    assert "@secret:HF_TOKEN@" in secrets.read_text()
    assert secrets.stat().st_mode & 0o777 == 0o600


def test_schema_is_json_in_both_forms() -> None:
    assert json.loads(fleetctl("schema").stdout)["title"]
    assert json.loads(fleetctl("schema", "--json").stdout)["schema"]["title"]


@pytest.mark.parametrize("words", [["schema"], ["explain", "H01"], ["explain", "H01", "--json"]])
def test_a_reader_who_is_gone_ends_a_command_with_141_and_without_a_word(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    program = [sys.executable, "-c", "from fleetctl.cli.main import main; main()"]
    ran = subprocess.run([*program, *words], stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (ran.returncode, ran.stderr) == (141, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("rollback --to x", "'x' is no whole number"),
        ("rollback --to 1.5", "'1.5' is no whole number"),
        ("bench --rate x", "'x' is no number"),
        ("tune --most 0", "'0' is less than 1"),
        ("lab up --boxes 0", "'0' is less than 1"),
        ("import --kind compos x", "'compos' is not one of"),
        ("lab up --engine vlm", "'vlm' is not one of"),
    ],
)
def test_a_value_that_an_option_does_not_take_is_told_in_plain_words(words: str, said: str) -> None:
    done = fleetctl(*words.split())
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert not any(foreign in done.stderr for foreign in ("Input should", "Value error", "pydantic")), done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("rollback --to x --json", "Invalid value for '--to': 'x' is no whole number"),
        ("cutover --too split --json", "No such option"),
        ("cutovr --json", "No such command 'cutovr'"),
        ("batch status --json", "Missing argument"),
        ("batch stats b-1 --json", "No such command 'stats'"),
        ("--json status", "No such option"),
    ],
)
def test_a_script_hears_of_a_command_line_that_cannot_be_read_as_of_any_error(words: str, said: str) -> None:
    done = fleetctl(*words.split())
    (told,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, told["type"], told["exit_code"], done.stderr) == (2, "error", 2, "")
    assert said in told["message"] and "--help` says what it takes" in told["hint"]


def test_as_much_of_the_program_is_made_as_a_command_line_needs_and_nobody_sees_it() -> None:
    run = CliRunner()
    for words in ([], ["--help"], ["--version"], ["batch"], ["batch", "list", "--help"], ["cutover", "--help"], ["x"]):
        part, whole = (run.invoke(made, words) for made in (needed(words, {}), app))
        assert (part.output, part.exit_code) == (whole.output, whole.exit_code), words
    assert needed(["plan"], {"_FLEETCTL_COMPLETE": "complete_bash"}) is app
    assert len(needed(["plan"], {}).registered_commands) == 1


def test_the_paragraphs_of_every_help_take_the_lines_of_the_terminal_and_not_those_of_the_source() -> None:
    def below(command: Any) -> Iterator[Any]:
        yield command
        for one in getattr(command, "commands", {}).values():
            yield from below(one)

    root: Any = get_command(app)
    told = [one for name in root.commands for one in below(root.get_command(None, name)) if one.help]
    assert len(told) > 40
    assert [one.name for one in told if "\n" in one.help.replace("\n\n", "")] == []


def test_the_package_can_be_run_where_the_script_is_not_on_the_path() -> None:
    ran = subprocess.run([sys.executable, "-m", "fleetctl", "--version"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.split()[0]) == (0, "fleetctl"), ran
