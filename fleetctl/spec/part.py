"""What every part of fleet.yaml is made of: names, numbers, and the rule that nothing unknown passes."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field


class Rule(str):
    """What a value must look like, in words; stands beside the pattern that checks it."""


Name = Annotated[
    str,
    Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$"),
    Rule("a name is lower-case letters, digits and dashes, begins with a letter or digit, at most 31 long"),
]
Port = Annotated[int, Field(ge=1, le=65535, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]
Tries = Annotated[int, Field(ge=1, le=10, strict=True)]
Retries = Annotated[int, Field(ge=0, le=10, strict=True)]
Share = Annotated[float, Field(gt=0, le=1, strict=True)]


class Part(BaseModel):
    """Base of every part of fleet.yaml: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    SHORTEST: ClassVar[tuple[str, ...]] = ()
    """Keys of the shortest form of a part that must have one of several keys."""
