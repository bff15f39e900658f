"""How one kind of engine is started and spelled: what every dialect module fills in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fleetctl.engine.runtimes.flags import flag_name
from fleetctl.engine.runtimes.known import RUNTIMES
from fleetctl.importing.found import Found, FoundModel, Word

Reader = Callable[[Found, FoundModel, Word, list[str]], None]
"""Takes the values of one flag into an entry."""


def _nothing(found: Found, model: FoundModel) -> None:
    """Of a dialect in which each flag says all by itself."""


def _as_it_is(weights: str) -> str:
    return weights


@dataclass(frozen=True)
class Dialect:
    """One kind of engine, in its own words."""

    runtime: str
    programs: Mapping[str, tuple[str, ...]]
    """Programs that start it → words of which one has to follow (none: flags follow at once)."""
    sign: re.Pattern[str]
    """Is found in the name of an image that starts it, and in words of commands that do."""
    image: str
    """The usual image."""
    keys: Mapping[str, Reader]
    """A reader for each flag that fleet.yaml has a key for."""
    left_out: Mapping[str, str]
    """Flags that fleetctl sets itself, each with what is to be told of that ("" for nothing)."""
    modules: tuple[str, ...] = ()
    """What Python's -m starts it by."""
    image_words: tuple[str, ...] = ()
    """What may stand before the flags that its image is given."""
    asks: re.Pattern[str] | None = None
    """Those of its images that start something else unless they are given one of these words."""
    positional: bool = False
    """The model may be named without a flag."""
    several: frozenset[str] = frozenset()
    """Flags with any number of values."""
    bare: frozenset[str] = frozenset()
    """Flags with a key that have no value."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that say what a flag does; the flag wins."""
    port: int = 8000
    """Where it listens unless told."""
    image_port: int | None = None
    """The same of its image, where that is another."""
    context: int = 32768
    """The longest request that is assumed where nothing says it."""
    example: str = "/models/MODEL"
    """Weights that are assumed where nothing names them."""
    name_flag: str = "--served-model-name"
    named: Callable[[str], str] = _as_it_is
    """How it calls a model of which it was told no name."""
    needs_gpu: bool = True
    """It was made for GPUs: a container that was given none got them in another way."""
    closing: Callable[[Found, FoundModel], None] = _nothing
    """What follows from several flags together, once all are read."""

    def name(self, word: str) -> str:
        """The one name of a flag."""
        return flag_name(word, RUNTIMES[self.runtime].aliases)

    @property
    def in_python(self) -> bool:
        """It lies in a Python environment; otherwise it is a program of its own."""
        return bool(RUNTIMES[self.runtime].packages)
