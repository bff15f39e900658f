"""Ready entries of small models for a pool: what stands in fleet.yaml, and where each value is from. Pure."""

from __future__ import annotations

from typing import Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from fleetctl.errors import SpecError
from fleetctl.profiles.profile import Day
from fleetctl.spec.fleet_model import Model
from fleetctl.spec.part import Count, Name, Part
from fleetctl.spec.plain import plain_yaml
from fleetctl.spec.units import Size

LAUNCH = "launch"
"""Key of a model that only its operator knows: where the engine is installed."""


class Place(Part):
    """What of a placement in a pool is the model's own."""

    memory: Size = Field(description="of a box, once the engine is loaded")
    concurrency: Count = Field(description="requests at once")


class Told(Part):
    """Where values are from: measured by fleetctl's authors, told in public, or computed from what is public."""

    about: tuple[str, ...] = Field(min_length=1, description="keys of model: and place:")
    how: Literal["measured", "report", "computed"]
    told: str = Field(min_length=1, description="what was done and seen, or where it stands, in a sentence or two")


class Entry(Part):
    """One file."""

    entry: Name
    date: Day = Field(description="when it was measured or written down")
    does: str = Field(min_length=1, max_length=120, description="what the model is for")
    model: Model = Field(description="as it stands under models:; launch: is an example")
    place: Place = Field(description="as it stands in a layout, beside pool:")
    evidence: tuple[Told, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _all_is_evidenced(self) -> Entry:
        there = {*self.model.model_fields_set - {LAUNCH}, *self.place.model_fields_set}
        told = {key for one in self.evidence for key in one.about}
        if there - told:
            raise ValueError(f"nothing says where {', '.join(sorted(there - told))} is from: add it to evidence:")
        if told - there:
            raise ValueError(f"evidence is about {', '.join(sorted(told - there))}, which is not there")
        return self

    @property
    def task(self) -> str:
        """What it does, in one word."""
        return self.model.task or "generate"

    def text(self, box: str = "BOX") -> str:
        """What goes into fleet.yaml: the model, and its place in a layout called pool."""
        model = self.model.model_dump(mode="json", exclude_unset=True)
        place = self.place.model_dump(mode="json")
        for part, key in ((model, "weights_size"), (place, "memory")):
            if key in part:
                part[key] = f"{-(-part[key] // 2**20)}MiB"
        tree = {"models": {self.entry: model}, "layouts": {"pool": {self.entry: {"pool": [box], **place}}}}
        return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=110)


def parse_entry(text: str, source: str) -> Entry:
    """The entry of a file. Raises SpecError with the file, the key and what is wrong."""
    try:
        return Entry.model_validate(plain_yaml(text, source))
    except ValidationError as error:
        one = error.errors()[0]
        place = ": ".join(str(part) for part in one["loc"])
        said = one["msg"].removeprefix("Value error, ")
        hint = "docs/profiles.md shows the form"
        raise SpecError(f"{source}: {place + ': ' if place else ''}{said}", hint=hint) from error
