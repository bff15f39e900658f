"""A profile: settings for one model on one kind of box, and where each of them is from. Pure.

A profile says what was seen, and nothing else. What nobody measured is left out of it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from fleetctl.errors import SpecError
from fleetctl.spec.fleet_model import Speculative
from fleetctl.spec.part import Count, Part, Rule, Share
from fleetctl.spec.plain import plain_yaml
from fleetctl.spec.units import Size

ANY = "any"
"""In place of a mix: traffic of several kinds together."""

ProfileName = Annotated[
    str,
    Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,79}$"),
    Rule("a profile's name is lower-case letters, digits, dots and dashes"),
]
Day = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$"), Rule("a day is written like 2026-11-30, in quotes")]


class ModelKind(Part):
    """Which models it is of: all that is given has to be so."""

    names: tuple[str, ...] = Field(
        default=(), description="beginnings of the model's own name: of a hub id what follows the organization"
    )
    config: dict[str, str | int] = Field(default={}, description="values of its config.json")
    quantization: str | None = Field(default=None, description="word in its quantization: nvfp4, fp8, awq")
    weights: Size | None = Field(default=None, description="its weights, give or take 5 %")

    @model_validator(mode="after")
    def _says_something(self) -> ModelKind:
        if not self.names and not self.config and self.weights is None:
            raise ValueError("a profile says which model it is of: names:, config: or weights:")
        return self

    @property
    def exact(self) -> bool:
        """It knows the model itself, and not only how large it is."""
        return bool(self.names or self.config)


class BoxKind(Part):
    """What kind of box: the GPU's name as nvidia-smi has it, how many, and the memory give or take 10 %."""

    gpu: str | None = Field(default=None, description="name without NVIDIA before it; left out: a box without a GPU")
    gpus: Annotated[int, Field(ge=0, le=64)] = Field(default=1, description="how many of them an engine has on a box")
    memory: Size = Field(description="of the GPU, where it has its own; else of the box")
    machine: str | None = Field(default=None, description="for boxes without a GPU: x86_64 or aarch64")


class Settings(Part):
    """What to run with. What is left out is not known."""

    concurrency: dict[str, Count] = Field(default={}, description="mix → requests that a copy takes at once")
    gpu_memory_utilization: Share | None = None
    kv_cache_dtype: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] | None = None
    speculative: Speculative | None = None
    batched_tokens: Count | None = Field(default=None, description="--max-num-batched-tokens")


class Memory(Part):
    """What an engine was seen to take, of one rank."""

    weights: Size | None = None
    overhead: Size | None = Field(default=None, description="beyond weights and cache")
    batched_tokens: Count | None = Field(default=None, description="--max-num-batched-tokens of that engine")


class Measurement(Part):
    """One point of a curve. Seconds are medians, of the whole answer the mean."""

    concurrency: Count
    tokens_per_second: float
    first_token: float | None = None
    whole_answer: float | None = None
    requests: int | None = None


class Evidence(Part):
    """Where settings are from: measured by `fleetctl tune` or `capacity calibrate`, or told in public."""

    about: tuple[str, ...] = Field(min_length=1, description="keys: concurrency.email, kv_cache_dtype, memory")
    how: Literal["tune", "calibrate", "report"]
    told: str = Field(min_length=1, description="what was done and seen, in a sentence or two")
    points: tuple[Measurement, ...] = Field(default=(), description="the curve, as it was measured")


class Profile(Part):
    """One file. ``over``: boxes that one engine ran over."""

    profile: ProfileName
    date: Day = Field(description="when it was measured; of a report, when it was written down here")
    model: ModelKind
    box: BoxKind
    over: Count = 1
    versions: dict[str, str] = Field(default={}, description="of the engine, the driver, fleetctl; as far as known")
    settings: Settings
    memory: Memory | None = None
    evidence: tuple[Evidence, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _all_is_evidenced(self) -> Profile:
        there = {*self.given(), *(["memory"] if self.memory is not None else [])}
        told = {key for one in self.evidence for key in one.about}
        if there - told:
            raise ValueError(f"nothing says where {', '.join(sorted(there - told))} is from: add it to evidence:")
        if told - there:
            raise ValueError(f"evidence is about {', '.join(sorted(told - there))}, which is not in settings:")
        return self

    def given(self) -> list[str]:
        """Keys of the settings that it has, as evidence names them."""
        found = [f"concurrency.{mix}" for mix in self.settings.concurrency]
        names = ("gpu_memory_utilization", "kv_cache_dtype", "speculative", "batched_tokens")
        return found + [name for name in names if getattr(self.settings, name) is not None]

    def evidence_of(self, key: str) -> Evidence:
        """Where a key is from."""
        return next(one for one in self.evidence if key in one.about)

    def concurrency_for(self, mix: str | None) -> tuple[str, int] | None:
        """The mix that counts, and its concurrency: ``mix``, else all together; without a mix the smallest there is."""
        known = self.settings.concurrency
        for wanted in (mix, ANY):
            if wanted is not None and wanted in known:
                return wanted, known[wanted]
        return min(known.items(), key=lambda item: item[1], default=None) if mix is None else None


def parse_profile(text: str, source: str) -> Profile:
    """The profile of a file. Raises SpecError with the file, the key and what is wrong."""
    try:
        return Profile.model_validate(plain_yaml(text, source))
    except ValidationError as error:
        one = error.errors()[0]
        place = ": ".join(str(part) for part in one["loc"])
        hint = "docs/profiles.md shows the form; `fleetctl profile save` writes one"
        said = one["msg"].removeprefix("Value error, ")
        raise SpecError(f"{source}: {place + ': ' if place else ''}{said}", hint=hint) from error


def written(profile: Profile) -> str:
    """The text of its file; reading it gives the same profile, with large sizes in whole MiB."""
    told: dict[str, Any] = profile.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    for part, keys in (("model", ("weights",)), ("box", ("memory",)), ("memory", ("weights", "overhead"))):
        for key in keys:
            if key in told.get(part, {}):
                told[part][key] = _mib(told[part][key])
    head = "# Settings that were measured, and how. docs/profiles.md says what the keys mean.\n"
    return head + yaml.safe_dump(told, sort_keys=False, allow_unicode=True, width=110)


def _mib(size: int) -> str | int:
    """In MiB, where that is exact enough to be known again by."""
    return size if size < 2**27 else f"{-(-size // 2**20)}MiB"
