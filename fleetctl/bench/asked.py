"""What is to be sent to an engine, as a plan and a journal have it: values alone, and no secret."""

from __future__ import annotations

from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field

from fleetctl.bench.endpoint import Endpoint
from fleetctl.bench.mix import Mix
from fleetctl.bench.target import Bench
from fleetctl.spec.secret import Secret


class Asked(BaseModel):
    """Load of one mix. ``duration`` are the seconds of one measurement, after a warm-up."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mix: Mix
    model: str | None = None
    seed: int = 0
    duration: float = Field(default=20.0, gt=0)
    key_variable: str | None = None
    """Environment variable, here, that has the engine's API key."""

    def bench(self, endpoint: Endpoint) -> Bench:
        """The load, for this endpoint. Raises EndpointError when it does not answer."""
        key = Secret(env=self.key_variable).read() if self.key_variable else None
        return Bench(replace(endpoint, api_key=key), self.mix, model=self.model, seed=self.seed)
