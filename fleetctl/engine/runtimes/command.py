"""The command line of one rank of an engine, from what fleet.yaml asks of it, whatever its kind. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fleetctl.engine.runtimes.flags import flag_name, layer_flags, split_flags
from fleetctl.engine.runtimes.runtime import Ask, Runtime
from fleetctl.errors import SpecError
from fleetctl.spec.fleet_model import Model, Task


def served_names(name: str, model: Model) -> tuple[str, ...]:
    """Names under which clients ask for a model; ``name`` is its key in fleet.yaml."""
    return model.served_as or (name,)


def task_of(runtime: Runtime, name: str, model: Model) -> Task:
    """What the engines of a model do. Raises SpecError for what their kind cannot do."""
    task = model.task or runtime.tasks[0]
    if task not in runtime.tasks:
        can = " or ".join(runtime.tasks)
        raise SpecError(f"model {name}: {runtime.title} cannot {task}", hint=f"write task: {can}, or another runtime:")
    return task


def check_arguments(runtime: Runtime, arguments: Sequence[str], where: str) -> None:
    """Refuse arguments that fleetctl sets itself, because others depend on them. Raises SpecError."""
    for group in split_flags(arguments):
        hint = runtime.reserved.get(flag_name(group[0], runtime.aliases))
        if hint is not None:
            raise SpecError(f"{where}: {group[0].partition('=')[0]} is set by fleetctl", hint=hint)
        if not group[0].startswith("-"):
            raise SpecError(
                f"{where}: the first argument is {group[0]!r}, which is no flag",
                hint="the model comes from weights: and takes no further word",
            )


def engine_words(runtime: Runtime, ask: Ask) -> list[str]:
    """What follows the program for one rank, such as ``serve MODEL --host …``.

    Raises SpecError for an argument that fleetctl has to set itself, and for what this kind of engine cannot do.
    """
    if ask.split is not None and not runtime.splits:
        raise SpecError(
            f"model {ask.name}: {runtime.title} cannot be split over boxes",
            hint="write copies: in place of split:, or use vllm or sglang",
        )
    if ask.model.loras is not None and runtime.adapters is None:
        raise SpecError(
            f"model {ask.name}: fleetctl brings no LoRA adapters to {runtime.title}",
            hint="leave loras: out, or use vllm",
        )
    for fault in runtime.faults(ask):
        raise SpecError(f"model {ask.name}: {fault.what}", hint=fault.hint)
    for layer in ask.extra:
        check_arguments(runtime, layer, f"arguments of model {ask.name}")
    layers = [runtime.flags(ask), *ask.extra]
    return [*runtime.begin(ask), *layer_flags(layers, runtime.aliases, repeatable=runtime.repeatable)]
