"""What all answers of boxes have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError


class Seen(BaseModel):
    """Base of facts: unknown keys are ignored, so that a newer box program does not break an older client."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def first_fault(error: ValidationError) -> str:
    """The first thing that an answer lacks or has wrong, as ``FIELD: WHAT``."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
