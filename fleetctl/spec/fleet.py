"""fleet.yaml as values. Field descriptions are the reference that ``fleetctl schema`` prints."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from fleetctl.spec.fleet_gates import Gates
from fleetctl.spec.fleet_guard import Guard
from fleetctl.spec.fleet_model import Build, Model, Start
from fleetctl.spec.fleet_pool import Pool
from fleetctl.spec.fleet_proxy import Proxy
from fleetctl.spec.part import Count, Name, Part, Port, Rule, Share
from fleetctl.spec.secret import SecretRef
from fleetctl.spec.units import Size


class Ssh(Part):
    """How to reach a box; what is left out comes from the OpenSSH configuration of the operator."""

    host: str | None = Field(
        default=None, description="host name or alias in ~/.ssh/config; default: the box's address"
    )
    user: str | None = Field(default=None, description="login user; anyone but root needs sudo")
    port: Port | None = Field(default=None, description="port of sshd")
    key: str | None = Field(default=None, description="path of the private key")
    known_hosts: str | None = Field(default=None, description="path of a known_hosts file used in place of the user's")
    sudo_password: SecretRef | None = Field(default=None, description="only where sudo asks; default: asked once")


class Box(Part):
    """A machine of the fleet."""

    address: str = Field(description="address at which the proxy and the other boxes reach this box")
    link: str | None = Field(default=None, description="address on the direct link between boxes; default: address")
    interface: str | None = Field(
        default=None, description="network interface that has the link address, for NCCL and Gloo"
    )
    memory: Size = Field(description="memory of the box (of the GPU, where it has its own)")
    reserve: Size = Field(description="memory kept for everything that is not the engine")
    page_cache: Literal["keep", "drop"] = Field(
        default="keep",
        description="drop: before an engine starts the page cache is dropped, if less memory is free than it asks for; "
        "for boxes whose GPU shares the memory",
    )
    ssh: Ssh = Field(default=Ssh(), description="how fleetctl logs in")


class PerBox(Part):
    """Settings of one box of a placement, where they differ from those of the placement."""

    concurrency: Count | None = Field(default=None, description="requests this copy takes at once")
    gpu_memory_utilization: Share | None = Field(
        default=None,
        description="share of the box's memory for this engine; default: (memory - reserve) / memory",
    )
    kv_cache_memory: Size | None = Field(
        default=None,
        description="exactly so much for this engine's cache on this box (--kv-cache-memory-bytes, vLLM 0.11 and "
        "later); default: what the share leaves",
    )
    arguments: tuple[str, ...] = Field(default=(), description="further arguments of the engine on this box")
    environment: dict[str, str] = Field(default={}, description="environment of the engine on this box")


def _boxes(value: Any) -> Any:
    """A list of boxes is short for a mapping of boxes without settings of their own."""
    if isinstance(value, list | tuple):
        names = [name for name in value if isinstance(name, str)]
        if len(names) < len(value):
            raise ValueError("a list of boxes has their names, like [spark1, spark2]")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"box named twice: {', '.join(twice)}; keep one")
        return {name: {} for name in names}
    if isinstance(value, dict):
        return {name: {} if settings is None else settings for name, settings in value.items()}
    return value


Boxes = Annotated[
    dict[str, PerBox],
    BeforeValidator(
        _boxes,
        json_schema_input_type=Annotated[list[str], Field(min_length=1)]
        | Annotated[dict[str, PerBox | None], Field(min_length=1)],
    ),
    Field(min_length=1),
]


class Placement(Part):
    """Where a model runs in a layout: ``copies``, one engine on each box, ``split``, one over all, or ``pool``.

    Models of a pool share the memory of its boxes: workers there load an engine when requests wait for it.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={
            "oneOf": [
                {"required": ["copies"], "properties": {"copies": {"not": {"type": "null"}}}},
                {
                    "required": ["split"],
                    "properties": {"split": {"type": ["array", "object"], "minItems": 2, "minProperties": 2}},
                },
                {"required": ["pool"], "properties": {"pool": {"not": {"type": "null"}}}},
            ]
        },
    )

    copies: Boxes | None = Field(default=None, description="boxes that each run a full copy")
    split: Boxes | None = Field(default=None, description="boxes that run one engine together; the first is the head")
    pool: Boxes | None = Field(
        default=None, description="boxes that can each load an engine for it, which takes requests from a common queue"
    )
    pin: bool = Field(default=False, strict=True, description="of a pool: always loaded, and never evicted")
    memory: Size | None = Field(
        default=None,
        description="of a pool: memory of a box that its engine takes once loaded; default, of encoders' servers only: "
        "the weights and 1GiB",
    )
    parallel: Literal["tensor", "pipeline"] = Field(default="tensor", description="how a split engine is divided")
    concurrency: Count = Field(
        default=12, description="requests one engine takes at once; the others wait in the proxy"
    )
    port: Port | None = Field(default=None, description="port of the engine, where it has one; default: 8000 and up")
    master_port: Port = Field(default=29500, description="rendezvous port of a split engine on its head")
    arguments: tuple[str, ...] = Field(default=(), description="further arguments of the engine in this layout only")
    environment: dict[str, str] = Field(default={}, description="environment of the engine in this layout only")

    @model_validator(mode="after")
    def _one_kind(self) -> Placement:
        if sum(boxes is not None for boxes in (self.copies, self.split, self.pool)) != 1:
            raise ValueError("a placement has exactly one of copies:, split: and pool:")
        if self.split is not None and len(self.split) < 2:
            raise ValueError("a split needs at least two boxes; one box runs a copy")
        return self

    @property
    def boxes(self) -> dict[str, PerBox]:
        """The boxes of the placement in the order of the file."""
        return next((boxes for boxes in (self.copies, self.split, self.pool) if boxes is not None), {})

    @property
    def kind(self) -> Literal["copies", "split", "pool"]:
        """The key that names its boxes."""
        return "copies" if self.copies is not None else "split" if self.split is not None else "pool"


