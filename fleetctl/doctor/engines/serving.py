"""Engines that run and do not do what they should: what their counters and logs say. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from fleetctl.doctor.engines import kinds
from fleetctl.doctor.engines.starting import lora
from fleetctl.doctor.engines.told import Case, Rate
from fleetctl.doctor.finding import Finding, Severity

IN_A_ROW = 3  # throughput lines without counters
FRESH = 45.0  # seconds for which a throughput line says how things are
FOR_LONG = 6  # throughput lines: a minute
DRAFTED = 100  # tokens drafted by which one should have been accepted
LOGGED = 40  # the same where only the log tells
MANY, RARE = 10_000, 0.1  # drafted tokens from which the share of accepted ones counts, and how little is a note


def serving(case: Case) -> Iterator[Finding]:
    """Findings about one rank."""
    if case.told.runs:
        yield from _dead(case)
        yield from _queue(case)
        yield from _drafts(case)
        kinds_of_lora = [kind for kind in ("lora_rank", "lora_none", "lora_off") if case.told.lines(kind)]
        yield from (lora(case, case.told.lines(kind)) for kind in kinds_of_lora[:1])
    yield from _tools(case)
    yield from _aborted(case)
    yield from _files(case)


def _dead(case: Case) -> Iterator[Finding]:
    looks = case.told.looks
    if len(looks) == 2:
        first, second = looks
        waits = [look.get("waiting", 0.0) > 0 and not look["running"] for look in looks]
        if not all(waits) or first.get("tokens") != second.get("tokens"):
            return
        seen = [
            f"vllm:num_requests_running {look['running']:g}, vllm:num_requests_waiting {look.get('waiting', 0):g}, "
            f"tokens {look.get('tokens', 0):.0f}"
            for look in looks
        ]
        waiting = second.get("waiting", 0.0)
    else:
        still = [*takewhile(_stands_still, case.told.throughput())]
        if len(still) < IN_A_ROW or case.told.now - still[0].at > FRESH:
            return
        seen = [_shown(rate) for rate in still[:2]]
        waiting = still[0].waiting
    yield kinds.DEAD.found(
        case.box,
        case.unit,
        f"{case.engine.id} answers, and does nothing: {waiting:.0f} requests wait, none runs, no token comes",
        *seen,
        fix=f"{case.restart}"
        + (
            ""
            if case.fleet.guard
            else "; with `guard: {}` in fleet.yaml and `fleetctl guard install` it happens by itself"
        ),
    )


def _stands_still(rate: Rate) -> bool:
    return rate.running == 0 and rate.waiting > 0 and not rate.prompt + rate.generation


def _shown(rate: Rate) -> str:
    return (
        f"Avg prompt throughput: {rate.prompt} tokens/s, Avg generation throughput: {rate.generation} tokens/s, "
        f"Running: {rate.running} reqs, Waiting: {rate.waiting} reqs"
    )


def _queue(case: Case) -> Iterator[Finding]:
    given = case.argument("--max-num-seqs") or ""
    limit = int(given) if given.isdigit() else case.engine.concurrency
    full = [*takewhile(lambda rate: rate.waiting > 0 and rate.running >= limit, case.told.throughput())]
    if len(full) < FOR_LONG or case.told.now - full[0].at > FRESH:
        return
    if limit < case.engine.concurrency:
        fix = (
            f"take --max-num-seqs out of arguments: of {case.engine.model} (fleetctl sets it to concurrency:, "
            f"{case.engine.concurrency}), or write concurrency: {limit}; then `fleetctl apply`"
        )
    else:
        fix = (
            "see who comes round the proxy (`fleetctl clients`), and point them at it; requests with n greater than "
            f"1 count n times: for those write a higher concurrency: (now {limit})"
        )
    yield kinds.QUEUE.found(
        case.box,
        case.unit,
        f"{case.engine.id} runs {full[0].running} requests, its limit, and {full[0].waiting} wait inside it",
        *map(_shown, full[:2]),
        fix=fix,
    )


def _drafts(case: Case) -> Iterator[Finding]:
    look = case.told.looks[-1] if case.told.looks else {}
    if "drafted" in look:
        accepted, drafted, least = look.get("accepted", 0.0), look["drafted"], DRAFTED
    else:
        accepted, drafted, least = *map(float, case.told.drafts), LOGGED
    never = accepted == 0 and drafted >= least
    if not never and (drafted < MANY or accepted / drafted >= RARE):
        return
    method = case.model.speculative.method if case.model and case.model.speculative else "speculative"
    yield kinds.DRAFTS.found(
        case.box,
        case.unit,
        f"of {drafted:.0f} tokens that {case.engine.id} drafted ({method}) {accepted:.0f} were accepted",
        f"Accepted: {accepted:.0f} tokens, Drafted: {drafted:.0f} tokens",
        fix=f"take speculative: out of models: {{{case.engine.model}: …}} in fleet.yaml, or name the method and "
        "draft model that were made for these weights; then `fleetctl apply`",
        severity=None if never else Severity.NOTE,
    )


def _tools(case: Case) -> Iterator[Finding]:
    """Tool calls that are refused, or that come out as text: by what the engine logs, and by what it answers."""
    told, parser = case.told, case.argument("--tool-call-parser")
    answer, off, refused = told.tool, told.lines("tools_off"), told.lines("refused")
    text = told.lines("tools_text") or told.lines("tools_wrong")
    wrong = f"its parser ({parser}) does not fit the model" if parser else "it was given no parser"
    if off or (refused and answer is not None and answer.refused):
        many = f" ({refused.count} requests got status 400)" if refused else ""
        says, name = f"{case.engine.id} refuses requests with tools{many}: it was given no parser", parser or "NAME"
        seen = (off or refused).lines[:2]
    elif answer is not None and answer.text and not answer.called:
        says = f"asked with a tool, {case.engine.id} called it in the text: {wrong}"
        name = _parser_for(answer.text, parser)
        seen = (f"status {answer.status}, tool_calls empty, content: {answer.text}",)
    elif text:
        says, name = (
            f"tool calls of {case.engine.id} come out as text: {wrong}",
            _parser_for(" ".join(text.lines), parser),
        )
        seen = text.lines[:2]
    else:
        return
    yield kinds.TOOLS.found(case.box, case.unit, says, *seen, fix=_name_parser(case, name))


def _name_parser(case: Case, name: str) -> str:
    families = "hermes for Qwen2.5 and Qwen3, qwen3_coder, llama3_json, mistral, glm45, …"
    hint = f" (NAME by the model's family: {families})" if name == "NAME" else ""
    return case.write("--enable-auto-tool-choice", "--tool-call-parser", name) + hint


def _parser_for(said: str, parser: str | None) -> str:
    """The parser that reads what the model writes, as far as its text shows it."""
    if "<function=" in said:
        likely = "qwen3_coder"
    elif "<tool_call>" in said and '"name"' in said.replace("\\", ""):
        likely = "hermes"
    else:
        likely = "NAME"
    return likely if likely != parser else "NAME"


def _aborted(case: Case) -> Iterator[Finding]:
    if case.told.aborted is None or case.argument("--shutdown-timeout") is not None or case.rank.rank:
        return
    limit = round(max(5.0, case.engine.stop_limit - 10))
    yield kinds.ABORTED.found(
        case.box,
        case.unit,
        f"when {case.engine.id} was last stopped, requests were running, and were cut off",
        case.told.aborted[1],
        fix=case.write("--shutdown-timeout", str(limit))
        + f" (stop_limit: is {case.engine.stop_limit:g} s and has to be longer)",
    )


def _files(case: Case) -> Iterator[Finding]:
    found = case.told.lines("files")
    if not found:
        return
    container = case.engine.image is not None
    yield kinds.FILES.found(
        case.box,
        case.unit,
        f"{case.engine.id} may open too few files",
        *found.lines[:2],
        fix="take what lowers it out of launch: {options: …} (fleetctl gives --ulimit nofile=1048576:1048576)"
        if container
        else f"`systemctl show -p LimitNOFILE -p DropInPaths {case.unit}` on {case.box}: fleetctl's unit has "
        "1048576; remove the "
        "drop-in that lowers it, then `systemctl daemon-reload` and " + case.restart,
    )
