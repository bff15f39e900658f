"""``fleetctl eval``: what a model can do, as a number."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleetctl.cli import completing
from fleetctl.cli.eval_tasks import tasks
from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig
from fleetctl.cli.shortened import Shortened

if TYPE_CHECKING:
    from fleetctl.evals.score import Score
    from fleetctl.gates.scored import Exam

_NO_PARSER = "--tool-call-parser"  # vLLM's words for a request with tools, where the engine was started without one
_GIVE_PARSER = (
    "  the engine was started without a tool parser: write `arguments: [--enable-auto-tool-choice, --tool-call-parser, "
    "NAME]` at the model in fleet.yaml, then `fleetctl apply` (docs/eval.md)"
)


class _Tasks(Shortened):
    usual = "tasks"


app = typer.Typer(
    no_args_is_help=True,
    cls=_Tasks,
    help="Test what a model can do: `eval tools`, or `eval FILE` with tasks of your own.",
)


@app.callback()
def _eval() -> None:
    pass


@app.command()
def tools(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL|ENGINE|BOX]",
            help="What to ask; default: one engine of each model.",
            autocompletion=completing.subjects,
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="URL", help="Ask this OpenAI-compatible server; needs no fleet.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Model to ask --against for; default: its first.")
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option("--api-key-env", metavar="NAME", help="Variable with the key for --against; default: no key."),
    ] = None,
    copies: Annotated[bool, typer.Option("--copies", help="Every copy of a model, not one.")] = False,
    suite: Annotated[
        str,
        typer.Option("--suite", metavar="SUITE", help="tools, tool-eval-bench or inspect:TASK, where installed."),
    ] = "tools",
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", min=1, help="Scenarios at a time; default: what the engine takes.")
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=16, help="Longest answer, thinking included.")] = 2048,
    within: Annotated[str, typer.Option("--within", metavar="TIME", help="Longest time for a whole test.")] = "15m",
    at_least: Annotated[
        float, typer.Option("--at-least", min=0, max=100, help="Exit status 9 for a lower score.")
    ] = 0.0,
    fleet: FleetFile = DEFAULT_FLEET,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Score how a model uses tools: 60 scenarios in twelve categories, 0 to 100.

    Engines of the fleet are asked directly, as many scenarios at a time as they take requests, and their score is noted
    for `gates.tools`. Other suites have their own scenarios and categories (docs/eval.md).
    """
    from fleetctl.errors import SpecError, UnhealthyError
    from fleetctl.evals.outside import program_of
    from fleetctl.gates.scored import Exam
    from fleetctl.spec.units import parse_duration

    try:
        exam = Exam(suite, concurrency or 0, parse_duration(within), max_tokens)
    except ValueError as error:
        raise SpecError(f"--within {within}: {error}") from None
    if suite != "tools":
        program_of(suite)
    if against is not None:
        scores = {against: _of_url(against, model, key_in(api_key_env), exam, json)}
    else:
        scores = _of_fleet(name, exam, copies, json, fleet=fleet, accept_new=accept_new, ssh_config=ssh_config)
    low = {who: told.total for who, told in scores.items() if told.total < at_least}
    if low:
        told = ", ".join(f"{who} {total:.1f}" for who, total in low.items())
        raise UnhealthyError(f"below {at_least:g}: {told}")


def _of_url(url: str, model: str | None, key: str | None, exam: Exam, json: bool) -> Score:
    from dataclasses import replace

    from fleetctl.cli.output import say
    from fleetctl.engine.client import EngineClient, EngineError
    from fleetctl.errors import SpecError
    from fleetctl.evals.asking import Endpoint
    from fleetctl.gates.scored import score_of

    base = base_of(url)
    with EngineClient(base, api_key=key, timeout=30) as client:
        served = list(client.models())
    if not served:
        raise EngineError(f"{base} serves no model")
    if model is not None and model not in served:
        raise SpecError(f"{base} does not serve {model}", hint=f"it serves {', '.join(served[:10])}")
    asked = model or served[0]
    say(f"asking {asked} at {base}", as_json=json)
    endpoint = Endpoint(base, asked, api_key=key, within=exam.within)
    asked_so = replace(exam, concurrency=exam.concurrency or 8)
    told = score_of(asked_so, endpoint, lambda text: say(text, as_json=json))
    _show(exam.name, f"{asked} at {base}", told, json)
    return told


