"""The unit of a trial: an engine of a layout as it is, but for a smaller share and an address that no proxy knows."""

from __future__ import annotations

import math

from fleetctl.engine.runtimes.flags import flag_name, flag_values, layer_flags, split_flags
from fleetctl.engine.runtimes.runtime import Runtime
from fleetctl.errors import RefusedError
from fleetctl.render.engine import (
    START_MARGIN,
    STOP_MARGIN,
    Place,
    cannot_share,
    engine_arguments,
    engine_environment,
    runtime_of,
    seen_variables,
)
from fleetctl.render.escape import environment_line, exec_line
from fleetctl.render.launch import start_from
from fleetctl.render.names import TRIAL_UNIT, engine_unit, secrets_path
from fleetctl.render.release import Value
from fleetctl.render.template import fill
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.fleet_model import Container

LOOPBACK = "127.0.0.2"
"""Not 127.0.0.1, which may be the address of the only box of a fleet: what asks for the engine does not find this."""


class Trial(Value):
    """An engine to be started once, measured and stopped. ``share`` is its gpu_memory_utilization."""

    unit: str = TRIAL_UNIT
    content: str
    engine: str
    """FLEETCTL_ENGINE of its processes."""
    url: str
    share: float
    memory: int
    """Bytes that the share is of."""
    batched_tokens: int | None = None
    """--max-num-batched-tokens, where it is given."""
    weights: int | None = None
    """Bytes of its weights as their files say; None: not known."""


def render_trial(fleet: Fleet, place: Place, *, loaded: float | None = None) -> Trial:
    """The trial of a copy; ``place`` has the share that it is to have. Raises SpecError as the engine itself would.

    ``loaded``: requests are sent to it for so many seconds once it serves; it is then in all else as the engine is.
    None: only its start is looked at, and it sizes its cache itself, so that it measures; raises RefusedError for a
    kind of engine whose log says nothing of its memory that is understood.
    """
    model, box = fleet.models[place.model], fleet.boxes[place.box]
    runtime, start = runtime_of(fleet, place.model), fleet.launch(place.model)
    if loaded is None and not runtime.forecasts:
        raise RefusedError(
            f"what the log of {runtime.title} says of its memory is not understood: {place.model} cannot be measured",
            hint="weights_size: and gpu_memory_utilization: in fleet.yaml say what it takes",
        )
    plain, secrets = engine_environment(fleet, place)
    memory_max = box.memory - box.reserve
    words = trial_arguments(engine_arguments(fleet, place), runtime, keep_cache=loaded is not None)
    launch = start_from(
        start,
        runtime,
        words,
        unit=TRIAL_UNIT,
        weights=model.weights,
        plain=plain,
        variables=seen_variables(plain, secrets, split=False),
        memory_max=memory_max,
        stop_limit=model.stop_limit,
    )
    engine = f"trial/{place.model}"
    unit = engine_unit(place.layout, place.model)
    content = fill(
        "systemd",
        "trial.service.j2",
        layout=place.layout,
        model=place.model,
        share=f"{place.share:g}",
        conflicts=sorted({unit, *cannot_share(fleet, place), *fleet.superseded_on(place.box)}),
        tag=environment_line("FLEETCTL_ENGINE", engine),
        environment=[environment_line(*item) for item in {**launch.environment, **plain}.items()],
        secrets=secrets_path(place.layout, place.model) if secrets else None,
        container=isinstance(start, Container),
        command=exec_line(launch.start),
        stop=exec_line(launch.stop) if launch.stop else None,
        remove=exec_line(launch.remove) if launch.remove else None,
        folders=[exec_line(["/usr/bin/mkdir", "-p", folder]) for folder in launch.folders],
        start_timeout=math.ceil(model.load_limit) + START_MARGIN,
        longest=math.ceil(model.load_limit + (loaded or 0)) + START_MARGIN,
        stop_timeout=math.ceil(model.stop_limit) + STOP_MARGIN,
        memory_max=memory_max,
    )
    batched = flag_values(words, runtime.aliases).get("--max-num-batched-tokens", "")
    return Trial(
        content=content,
        engine=engine,
        url=f"http://{LOOPBACK}:{place.port}",
        share=place.share,
        memory=box.memory,
        batched_tokens=int(batched) if batched.isdecimal() and len(batched) < 10 else None,
    )


def trial_arguments(words: list[str], runtime: Runtime, *, keep_cache: bool = False) -> list[str]:
    """The engine's words with another address, and without a cache in bytes: with that vLLM would measure nothing."""
    command, flags = words[:2], split_flags(words[2:])
    kept = [group for group in flags if keep_cache or flag_name(group[0], runtime.aliases) != "--kv-cache-memory-bytes"]
    layers = [[word for group in kept for word in group], ["--host", LOOPBACK]]
    return [*command, *layer_flags(layers, runtime.aliases, repeatable=runtime.repeatable)]
