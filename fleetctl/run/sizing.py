"""What the engines of a move will have for their caches: the models' files are looked at on the boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleetctl.capacity.forecast import Files, Forecast, forecast
from fleetctl.checkpoint.sent import Sent
from fleetctl.checkpoint.source import Checkpoint, read_files
from fleetctl.engine.runtimes.flags import flag_values, layer_flags
from fleetctl.engine.runtimes.known import RUNTIMES
from fleetctl.errors import RefusedError, SpecError
from fleetctl.plan.types import Sizing
from fleetctl.remote.boxes import Boxes
from fleetctl.remote.errors import OpFailed
from fleetctl.render.release import Budget, Engine, Release
from fleetctl.spec.fleet import Fleet

TIME_FOR_HEADERS = 60.0  # seconds


def size_up(fleet: Fleet, boxes: Boxes, target: Release, engines: Sequence[Engine]) -> dict[str, Forecast]:
    """Engine id → its forecast, for engines whose weights are a folder on their boxes. Each folder is read once."""
    read: dict[str, Checkpoint | str] = {}
    found = {}
    for engine in engines:
        if not engine.weights.startswith("/") or not RUNTIMES[engine.runtime].forecasts:
            continue
        if engine.weights not in read:
            read[engine.weights] = _read(boxes, engine)
        files = read[engine.weights]
        if isinstance(files, str):
            found[engine.id] = Forecast((f"the cache is not known: {files}",))
        else:
            found[engine.id] = _forecast(fleet, target, engine, files)
    return found


def _read(boxes: Boxes, engine: Engine) -> Checkpoint | str:
    """A model's files on the box of the engine's head, or what is wrong with them."""
    box = engine.head.box
    try:
        told = boxes[box].call("checkpoint_files", path=engine.weights, timeout=TIME_FOR_HEADERS)
        return read_files(Sent(f"{box}:{engine.weights}", told))
    except OpFailed as failure:
        return failure.message
    except SpecError as error:
        return error.message


def _forecast(fleet: Fleet, target: Release, engine: Engine, read: Checkpoint) -> Forecast:
    model = fleet.models[engine.model]
    placement = fleet.layouts[target.layout or ""][engine.model]
    budgets: Mapping[str, Budget] = {budget.box: budget for budget in target.budgets}
    # The rank with the least room decides.
    caches = {rank.box: placement.boxes[rank.box].kv_cache_memory for rank in engine.ranks}
    rank = min(engine.ranks, key=lambda rank: caches[rank.box] or rank.share * budgets[rank.box].memory)
    layers = (model.arguments, placement.arguments, placement.boxes[rank.box].arguments)
    kv = {} if model.kv_cache_dtype is None else {"--kv-cache-dtype": model.kv_cache_dtype}
    runtime = RUNTIMES[engine.runtime]
    loras = runtime.adapters(model.loras) if model.loras is not None and runtime.adapters is not None else []
    words = layer_flags([loras, *layers], runtime.aliases)
    arguments = {**kv, **flag_values(words, runtime.aliases)}
    files = Files(read.where, read.config, read.tensors)
    return forecast(model, placement, rank.box, budgets[rank.box].memory, rank.share, files, arguments)


def refuse_what_cannot_start(forecasts: Mapping[str, Forecast]) -> None:
    """Raises RefusedError, with the sums, when engines would not start even with little overhead."""
    reasons = [
        f"{engine} would {_fault(one)}: {'; '.join(one.lines)}" for engine, one in forecasts.items() if one.cannot_start
    ]
    if reasons:
        raise RefusedError(
            "the move is refused; nothing was changed:\n" + "\n".join(f"- {reason}" for reason in reasons),
            hint="lower context: of the model, use kv_cache_dtype: fp8, or split it over more boxes"
            + ("; or lower kv_cache_memory:" if any(one.exact for one in forecasts.values()) else ""),
        )


def _fault(one: Forecast) -> str:
    if one.exact:
        return "take more than its share, or not start, with the cache that kv_cache_memory: gives it"
    return "not start, its cache has no room for one request of its context"


def sizings(forecasts: Mapping[str, Forecast]) -> tuple[Sizing, ...]:
    """The forecasts as a plan shows them."""
    return tuple(
        Sizing(
            engine=engine, lines=one.lines, tokens=one.tokens, in_doubt=one.in_doubt, exact=one.exact, beyond=one.beyond
        )
        for engine, one in forecasts.items()
    )
