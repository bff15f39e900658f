"""What README.md and docs/ tell people to type exists, and the pages made from the commands are up to date."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import typer
from documented import ROOT, Shown, calls, commands, inline

from fleetctl.cli.main import app
from fleetctl.cli.manpage import page, statuses
from fleetctl.cli.manual import markdown
from fleetctl.steps import reference

PROGRAM = typer.main.get_command(app)


def found(words: list[str]) -> tuple[Any, Any, list[str]]:
    """The command that words name, with its context, and the words that are left."""
    command, context = PROGRAM, typer.Context(PROGRAM, info_name="fleetctl")
    while hasattr(command, "resolve_command"):
        if hasattr(command, "usual") and (not words or words[0] not in command.commands):
            words = [command.usual, *words]
        if not words or words[0].startswith("-"):
            break
        name, inner, rest = command.resolve_command(context, list(words))
        command, context, words = inner, typer.Context(inner, info_name=name, parent=context), rest
    return command, context, words


@pytest.mark.parametrize("shown", [each for each in commands() if each.copied], ids=str)
def test_every_command_in_a_block_is_one_that_fleetctl_takes(shown: Shown) -> None:
    assert calls(shown)
    for words in calls(shown):
        command, context, rest = found(words)
        if not hasattr(command, "resolve_command"):
            command.make_context(context.info_name, rest, parent=context.parent)


def test_every_command_in_the_text_has_its_options() -> None:
    wrong = []
    for shown in [*inline(), *(each for each in commands() if not each.copied)]:
        words = re.split(r"[\s\[\]|]+", shown.text)[1:]
        names = [word for word in words if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-")]
        try:
            command, context, _ = found(names)
        except Exception as error:
            wrong.append(f"{shown}: {error}")
            continue
        known = {name for each in command.get_params(context) for name in (*each.opts, *each.secondary_opts)}
        options = [word.partition("=")[0].rstrip("`.,;:)…") for word in words if re.match(r"--?[a-z]", word)]
        wrong += [f"{shown}: no option {option}" for option in options if option not in known]
    assert wrong == []


def test_the_page_of_commands_is_made_from_the_commands() -> None:
    assert (ROOT / "docs/commands.md").read_text() == markdown(), "python -m fleetctl.cli.manual > docs/commands.md"


def test_the_page_of_playbooks_is_made_from_the_steps() -> None:
    assert (ROOT / "docs/playbooks.md").read_text() == reference.page(), (
        "python -m fleetctl.steps.reference > docs/playbooks.md"
    )


def test_the_manual_page_is_made_from_the_commands_and_man_reads_it() -> None:
    text = page(statuses((ROOT / "docs/exit-codes.md").read_text()))
    assert (ROOT / "man/fleetctl.1").read_text() == text, (
        "python -m fleetctl.cli.manpage docs/exit-codes.md > man/fleetctl.1"
    )
    assert ".B 130\n" in text and ".SS fleetctl cutover [OPTIONS]\n" in text
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww"], input=text, capture_output=True, text=True, encoding="utf-8", check=True
    )
    assert done.stderr == ""


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    told = set()
    for shown in inline():
        if shown.page == "README.md":
            for words in shown.text.removeprefix("fleetctl ").replace("\\|", "|").split(","):
                told.add(words.strip(" `").split()[0])
    missing = [name for name in PROGRAM.commands if name not in told and f"`{name} " not in readme]
    assert missing == []
