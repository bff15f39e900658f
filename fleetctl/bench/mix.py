"""What requests are like: lengths of prompts and answers. The built-in mixes are data, in ``templates/mixes.yaml``."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fleetctl.errors import SpecError
from fleetctl.resources import root_text
from fleetctl.spec.plain import plain_text, plain_yaml

MIXES = "mixes.yaml"


class Lengths(BaseModel):
    """A distribution of lengths in tokens: log-normal, cut to ``least`` and ``most``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    median: float = Field(ge=1, le=1e6)
    mean: float = Field(ge=1, le=1e6)
    least: int = Field(default=1, ge=1)
    most: int = Field(default=1_000_000, ge=1)

    @model_validator(mode="after")
    def _in_order(self) -> Lengths:
        if self.mean < self.median or self.least > self.most:
            raise ValueError("the mean is at least the median, and least is at most most")
        return self

    def draw(self, rng: random.Random) -> int:
        """One length."""
        value = self.median if self.mean == self.median else rng.lognormvariate(math.log(self.median), self.sigma)
        return min(self.most, max(self.least, round(value)))

    @property
    def sigma(self) -> float:
        """Of the logarithms: the mean of a log-normal is its median times exp(sigma² / 2)."""
        return math.sqrt(2 * math.log(self.mean / self.median))


class Mix(BaseModel):
    """One kind of traffic."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    about: str = ""
    kind: Literal["chat", "embeddings"] = "chat"
    prompt: Lengths
    answer: Lengths | None = None
    shared: int = Field(default=0, ge=0, le=1_000_000)

    @model_validator(mode="after")
    def _whole(self) -> Mix:
        if (self.kind == "chat") == (self.answer is None):
            raise ValueError("kind: chat has an answer:, and kind: embeddings has none")
        return self

    @property
    def task(self) -> str:
        """What a model has to do for it."""
        return "embed" if self.kind == "embeddings" else "generate"


def load_mix(name: str) -> Mix:
    """A built-in mix, or one of a file: one mix, or several of which the first counts.

    Raises SpecError naming the mixes that there are, or what is wrong in the file.
    """
    built_in = yaml.safe_load(root_text("templates", MIXES))
    if name in built_in:
        return _parsed(name, built_in[name], MIXES)
    path = Path(name)
    if not path.is_file():
        raise SpecError(f"there is no mix {name}", hint=f"mixes: {', '.join(built_in)}; or a file in the same form")
    told = plain_yaml(plain_text(path), str(path))
    if not isinstance(told, dict) or not told:
        raise SpecError(f"{path} is no mix: it is no mapping", hint="docs/bench.md shows the form")
    if "prompt" in told:
        return _parsed(path.stem, told, str(path))
    first = next(iter(told))
    return _parsed(str(first), told[first], str(path))


def _parsed(name: str, told: object, where: str) -> Mix:
    try:
        return Mix.model_validate({**told, "name": name} if isinstance(told, dict) else told)
    except ValidationError as error:
        one = error.errors()[0]
        place = ": ".join(str(part) for part in one["loc"])
        raise SpecError(f"{where}: {name}: {place + ': ' if place else ''}{one['msg']}") from error
