"""Engines that do not come up, or lost a part of themselves: what their logs say. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleetctl.doctor.engines import kinds
from fleetctl.doctor.engines.told import Case, Lines
from fleetctl.doctor.finding import Finding, Severity
from fleetctl.facts.types import Observed

PATIENCE = 60.0  # seconds that a head may wait for a follower
REPEATED = 3  # broadcast lines in a row, one a minute, that are no compilation while the engine serves
LOOPS = 3  # lines of a rank that lost its head: fewer are the last words of one that ends, and is started anew
WHILE_LOADING = 20  # and while it loads: compiling for the first time was seen to take a quarter of an hour
_PORT = re.compile(r"port: (\d+)|(?:on|to|at) \S*?[: ](?:port )?(\d{2,5})\b|:(\d{2,5})\b")
_ADDRESS_IN_USE = re.compile(r"EADDRINUSE|[Aa]ddress already in use")


def starting(case: Case, observed: Observed) -> Iterator[Finding]:
    """Findings about one rank. The cause, where the log names one, and else what can be seen."""
    causes = [] if case.told.runs else [*_causes(case)]
    silence = [*_dead_link(case)]
    yield from causes
    if not causes and not (case.told.lines("port") and not case.told.runs):
        yield from _broken(case)
        yield from [] if silence else _alone(case, observed)
    yield from silence


def _causes(case: Case) -> Iterator[Finding]:
    told, engine = case.told, case.engine
    if found := told.lines("versions") or told.lines("build"):
        yield kinds.SKEW.found(
            case.box,
            case.unit,
            f"the ranks of {engine.id} are not the same",
            *found.lines[:2],
            fix=f"install the same vLLM (and Ray) on {_boxes(case)}, then `fleetctl apply`; where settings differ, "
            "`fleetctl apply` alone puts the same ones on all",
        )
    if found := told.lines("port"):
        yield from _taken(case, found)
    if found := told.lines("slow_start"):
        limit = case.model.load_limit if case.model else 900.0
        more = round(max(limit, 600.0) * 2)
        times = f"load_limit: {more}s, environment: {{VLLM_ENGINE_READY_TIMEOUT_S: '{more}'}}"
        yield kinds.SLOW_START.found(
            case.box,
            case.unit,
            f"{engine.id} gave up waiting for its own core",
            *found.lines[:2],
            fix=f"write into fleet.yaml: models: {{{engine.model}: {{{times}}}}}, then `fleetctl apply`; if it takes "
            f"no longer than before, look for why the core did not come: `journalctl -u {case.unit}` on {case.box}",
        )
    if found := told.lines("gated"):
        yield kinds.WEIGHTS.found(
            case.box,
            case.unit,
            f"{engine.id} may not read {engine.weights}",
            *found.lines[:2],
            fix="accept the licence of the model on its page, and "
            + case.write_environment("HF_TOKEN", "{file: PATH}")
            + " (PATH: a file on your machine with the token)",
        )
    elif found := told.lines("offline"):
        yield kinds.WEIGHTS.found(
            case.box,
            case.unit,
            f"{engine.id} may not fetch {engine.weights}, and its cache does not have it",
            *found.lines[:2],
            fix=f"`fleetctl weights push {engine.model}` brings it from a box that has it, `fleetctl weights pull "
            f"{engine.model}` from the hub; or name the cache that has it: models: {{{engine.model}: "
            "{environment: {HF_HOME: PATH}}}",
        )
    if found := told.lines("lora_rank") or told.lines("lora_none"):
        yield lora(case, found)


def lora(case: Case, found: Lines) -> Finding:
    """An adapter that cannot be loaded, in an engine that runs or not."""
    line = found.lines[0] if found.lines else ""
    rank = re.search(r"LoRA rank (\d+) is greater", line)
    path = re.search(r"No adapter found for (\S+)", line)
    if rank:
        fix = case.write("--max-lora-rank", str(_allowed_rank(int(rank[1]))))
    elif path:
        fix = (
            f"put the adapter (its adapter_config.json) at {path[1].rstrip('.')} on {_boxes(case)}, or correct the path"
        )
    else:
        fix = case.write_environment("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "'True'") + "; " + case.write("--enable-lora")
    severity = None if case.told.runs else Severity.ERROR
    return kinds.LORA.found(
        case.box, case.unit, f"{case.engine.id} could not load an adapter", *found.lines[:2], fix=fix, severity=severity
    )


def _allowed_rank(rank: int) -> int:
    """The least of vLLM's values for --max-lora-rank that is enough."""
    return next((value for value in (8, 16, 32, 64, 128, 256, 320, 512) if value >= rank), rank)


