"""fleet.yaml as values. Field descriptions are the reference that ``fleetctl schema`` prints."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fleetctl.spec.fleet_guard import Guard
from fleetctl.spec.fleet_proxy import Proxy
from fleetctl.spec.part import Count, Name, Part, Port, Rule, Share
from fleetctl.spec.secret import SecretRef
from fleetctl.spec.units import Duration, Size


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


class Venv(Part):
    """Launch from a Python environment on the box."""

    venv: str = Field(description="path on the box; the engine is started as VENV/bin/vllm")


class Container(Part):
    """Launch from a container image with host networking."""

    image: str = Field(description="image reference, best pinned by digest: name@sha256:…")
    engine: Literal["docker", "podman"] = Field(default="docker", description="program that runs the container")
    options: tuple[str, ...] = Field(default=(), description="further options of `run`, for example --gpus=all")


class Speculative(BaseModel):
    """Speculative decoding, handed to vLLM as --speculative-config; further keys pass through."""

    model_config = ConfigDict(extra="allow", frozen=True)

    method: str = Field(description="method, as vLLM names it: mtp, eagle3, ngram, …")
    num_speculative_tokens: Count = Field(description="tokens drafted at a time")


class Measured(Part):
    """What an engine of a model logged of its memory on a box, of one rank; `fleetctl capacity calibrate` writes it."""

    weights: Size = Field(description="what loading the model took")
    overhead: Size = Field(description="what it took beyond weights and cache")
    peak: Size | None = Field(default=None, description="the peak of activations in that, where the log says")
    startup: Size | None = Field(
        default=None,
        description="the most of the box's memory that it took at one time while it started with a small cache",
    )
    ranks: Count = Field(default=1, description="boxes that the engine was divided over")
    batched_tokens: Count = Field(default=8192, description="--max-num-batched-tokens that it ran with")
    at: str = Field(description="the day")


class Model(Part):
    """A model the fleet can serve."""

    weights: str = Field(description="path of a folder on the boxes, or a hub id such as org/name")
    revision: str | None = Field(default=None, description="revision of a hub id")
    weights_size: Size | None = Field(
        default=None, description="bytes in memory; default: the size of the weights folder"
    )
    served_as: tuple[str, ...] = Field(default=(), description="names clients use; default: the model's key")
    context: Count = Field(description="longest request in tokens (--max-model-len)")
    kv_cache_dtype: str | None = Field(default=None, description="--kv-cache-dtype, for example fp8")
    speculative: Speculative | None = Field(default=None, description="speculative decoding (--speculative-config)")
    runtime: Literal["vllm"] = Field(default="vllm", description="kind of engine")
    launch: Venv | Container = Field(description="what the engine is started from: {venv: PATH} or {image: NAME}")
    arguments: tuple[str, ...] = Field(default=(), description="further arguments of the engine, one word each")
    environment: dict[str, str | SecretRef] = Field(
        default={}, description="environment of the engine; values may be secrets"
    )
    measured: dict[Name, Measured] = Field(
        default={}, description="box → what was measured there; plans use it in place of what they would compute"
    )
    load_limit: Duration = Field(default=900.0, description="longest time from start to ready")
    stop_limit: Duration = Field(default=60.0, description="longest time from SIGTERM to the end")


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
    """Where a model runs in a layout: ``copies``, one engine on each box, or ``split``, one over all."""

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
            ]
        },
    )

    copies: Boxes | None = Field(default=None, description="boxes that each run a full copy")
    split: Boxes | None = Field(default=None, description="boxes that run one engine together; the first is the head")
    parallel: Literal["tensor", "pipeline"] = Field(default="tensor", description="how a split engine is divided")
    concurrency: Count = Field(
        default=12, description="requests one engine takes at once; the others wait in the proxy"
    )
    port: Port | None = Field(default=None, description="port of the engine; default: 8000 and up")
    master_port: Port = Field(default=29500, description="rendezvous port of a split engine on its head")
    arguments: tuple[str, ...] = Field(default=(), description="further arguments of the engine in this layout only")
    environment: dict[str, str] = Field(default={}, description="environment of the engine in this layout only")

    @model_validator(mode="after")
    def _one_kind(self) -> Placement:
        if (self.copies is None) == (self.split is None):
            raise ValueError("a placement has either copies: or split:")
        if self.split is not None and len(self.split) < 2:
            raise ValueError("a split needs at least two boxes; one box runs a copy")
        return self

    @property
    def boxes(self) -> dict[str, PerBox]:
        """The boxes of the placement in the order of the file."""
        return self.copies if self.copies is not None else (self.split or {})


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


class CompletionGate(Part):
    """A real completion, asked of the engine directly, streaming and not."""

    prompt: str = Field(default="Answer with one word: what is the capital of France?", description="what is asked")
    max_tokens: Count = Field(default=4, description="longest answer in tokens; thinking aloud counts as an answer")
    within: Duration = Field(default=120.0, description="longest time for the whole answer")


class ToolsGate(Part):
    """The tool-use test of `fleetctl eval tools`, asked of the engine directly: 60 scenarios, a score of 0 to 100."""

    at_least: Annotated[float, Field(ge=0, le=100)] = Field(default=0.0, description="lowest score that passes")
    no_worse_than: Literal["current"] | None = Field(
        default=None,
        description="`current`: the score must not be lower than that of the build of this model that serves now, as "
        "this gate or `fleetctl eval tools` noted it",
    )
    tolerance: Annotated[float, Field(ge=0, le=100)] = Field(
        default=3.0, description="points that it may be lower nevertheless"
    )
    concurrency: Count | None = Field(
        default=None, description="scenarios asked at a time; default: the model's concurrency on that box"
    )
    max_tokens: Count = Field(default=2048, description="longest answer to one scenario, thinking aloud included")
    within: Duration = Field(default=900.0, description="longest time for the whole test")


class LongContextGate(Part):
    """One long prompt, asked of the engine directly, with a phrase in its middle that has to be found."""

    tokens: Count | None = Field(
        default=None, description="length of the prompt; default: three quarters of the model's context"
    )
    find: bool = Field(default=True, description="the phrase has to be in the answer; without, any text will do")
    max_tokens: Count = Field(default=512, description="longest answer, thinking aloud included")
    within: Duration = Field(default=900.0, description="longest time for the answer")


class SameAnswersGate(Part):
    """Prompts asked of the engine that serves before a move, and of the new one, at temperature 0."""

    prompts: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="what is asked; default: ten short prompts"
    )
    at_least: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.8, description="part of the answers that have to be the same, 0 to 1"
    )
    max_tokens: Count = Field(default=32, description="longest answer; the longer, the sooner two builds differ")
    within: Duration = Field(default=120.0, description="longest time for one answer")


class Gates(Part):
    """What an engine must pass before it gets traffic. Readiness, model and context are always checked."""

    completion: CompletionGate = Field(default=CompletionGate(), description="a real completion")
    long_context: LongContextGate | None = Field(
        default=None, description="a long prompt; without this key there is none"
    )
    same_answers: SameAnswersGate | None = Field(
        default=None, description="answers compared with those of the build that serves; without this key there is none"
    )
    tools: ToolsGate | None = Field(default=None, description="a tool-use test; without this key there is none")


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
    layouts: dict[Name, dict[Name, Placement]] = Field(min_length=1, description="layout → model → placement")
    proxy: Proxy = Field(description="the one address that clients use")
    firewall: Firewall | None = Field(
        default=None, description="engines' ports closed to all but the fleet (nftables); default: no firewall"
    )
    superseded: tuple[SupersededUnit, ...] = Field(
        default=(),
        description="units that must not run beside fleetctl's; a name alone is short for {unit: NAME}",
    )
    gates: Gates = Field(default=Gates(), description="what an engine must pass before it gets traffic")
    guard: Guard | None = Field(default=None, description="a guard on every box that has an engine; default: none")

    @property
    def proxy_address(self) -> str:
        """Where clients reach the proxy."""
        floating = self.proxy.floating
        return floating.address if floating else self.proxy.address or self.boxes[self.proxy.lead].address

    def superseded_on(self, box: str) -> list[str]:
        """Names of the foreign units that fleetctl replaces on a box."""
        return [entry.unit for entry in self.superseded if entry.boxes is None or box in entry.boxes]