def _of_fleet(name: str | None, exam: Exam, copies: bool, json: bool, **ways: Any) -> dict[str, Score]:
    from dataclasses import replace

    from fleetctl.cli.output import say
    from fleetctl.cli.session import open_fleet
    from fleetctl.errors import SpecError
    from fleetctl.run.evaluating import engines_named, evaluate
    from fleetctl.run.planning import look

    scores = {}
    with open_fleet(ways["fleet"], accept_new=ways["accept_new"], ssh_config=ways["ssh_config"]) as subject:
        live, found = engines_named(subject, look(subject), name, copies=copies)
        engines = [engine for engine in found if engine.task == "generate"]
        if not engines:
            raise SpecError(f"{name or 'what is live'} has task: {found[0].task} and uses no tools")
        for engine in engines:
            say(f"asking {engine.id}", as_json=json)
            asked = replace(exam, concurrency=exam.concurrency or engine.concurrency)
            told = evaluate(subject, live, engine, asked, lambda text: say(text, as_json=json))
            scores[engine.id] = told
            _show(exam.name, engine.id, told, json)
    return scores


def base_of(url: str) -> str:
    """The URL of a server without /v1. Raises SpecError for what is none, or has a password in it: URLs are shown."""
    from fleetctl.errors import SpecError

    if "@" in url.partition("://")[2].partition("/")[0]:
        raise SpecError("the URL of --against has a name or a password in it", hint="--api-key-env NAME gives a key")
    if not url.startswith(("http://", "https://")):
        raise SpecError(f"--against {url} is not a URL", hint="write it like http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")


def key_in(name: str | None) -> str | None:
    """The key in a variable. None is sent unless it is named: a server is not given the key of another.

    Raises SpecError where the variable is not set.
    """
    from fleetctl.errors import SpecError

    if name is not None and not os.environ.get(name):
        raise SpecError(f"--api-key-env {name}: there is no such variable, or nothing in it")
    return os.environ[name] if name is not None else None


def _show(suite: str, who: str, told: Score, json: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from fleetctl.cli.output import console, emit
    from fleetctl.evals.score import shown_all
    from fleetctl.proxy.lint.findings import printable

    if json:
        wrong = [
            {
                "scenario": one.name,
                "why": one.why,
                "text": one.reply.text,
                "calls": [{"name": call.name, "arguments": call.arguments} for call in one.reply.calls],
            }
            for one in told.failures
        ]
        emit("score", suite=suite, of=who, score=round(told.total, 1), categories=told.categories, failures=wrong)
        return
    out = console()
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("category")
    table.add_column("right", justify="right")
    table.add_column("points", justify="right")
    for category, points in told.categories.items():
        several = [one.right for one in told.outcomes if one.category == category]
        style = "green" if points == 100 else "yellow" if points else "red"
        right = f"{sum(several)} of {len(several)}" if several else ""
        table.add_row(Text(category.replace("_", " ")), right, Text(f"{points:.0f}", style=style))
    if told.categories:
        out.print(table)
    failures = shown_all(told.failures)
    for line in failures:
        out.print(printable(f"  {line}", 1000), markup=False)
    if any(_NO_PARSER in line for line in failures):
        out.print(_GIVE_PARSER, markup=False)
    name = "" if suite == "tools" else f" in {suite}"
    out.print(Text.assemble((f"{who}: ", ""), (f"{told.total:.1f} of 100", "bold"), name))


app.command()(tasks)
