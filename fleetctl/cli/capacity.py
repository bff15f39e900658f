"""``fleetctl capacity``: what a model needs and what fits, before anything starts. No fleet is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, TakeOver, Yes
from fleetctl.cli.shortened import Shortened

_USUAL_CONTEXT = 32_768
"""Tokens, where neither the command nor the model says."""


class _Model(Shortened):
    usual = "model"


app = typer.Typer(cls=_Model, help="What a model takes of a box's memory, and what engines measured of it.")


@app.command("model")
def capacity(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a config.json, or an id of the hub.")],
    box_memory: Annotated[
        str, typer.Option("--box-memory", help="Memory of one box, as it has it: 128GB, 121GiB.")
    ] = "128GB",
    share: Annotated[float, typer.Option("--share", help="gpu_memory_utilization: what the engine gets of it.")] = 0.76,
    kv: Annotated[str, typer.Option("--kv", help="--kv-cache-dtype: auto, bfloat16, fp8, nvfp4, ...")] = "auto",
    state_dtype: Annotated[str, typer.Option("--state-dtype", help="--mamba-ssm-cache-dtype of the engine.")] = "auto",
    tp: Annotated[str, typer.Option("--tp", help="Tensor-parallel sizes to look at: 1,2.")] = "1",
    pp: Annotated[str, typer.Option("--pp", help="Pipeline-parallel sizes to look at.")] = "1",
    context: Annotated[int | None, typer.Option("--context", help="--max-model-len; default: the model's own.")] = None,
    requests: Annotated[
        float, typer.Option("--requests", min=0.001, help="Full-context requests to have room for.")
    ] = 1.0,
    spec_tokens: Annotated[int, typer.Option("--spec-tokens", help="Speculative tokens of the model's own head.")] = 0,
    prefix_caching: Annotated[bool, typer.Option("--prefix-caching/--no-prefix-caching")] = True,
    batched_tokens: Annotated[int, typer.Option("--batched-tokens", help="--max-num-batched-tokens.")] = 8192,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="--max-num-seqs: requests that the engine takes at once.")
    ] = 12,
    block_size: Annotated[int | None, typer.Option("--block-size", help="--block-size of the engine.")] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", help="Weights in memory, if you know better: 71GiB.")
    ] = None,
    overhead: Annotated[str | None, typer.Option("--overhead", help="Memory beyond weights and cache: 5.5GiB.")] = None,
    log: Annotated[Path | None, typer.Option("--log", help="An engine's log of this model: calibrate from it.")] = None,
    lora_slots: Annotated[int, typer.Option("--lora-slots", min=0, max=1000, help="--max-loras.")] = 0,
    lora_rank: Annotated[int, typer.Option("--lora-rank", min=1, max=1024, help="--max-lora-rank.")] = 16,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what a model takes of a box's memory, how many tokens of cache are left, and how many boxes to run it on.

    The word `model` may be left out. `fleetctl capacity calibrate BOX` measures an engine.
    """
    from fleetctl.capacity.attention import Launch
    from fleetctl.capacity.config import quant_method, read_shape
    from fleetctl.capacity.estimate import Lora, Room
    from fleetctl.capacity.logs import EngineLog, parse_log
    from fleetctl.capacity.study import Known, study
    from fleetctl.checkpoint.source import read_checkpoint

    divisions = [(ranks, stages) for stages in _counts("--pp", pp) for ranks in _counts("--tp", tp)]
    room = Room(_size("--box-memory", box_memory), share)
    said = parse_log(log.read_text(errors="replace")) if log else EngineLog()
    read = read_checkpoint(model)
    shape = read_shape(read.config, read.where)
    known = Known(
        tensors=read.tensors,
        method=quant_method(read.config, read.where),
        weights=_size("--weights", weights) if weights else None,
        overhead=_size("--overhead", overhead) if overhead else None,
        log=said,
    )
    usual = said.context or shape.context or _USUAL_CONTEXT
    launches = [
        Launch(
            context=usual if context is None else context,
            tp=ranks,
            pp=stages,
            kv=kv,
            state=state_dtype,
            spec_tokens=spec_tokens,
            prefix_caching=prefix_caching,
            batched_tokens=batched_tokens,
            sequences=concurrency,
            block=block_size,
        )
        for ranks, stages in divisions
    ]
    found = study(shape, known, launches, room, lora=Lora(lora_slots, lora_rank), requests=requests)
    if json:
        from fleetctl.cli.output import emit
        from fleetctl.cli.show_capacity import events

        for kind, values in events(shape, found):
            emit(kind, **values)
        return
    from fleetctl.cli.show_capacity import show

    show(read.where, shape, found, said)


def _counts(option: str, text: str) -> list[int]:
    from fleetctl.errors import SpecError

    words = [word.strip() for word in text.split(",")]
    if len(words) > 32 or not all(word.isdecimal() and 1 <= int(word[:9]) <= 4096 for word in words):
        raise SpecError(f"{option} {text}: not a list of numbers of ranks", hint="for example: 1,2")
    return sorted({int(word) for word in words})


def _size(option: str, text: str) -> int:
    from fleetctl.errors import SpecError
    from fleetctl.spec.units import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise SpecError(f"{option} {text}: {error}") from None


@app.command()
def calibrate(
    box: Annotated[
        str, typer.Argument(metavar="BOX", help="A box with an engine of the model.", autocompletion=completing.boxes)
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", help="Which one, where several run there.", autocompletion=completing.models),
    ] = None,
    running: Annotated[
        bool, typer.Option("--running", help="Only read what the running engine logged; no box is changed.")
    ] = False,
    share: Annotated[
        float | None,
        typer.Option("--share", min=0.01, max=1, help="gpu_memory_utilization of the trial; default: what it needs."),
    ] = None,
    hold: Annotated[
        bool, typer.Option("--hold", help="Also when nobody else serves the model: its requests wait in the proxy.")
    ] = False,
    fleet: FleetFile = DEFAULT_FLEET,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Measure an engine's memory and put that into fleet.yaml, for later plans.

    The box's copy is drained and stopped, started once with a small share outside of the proxy, and brought back as it
    was, also when something fails on the way. With --running nothing starts: its log is read.
    """
    from fleetctl.cli.calibrating import by_start, write
    from fleetctl.cli.session import open_fleet
    from fleetctl.errors import SpecError
    from fleetctl.run.calibrate import calibrate as by_log

    if running and (share is not None or hold):
        raise SpecError("--running starts nothing: --share and --hold say nothing there")
    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, partly=running) as subject:
        if running:
            found = by_log(subject, box, model)
        else:
            from fleetctl.cli.mover import Mover

            mover = Mover(subject, as_json=json, yes=yes, take_over=take_over)
            found = by_start(subject, mover, box, model, share=share, hold=hold)
    write(subject.text, fleet, box, found, yes=yes, json=json)
