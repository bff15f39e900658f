"""How ``fleetctl capacity`` shows its sum: for people in 80 columns, for programs as one event a division."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleetctl.capacity.estimate import Estimate, Outcome
    from fleetctl.capacity.logs import EngineLog
    from fleetctl.capacity.shape import ModelShape
    from fleetctl.capacity.study import Study
    from fleetctl.capacity.weights import Weights

_WIDTH = 78
_LABEL = 32


def events(shape: ModelShape, found: Study) -> Iterator[tuple[str, dict[str, Any]]]:
    """What --json prints: one event a division, then the advice."""
    for one in found.estimates:
        yield "capacity", _event(shape, one)
    for launch, message in found.refused:
        yield "refused", {"tp": launch.tp, "pp": launch.pp, "message": message}
    advice = found.advice
    yield (
        "advice",
        {"verdict": advice.verdict.value, "boxes": advice.boxes, "sure": advice.sure, "text": advice.text},
    )


def _event(shape: ModelShape, one: Estimate) -> dict[str, Any]:
    """One division as values; sizes in bytes."""
    launch = one.launch
    return {
        "model_type": shape.model_type,
        "tp": launch.tp,
        "pp": launch.pp,
        "boxes": one.boxes,
        "context": launch.context,
        "model_context": shape.context,
        "kv_cache_dtype": one.dtype,
        "gpu_memory_utilization": one.room.share,
        "lines": [
            {"what": line.what, "bytes": line.size, "estimate": line.estimate, "note": line.note} for line in one.lines
        ],
        "weights": one.weights,
        "overhead": one.overhead.total,
        "overhead_measured": one.overhead.measured,
        "bytes_per_token": one.paging.per_token,
        "bytes_per_state": one.paging.per_state,
        "block_size": one.paging.block,
        "blocks_per_request": one.paging.per_request,
        "rest_of_the_box": one.room.rest,
        **_outcome(one.outcome),
        "low": _outcome(one.low),
        "high": _outcome(one.high) if one.high else None,
        "unknown": shape.unknown.what if shape.unknown else None,
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "available": outcome.available,
        "tokens": outcome.tokens,
        "requests": round(outcome.requests, 2),
        "starts": outcome.starts,
    }


def show(where: str, shape: ModelShape, found: Study, said: EngineLog) -> None:
    """Print everything, in lines of at most 80 columns."""
    _say(where)
    _say(f"{shape.model_type}, {len(shape.layers)} layers{_kinds(shape)}")
    if found.weights:
        _say_weights(found.weights)
    for note in shape.notes:
        _say(f"note: {note}")
    if shape.unknown:
        _say(f"not known: {shape.unknown.what}. What follows are bounds, not values.")
    for one in found.estimates:
        print()
        _say_sum(shape, one)
    for launch, message in found.refused:
        print()
        _say(f"tp {launch.tp}, pp {launch.pp}: {message}")
    if said.whole:
        print()
        _say_log(found.estimates[0], said)
    print()
    _say(f"Advice: {found.advice.text}")


def _say(text: str, indent: str = "") -> None:
    import textwrap

    lines = textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)
    print("\n".join(lines or [""]))


def _kinds(shape: ModelShape) -> str:
    """What the layers keep, in words."""
    from fleetctl.capacity.shape import Compressed, Full, Latent, Ring, State, Window

    names = {
        Full: "full attention",
        Window: "sliding window",
        Latent: "latent attention (MLA)",
        State: "a state per request",
        Compressed: "compressed keys",
        Ring: "",
    }
    found = [(names[kind], sum(isinstance(c, kind) for c in shape.caches)) for kind in names]
    told = ", ".join(f"{count} with {name}" for name, count in found if count and name)
    draft = f"; draft head of {len(shape.draft)}" if shape.draft else ""
    encoders = f"; encoders: {', '.join(shape.encoders)}" if shape.encoders else ""
    return f": {told}{draft}{encoders}" if told else f"{draft}{encoders}"


def _say_weights(weights: Weights) -> None:
    formats = ", ".join(f"{name} {_amount(size)}" for name, size in list(weights.formats.items())[:6])
    _say(f"weights in the files: {_amount(weights.on_disk)} ({formats})")
    parts = ", ".join(f"{part.value} {_amount(size)}" for part, size in weights.parts.items() if size >= 2**20)
    _say(f"loaded: {_amount(weights.loaded)}" + (f" ({parts})" if parts else ""))


def _row(label: str, value: str, note: str = "") -> None:
    print(f"  {label:<{_LABEL}}{value:>13}  {note}".rstrip())


def _amount(size: float) -> str:
    """A size with the unit that shows it."""
    # Tenths of a GiB are still told in GiB, so that the lines of a sum can be compared.
    for unit, scale, least in (("GiB", 2**30, 2**27), ("MiB", 2**20, 2**20), ("KiB", 2**10, 2**10)):
        if abs(size) >= least:
            return f"{size / scale:,.2f} {unit}"
    return f"{size:,.0f} B"


def _say_sum(shape: ModelShape, one: Estimate) -> None:
    launch, paging, outcome = one.launch, one.paging, one.outcome
    boxes = "a copy on one box" if one.boxes == 1 else f"split over {one.boxes} boxes, each:"
    _say(f"tp {launch.tp}, pp {launch.pp}: {boxes}")
    for line in one.lines:
        note = line.note + ((", " if line.note else "") + "estimate" if line.estimate else "")
        _row(line.what, _amount(line.size), note)
    _row("= for the cache", _amount(outcome.available), "does not fit" if outcome.available <= 0 else "")
    bound = " at most" if shape.unknown else ""
    _row(f"a token ({one.dtype})", _amount(paging.per_token), f"blocks of {paging.block:,} tokens{bound}")
    if paging.per_state:
        _row("the states of a request", _amount(paging.per_state))
    if not shape.unknown:
        _row("tokens of cache", f"{outcome.tokens:,}")
        _row(f"requests of {launch.context:,} tokens", f"{outcome.requests:.2f}")
    least, most = one.low, one.high
    if shape.unknown or not one.overhead.measured:
        top = f"{most.tokens:,}" if most else "nobody knows"
        _row("tokens, between", f"{least.tokens:,}", f"and {top}")
    if not one.outcome.starts and not shape.unknown:
        _say("the engine will not start: there is no room for one request of full context", "  ")
    if shape.context and launch.context > shape.context:
        _say(f"the model's own context is {shape.context:,} tokens: the engine refuses more unless told", "  ")


def _say_log(one: Estimate, said: EngineLog) -> None:
    """What the engine said, beside what follows from its own memory for the cache."""
    _say("the engine's own log:")
    if said.weights:
        _row("loading the model took", _amount(max(said.weights)))
    if said.available:
        _row("memory for the cache", _amount(min(said.available)))
    if said.tokens is not None:
        _row("tokens of cache", f"{said.tokens:,}")
        if said.available:
            mine = one.paging.tokens([min(said.available)])
            _row(
                "fleetctl's, from that memory",
                f"{mine:,}",
                f"{(mine / said.tokens - 1) * 100:+.2f} %" if said.tokens else "",
            )
