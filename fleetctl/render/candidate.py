"""A copy of a layout with other settings than it has: for an engine that is started to be measured with them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fleetctl.engine.runtimes.flags import flag_name, flag_values, layer_flags, split_flags
from fleetctl.engine.runtimes.vllm import ALIASES, VLLM
from fleetctl.errors import SpecError
from fleetctl.render.engine import Place, engine_arguments, runtime_of
from fleetctl.spec.fleet import Fleet

BATCHED, DRAFTS, SHARE = "batched_tokens", "speculative_tokens", "memory_share"
SETTINGS = {
    BATCHED: "--max-num-batched-tokens",
    DRAFTS: "speculative: num_speculative_tokens",
    SHARE: "gpu_memory_utilization",
}
"""Settings that an engine reads when it starts, and what each is in fleet.yaml or on the command line."""

Values = Mapping[str, float | None]
"""Setting → value; None: not given, so that the engine has its own default."""

BATCHED_FLAG = SETTINGS[BATCHED]


def present(fleet: Fleet, place: Place) -> dict[str, float | None]:
    """What a copy runs with now."""
    model = fleet.models[place.model]
    batched = arguments_of(fleet, place).get(BATCHED_FLAG, "")
    return {
        BATCHED: int(batched) if batched.isdecimal() and len(batched) < 10 else None,
        DRAFTS: model.speculative.num_speculative_tokens if model.speculative else None,
        SHARE: place.share,
    }


def arguments_of(fleet: Fleet, place: Place) -> dict[str, str]:
    """Flags of a copy's command line that the file gives as arguments, and their values."""
    model, placement = fleet.models[place.model], fleet.layouts[place.layout][place.model]
    layers = (model.arguments, placement.arguments, placement.boxes[place.box].arguments)
    return flag_values(layer_flags(layers, ALIASES), ALIASES)


def why_not(fleet: Fleet, place: Place, setting: str) -> str | None:
    """Why a setting of a copy cannot be tried; None where it can."""
    model, placement = fleet.models[place.model], fleet.layouts[place.layout][place.model]
    runtime = runtime_of(fleet, place.model)
    if setting == BATCHED and runtime.name != VLLM.name:
        return f"{BATCHED_FLAG} is a flag of {VLLM.title}, and {place.model} is served by {runtime.title}"
    if setting == SHARE and engine_arguments(fleet, place) == engine_arguments(
        fleet, replace(place, share=place.share / 2)
    ):
        return f"{runtime.title} takes no share of memory when it starts"
    if setting == DRAFTS and "--speculative-config" in arguments_of(fleet, place):
        return "--speculative-config stands in arguments:; write it under speculative: of the model"
    if setting == DRAFTS and model.speculative is None:
        return f"the model {place.model} has no speculative:, so that there are no drafts to be more or fewer"
    if setting == SHARE and placement.boxes[place.box].kv_cache_memory is not None:
        return f"{place.box} has kv_cache_memory:, and then the share of memory does not set the size of the cache"
    return None


def with_values(fleet: Fleet, place: Place, values: Values) -> tuple[Fleet, Place]:
    """The fleet and the place in which this copy has other settings. Raises SpecError for a value that cannot be."""
    model, placement = fleet.models[place.model], fleet.layouts[place.layout][place.model]
    changed: dict[str, Any] = {}
    drafts, batched, share = (values.get(name) for name in (DRAFTS, BATCHED, SHARE))
    if drafts is not None and model.speculative is not None:
        speculative = model.speculative.model_copy(update={"num_speculative_tokens": int(drafts)})
        changed["speculative"] = speculative
    seat = placement.boxes[place.box]
    if batched is not None:
        others = [group for group in split_flags(seat.arguments) if flag_name(group[0], ALIASES) != BATCHED_FLAG]
        words = [word for group in others for word in group]
        seat = seat.model_copy(update={"arguments": (*words, BATCHED_FLAG, str(int(batched)))})
    if placement.copies is None:
        raise SpecError(f"{place.layout}: {place.model} is split over boxes, and only copies can be tried one by one")
    copies = placement.model_copy(update={"copies": {**placement.copies, place.box: seat}})
    layout = {**fleet.layouts[place.layout], place.model: copies}
    models = {**fleet.models, place.model: model.model_copy(update=changed)}
    other = fleet.model_copy(update={"layouts": {**fleet.layouts, place.layout: layout}, "models": models})
    return other, place if share is None else replace(place, share=share)


def said(setting: str, value: float | None) -> str:
    """A value in words."""
    return f"{setting} {'as the engine has it' if value is None else f'{value:g}'}"
