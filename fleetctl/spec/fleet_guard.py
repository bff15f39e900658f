"""The guard in fleet.yaml: when it acts, and which services keep their memory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fleetctl.spec.part import Count, Name, Part, Port, Rule
from fleetctl.spec.units import Duration, Size


class Protected(Part):
    """A service whose memory the kernel does not take away (`MemoryMin=`), up to a size."""

    unit: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9:_.\\@-]+\.service$"),
        Rule("a service is named in full, like postgresql.service"),
    ] = Field(description="full name of the service; one of system.slice, as services are unless they say otherwise")
    memory: Size = Field(description="memory that stays with it")
    boxes: tuple[Name, ...] | None = Field(default=None, description="boxes that have it; default: every box")


class Guard(Part):
    """A small service on every box that has an engine: it sheds load when memory runs short, restarts what hangs."""

    act: Literal["restart", "stop", "watch"] = Field(
        default="restart",
        description="what it does when memory runs short: stop the engine and start it once there is room again, stop "
        "it for good, or only write down what it saw; with watch a hung engine is not restarted either",
    )
    memory_low: Size | None = Field(
        default=None,
        description="available memory below which it acts; twice that is enough again, half of it is no time to wait; "
        "default: an eighth of the box's reserve",
    )
    pressure: float = Field(
        default=40.0,
        gt=0,
        le=100,
        description="it also acts when all tasks stand still for want of memory for this part of the time (PSI, full "
        "avg10, in percent) and less than twice memory_low is available",
    )
    silent: Duration = Field(
        default=30.0,
        description="how long an engine's counters may stand still while it has requests, until it is asked for a "
        "completion",
    )
    answer_within: Duration = Field(
        default=60.0,
        description="how long it may take to the first token of that completion, thinking aloud included; none by "
        "then: it hangs",
    )
    idle: Duration = Field(
        default=300.0, description="an engine with nothing to do is asked for a completion this often; 0: never"
    )
    restarts: Count = Field(default=3, description="restarts of an engine within an hour, at most")
    port: Port = Field(default=7411, description="port on which the guard tells the proxy which engine is out")
    protect: tuple[Protected, ...] = Field(default=(), description="services that keep their memory")

    def protects_on(self, box: str) -> dict[str, int]:
        """Services that keep memory on a box → bytes."""
        return {entry.unit: entry.memory for entry in self.protect if entry.boxes is None or box in entry.boxes}