def _taken(case: Case, found: Lines) -> Iterator[Finding]:
    line = next((one for one in found.lines if _ADDRESS_IN_USE.search(one)), "")
    ports = [int(next(filter(None, groups))) for groups in _PORT.findall(line)]
    engine = case.engine
    port = next((port for port in ports if port in engine.listens), ports[0] if ports else None)
    if port in case.taken:
        return
    what = engine.listens.get(port or 0, "a port")
    key = "port" if port == engine.port else "master_port"
    free = f"layouts: {{{case.layout}: {{{engine.model}: {{{key}: NUMBER}}}}}}"
    yield kinds.PORT.found(
        case.box,
        case.unit,
        f"port {port if port is not None else '(not named)'}, {what}, is taken on {engine.head.box}",
        *found.lines[:2],
        fix=f"`ss -ltnp 'sport = :{port}'` on {engine.head.box} says who has it: stop that, or write another into "
        f"fleet.yaml: {free}, then `fleetctl apply`",
    )


def _broken(case: Case) -> Iterator[Finding]:
    """A rank that died, a head that went away."""
    if found := case.told.lines("died"):
        yield kinds.DIED.found(
            case.box,
            case.unit,
            f"a worker of {case.engine.id} died",
            *found.lines[:2],
            fix=f"`journalctl -u {case.unit}` on {_boxes(case)} and `journalctl -k` there say why; then {case.restart}",
        )
    elif (found := case.told.lines("lost")).count >= LOOPS and case.told.active not in ("inactive", "failed"):
        yield kinds.LOST_HEAD.found(
            case.box,
            case.unit,
            f"rank {case.rank.rank} of {case.engine.id} has lost its head ({found.count} lines)",
            *found.lines[:2],
            fix=f"{case.restart}; the log of the head ({case.engine.head.box}) says why it went",
        )


def _alone(case: Case, observed: Observed) -> Iterator[Finding]:
    """A head that waits: the newest thing that it said is that it waits for others."""
    told, engine = case.told, case.engine
    if told.runs or engine.kind != "split" or case.rank.rank != 0 or told.progress is None:
        return
    at, line = told.progress
    waits = [one for kind in ("init", "follower") for one in told.lines(kind).lines[:1] if one == line]
    if told.active != "activating" or not waits or told.now - at < PATIENCE:
        return
    missing = []
    for rank in engine.ranks[1:]:
        unit = observed[rank.box].units.get(rank.unit) if rank.box in observed else None
        missing.append(f"{rank.box}: {f'{unit.active}/{unit.sub}' if unit else 'not seen'}")
    first = engine.ranks[1]
    yield kinds.ALONE.found(
        case.box,
        case.unit,
        f"the head of {engine.id} waits for its followers since {told.now - at:.0f} s",
        line,
        *(f"{first.unit} on {one}" for one in missing),
        fix=f"`systemctl status {first.unit}` and `journalctl -u {first.unit}` on "
        f"{', '.join(rank.box for rank in engine.ranks[1:])}; `fleetctl apply` starts what is down, `fleetctl link "
        "test` tries the link",
    )


def _dead_link(case: Case) -> Iterator[Finding]:
    told = case.told
    if told.silent < REPEATED or (told.runs and not _stuck(case)):
        return
    worst = told.runs or told.silent >= WHILE_LOADING
    minutes = f"{told.silent} times in a row, with nothing else said"
    doing = "serves" if told.runs else "loads"
    fix = f"`fleetctl link test` and the log of every rank on {_boxes(case)}; then {case.restart}"
    yield kinds.DEAD_LINK.found(
        case.box,
        case.unit,
        f"{case.engine.id} waits for a process that does not answer, while it {doing}: {minutes}",
        *told.lines("broadcast").lines[:1],
        *([f"before that: {told.progress[1]}"] if told.progress else []),
        fix=fix
        if worst
        else "wait: compiling for the first time takes up to a quarter of an hour. If it goes on: " + fix,
        severity=None if worst else Severity.NOTE,
    )


def _stuck(case: Case) -> bool:
    """One that serves has something to do and does not get on: some versions write the line when they idle too."""
    looks = case.told.looks
    if len(looks) == 2:
        return all(look["running"] + look.get("waiting", 0.0) > 0 for look in looks) and (
            looks[0].get("tokens") == looks[1].get("tokens")
        )
    newest = next(case.told.throughput(), None)
    return newest is not None and newest.running + newest.waiting > 0


def _boxes(case: Case) -> str:
    return ", ".join(rank.box for rank in case.engine.ranks)
