"""``fleetctl eval TASKFILE``: models compared by their answers to tasks."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetctl.evals.asking import Answered, Endpoint
    from fleetctl.evals.score import Score

    Note = Callable[[str, str, Score], None]
    """Notes what a model scored in a suite of this key."""


def tasks(
    file: Annotated[Path, typer.Argument(metavar="TASKFILE", help="Tasks, one JSON object a line (docs/eval.md).")],
    models: Annotated[
        str | None, typer.Option("--models", help="Models to compare, the first with all others: a,b,c. Default: all.")
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="URL", help="Ask this OpenAI-compatible server; needs no fleet.")
    ] = None,
    embeddings: Annotated[
        str | None, typer.Option("--embeddings", metavar="MODEL", help="Embedding model for tasks scored `similar`.")
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option("--api-key-env", metavar="NAME", help="Variable with the key for --against; default: no key."),
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Tasks at a time.")] = 4,
    at_least: Annotated[
        float,
        typer.Option("--at-least", min=0, max=100, help="Exit status 9 for a model of which less is right, in %."),
    ] = 0.0,
    failures: Annotated[int, typer.Option("--failures", min=0, help="Wrong answers to show of each model.")] = 5,
    fleet: FleetFile = DEFAULT_FLEET,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Compare models by a file of tasks with known answers: quality, latency, tokens and memory.

    Quality has a 95 % confidence interval, and so has each model's difference to the first, over the same tasks. That
    of engines of the fleet is noted for `gates.evaluations`.
    """
    from fleetctl.cli.eval import key_in
    from fleetctl.cli.output import say
    from fleetctl.engine.client import EngineError
    from fleetctl.errors import SpecError, UnhealthyError
    from fleetctl.evals.asking import run_tasks
    from fleetctl.evals.score import mean_score, silence
    from fleetctl.evals.tasks import Similar, parse_tasks, read_tasks
    from fleetctl.plan.scores import tasks_key

    if not file.exists():
        near = " (`fleetctl eval tools` is a test that comes with fleetctl)" if file.name.startswith("tool") else ""
        raise SpecError(f"there is no file {file}{near}", hint="a file of tasks is JSON Lines: docs/eval.md")
    text = read_tasks(file)
    several = parse_tasks(text, str(file))
    if embeddings is None and any(isinstance(task.rule, Similar) for task in several):
        raise SpecError(
            f"{file} has tasks that are scored `similar`", hint="name an embedding model: --embeddings MODEL"
        )
    wanted = [name.strip() for name in models.split(",") if name.strip()] if models else None
    with ExitStack() as stack:
        if against is not None:
            found = _of_url(against, wanted, key_in(api_key_env), embeddings)
            memory: dict[str, int] = {}
            note: Note | None = None
        else:
            ways = {"accept_new": accept_new, "ssh_config": ssh_config}
            found, memory, note = _of_fleet(stack, wanted, embeddings, fleet, **ways)
        embedder = found.pop(embeddings, None) if embeddings is not None else None
        if not found:
            raise SpecError("there is no model to ask", hint="--models names some, --against URL another server")
        told: dict[str, list[Answered]] = {}
        for name, endpoint in found.items():
            say(f"asking {name}: {len(several)} tasks", as_json=json)
            told[name] = run_tasks(
                several,
                endpoint,
                concurrency=concurrency,
                seed=1,
                heard=_counting(name, len(several), json),
                embeddings=embedder,
            )
            why = silence([one.outcome() for one in told[name]])
            if why:
                raise EngineError(f"{name} answered none of the {len(several)} tasks: {why}")
        _show(told, memory, failures, json)
        for name, answers in told.items():
            if note is not None:
                note(name, tasks_key(file.name, text), mean_score([one.outcome() for one in answers]))
    totals = {name: mean_score([one.outcome() for one in answers]).total for name, answers in told.items()}
    low = ", ".join(f"{name} {total:.1f}" for name, total in totals.items() if total < at_least)
    if low:
        raise UnhealthyError(f"below {at_least:g} %: {low}")


def _counting(name: str, total: int, json: bool) -> Callable[[object], None]:
    """Tells now and then how many tasks were answered."""
    from fleetctl.cli.output import say

    heard = 0

    def hear(_: object) -> None:
        nonlocal heard
        heard += 1
        if heard % 10 == 0:
            say(f"{name}: {heard} of {total} tasks", as_json=json)

    return hear