UnitName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9:_.\\@-]+\.(service|timer|path|socket|target)$"),
    Rule("a unit is named in full, like old-vllm.service or watchdog.timer"),
]


class Superseded(Part):
    """A unit that is not fleetctl's and must not run beside its engines."""

    unit: UnitName = Field(description="full name of the unit")
    boxes: tuple[Name, ...] | None = Field(default=None, description="boxes that have it; default: every box")


def _superseded(value: Any) -> Any:
    return {"unit": value} if isinstance(value, str) else value


SupersededUnit = Annotated[Superseded, BeforeValidator(_superseded, json_schema_input_type=UnitName | Superseded)]


class Firewall(Part):
    """Who may reach the engines' own ports besides the proxy: with ``{}``, only the boxes of the fleet.

    Without this key fleetctl has no firewall.
    """

    allow: tuple[str, ...] = Field(
        default=(),
        description="further addresses and networks (IPv4 and IPv6) that may, for health checks and Prometheus",
    )


class Fleet(Part):
    """The whole of fleet.yaml."""

    fleet: Name = Field(description="name of the fleet")
    boxes: dict[Name, Box] = Field(min_length=1, description="name → box")
    models: dict[Name, Model] = Field(min_length=1, description="name → model")
    builds: dict[Name, Start] = Field(
        default={}, description="name → what engines can be started from, for {build: NAME} and `fleetctl upgrade`"
    )
    layouts: dict[Name, dict[Name, Placement]] = Field(min_length=1, description="layout → model → placement")
    proxy: Proxy = Field(description="the one address that clients use")
    pool: Pool | None = Field(
        default=None, description="queue and gateways of placements that are pool:; needed where a layout has one"
    )
    firewall: Firewall | None = Field(
        default=None, description="engines' ports closed to all but the fleet (nftables); default: no firewall"
    )
    superseded: tuple[SupersededUnit, ...] = Field(
        default=(),
        description="units that must not run beside fleetctl's; a name alone is short for {unit: NAME}",
    )
    gates: Gates = Field(default=Gates(), description="what an engine must pass before it gets traffic")
    guard: Guard | None = Field(default=None, description="a guard on every box that has an engine; default: none")

    def launch(self, model: str) -> Start:
        """What the engines of a model are started from; a build by its name is looked up."""
        launch = self.models[model].launch
        return self.builds[launch.build] if isinstance(launch, Build) else launch

    def pool_models(self, layout: str) -> list[str]:
        """Models of a layout that are in its pool, in the order of the file."""
        return [name for name, placement in self.layouts[layout].items() if placement.pool is not None]

    @property
    def gateways(self) -> tuple[str, ...]:
        """Boxes that run a gateway in a layout with a pool."""
        named = self.pool.gateways if self.pool is not None else None
        return named if named is not None else self.proxy.on

    @property
    def proxy_address(self) -> str:
        """Where clients reach the proxy."""
        floating = self.proxy.floating
        return floating.address if floating else self.proxy.address or self.boxes[self.proxy.lead].address

    def superseded_on(self, box: str) -> list[str]:
        """Names of the foreign units that fleetctl replaces on a box."""
        return [entry.unit for entry in self.superseded if entry.boxes is None or box in entry.boxes]