def _of_url(url: str, wanted: list[str] | None, key: str | None, embeddings: str | None) -> dict[str, Endpoint]:
    from fleetctl.cli.eval import base_of
    from fleetctl.engine.client import EngineClient
    from fleetctl.evals.asking import Endpoint

    base = base_of(url)
    with EngineClient(base, api_key=key, timeout=30) as client:
        served = list(client.models())
    names = wanted or [name for name in served if name != embeddings]
    _known([*names, *([embeddings] if embeddings else [])], served, base)
    return {name: Endpoint(base, name, api_key=key) for name in [*names, *([embeddings] if embeddings else [])]}


def _of_fleet(
    stack: ExitStack,
    wanted: list[str] | None,
    embeddings: str | None,
    fleet: Path,
    **ways: Any,
) -> tuple[dict[str, Endpoint], dict[str, int], Note]:
    """Where to ask each model of the live layout, the bytes of memory that its engine has there, and how to note what
    it scored."""
    from fleetctl.cli.session import open_fleet
    from fleetctl.evals.asking import Endpoint
    from fleetctl.run import evaluating
    from fleetctl.run.evaluating import engines_named
    from fleetctl.run.planning import look

    subject = stack.enter_context(open_fleet(fleet, **ways))
    live, engines = engines_named(subject, look(subject), None, copies=False)
    by_name = {engine.model: engine for engine in engines}
    names = wanted or [name for name, engine in by_name.items() if engine.task == "generate" and name != embeddings]
    asked = [*names, *([embeddings] if embeddings else [])]
    _known(asked, list(by_name), f"layout {live.layout}")
    totals = {budget.box: budget.memory for budget in live.budgets}
    found, memory = {}, {}
    for name in asked:
        engine = by_name[name]
        socket = stack.enter_context(subject.boxes[engine.head.box].tunnel(engine.address, engine.port))
        found[name] = Endpoint(engine.url, engine.served_as[0], socket=socket)
        memory[name] = round(sum(rank.share * totals.get(rank.box, 0) for rank in engine.ranks))

    def note(name: str, key: str, told: Score) -> None:
        evaluating.note(subject, live, by_name[name], key, told)

    return found, memory, note


def _known(names: list[str], served: list[str], where: str) -> None:
    import difflib

    from fleetctl.errors import SpecError

    for name in names:
        if name not in served:
            near = difflib.get_close_matches(name, served, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it serves {', '.join(served[:10]) or 'nothing'}"
            raise SpecError(f"{where} does not serve {name}", hint=hint)


def _show(told: dict[str, list[Answered]], memory: dict[str, int], failures: int, json: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from fleetctl.cli.output import console, emit
    from fleetctl.evals.quality import difference, estimate, percentile
    from fleetctl.proxy.lint.findings import printable
    from fleetctl.spec.units import gib

    first = next(iter(told))
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("model")
    for column in ("right", "95 %", f"beside {first}", "p50", "p95", "tokens in", "out", "memory"):
        table.add_column(column, justify="right")
    out = console()
    for name, answers in told.items():
        scores = [one.points for one in answers]
        quality = estimate(scores)
        apart = difference(scores, [one.points for one in told[first]]) if name != first else None
        took = [one.reply.seconds for one in answers if not one.reply.wrong]
        p50, p95 = (percentile(took, part) if took else None for part in (0.5, 0.95))
        tokens_in = sum(one.reply.prompt_tokens for one in answers)
        tokens_out = sum(one.reply.tokens for one in answers)
        if json:
            emit(
                "model",
                model=name,
                tasks=len(answers),
                quality=quality.mean,
                low=quality.low,
                high=quality.high,
                difference=None if apart is None else {"mean": apart.mean, "low": apart.low, "high": apart.high},
                p50_s=p50,
                p95_s=p95,
                prompt_tokens=tokens_in,
                tokens=tokens_out,
                memory=memory.get(name),
                wrong=[
                    {"task": one.task.id, "points": one.points, "why": one.why, "text": one.reply.text}
                    for one in answers
                    if one.points < 1
                ],
            )
            continue
        table.add_row(
            Text(name),
            f"{100 * quality.mean:.1f} %",
            f"{100 * quality.low:.0f} to {100 * quality.high:.0f}",
            "" if apart is None else f"{100 * apart.mean:+.1f} ({100 * apart.low:+.0f} to {100 * apart.high:+.0f})",
            *("" if took_so is None else f"{took_so:.2f} s" for took_so in (p50, p95)),
            f"{tokens_in:,}",
            f"{tokens_out:,}",
            gib(memory[name]) if name in memory else "unknown",
        )
    if json:
        return
    for name, answers in told.items():
        for one in [answered for answered in answers if answered.points < 1 and answered.why][:failures]:
            out.print(printable(f"  {name}: {one.task.id}: {one.why}", 1000), markup=False)
    out.print(table)
