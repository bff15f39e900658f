"""A Release: everything a layout puts on the boxes, as one value.

It is made by :func:`fleetctl.render.layout.render_layout` from fleet.yaml, kept on every box in its generation, and
read back from there for a rollback. Secrets are in it by reference only.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fleetctl.render.names import UNIX
from fleetctl.render.ports import rendezvous_port
from fleetctl.spec.fleet_gates import Gates
from fleetctl.spec.fleet_model import RuntimeName, Task
from fleetctl.spec.secret import Secret


class Value(BaseModel):
    """Base of the values that travel in releases and plans."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def sha256(self) -> str:
        """SHA-256 over the canonical JSON of the value, in hex."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


class File(Value):
    """One file on a box. ``@secret:NAME@`` in the content stands for the secret of that name."""

    path: str
    content: str
    mode: int = 0o644
    secrets: dict[str, Secret] = {}
    quoting: Literal["none", "environment", "word", "string", "url"] = Field(
        "none",
        description="how a secret gets into the content: as it is, as a value of EnvironmentFile=, as one word, as a "
        "string of JSON with its quotes, or as a part of a URL",
    )


class Budget(Value):
    """Memory of one box as a layout divides it. All sizes are bytes."""

    box: str
    memory: int
    reserve: int
    share: float = Field(description="gpu_memory_utilization of all engines on the box together")
    weights: int | None = Field(description="weights this box holds; None: not known")
    lines: tuple[str, ...] = Field(description="the sum, line by line, as plan shows it")
    drop_page_cache: bool = Field(False, description="it may be dropped before an engine starts")


class ContainerRun(Value):
    """How a container is run: the words of the command, and folders of the box that have to be there before."""

    words: tuple[str, ...]
    folders: tuple[str, ...] = ()


class Rank(Value):
    """One process of an engine: the unit that runs it and the box it runs on."""

    box: str
    unit: str
    rank: int = 0
    share: float = Field(1.0, description="gpu_memory_utilization: its part of the box's memory")
    digest: str = Field(description="changes exactly when the running process has to be replaced")
    container: ContainerRun | None = Field(None, description="None: it runs in no container")


class Engine(Value):
    """One engine of a layout: a copy (one rank) or a split (several; the first is the head)."""

    id: str = Field(description="LAYOUT/MODEL for a split, LAYOUT/MODEL@BOX for a copy")
    model: str
    kind: Literal["copy", "split"]
    ranks: tuple[Rank, ...]
    address: str = Field(description="where it listens; unix:PATH: on this Unix socket")
    port: int = Field(description="0: it has none, but a Unix socket")
    master_port: int | None = None
    served_as: tuple[str, ...]
    context: int
    concurrency: int
    load_limit: float
    stop_limit: float
    weights: str
    revision: str | None = Field(None, description="revision of a hub id")
    hub: dict[str, str] = Field({}, description="its environment as far as the hub is concerned")
    max_lora_rank: int | None = Field(None, description="highest rank of adapters that it takes; None: it takes none")
    image: tuple[str, str] | None = Field(None, description="container engine and image reference")
    image_id: str | None = Field(None, description="ID that the image has to have, sha256:…; None: any")
    binary: str | None = Field(description="path of the program that has to exist on the box; None for a container")
    runtime: RuntimeName = Field("vllm", description="kind of engine")
    task: Task = Field("generate", description="what it does, and is asked to prove")
    backend: str = Field(description="HAProxy backend")
    server: str = Field(description="HAProxy server in that backend")

    @property
    def head(self) -> Rank:
        """The rank that listens for requests."""
        return self.ranks[0]

    @property
    def image_reference(self) -> str:
        """What its container is started from: the ID of the image where it is pinned by that, else its name."""
        assert self.image is not None
        return self.image_id or self.image[1]

    @property
    def listens(self) -> dict[int, str]:
        """Ports that the engine listens on, all on the box of its head, and what each is for."""
        found = {self.port: f"engine {self.id}"} if self.port else {}
        if self.master_port is not None:
            found[self.master_port] = f"the torch rendezvous of {self.id}"
            found[rendezvous_port(self.master_port)] = f"the meeting of the ranks of {self.id}"
        return found

    @property
    def url(self) -> str:
        """Base URL of the engine itself, never of the proxy; with a Unix socket the host says nothing."""
        if self.address.startswith(UNIX):
            return "http://localhost"
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}"


class Server(Value):
    """One server line of HAProxy."""

    name: str
    layout: str
    box: str
    address: str
    port: int
    maxconn: int
    gateway: bool = Field(False, description="it is a gateway of a pool, and no engine")


class Backend(Value):
    """One model behind the proxy, with the servers of every layout that can serve it."""

    name: str
    served_as: tuple[str, ...]
    servers: tuple[Server, ...]
    path: str = Field("", description="where a question proves an engine; empty: a chat completion does")
    question: str = Field("", description="the JSON of that question")
    lists_models: bool = Field(True, description="its engines answer /v1/models")


class Bridge(Value):
    """Another OpenAI-compatible endpoint, for requests that find no engine. Times are seconds."""

    tls: bool
    host: str
    port: int
    path: str = Field(description="stands before chat/completions there; begins and ends with a slash")
    name: str = Field(description="host, and port where it is not the usual one: how people and answers name it")
    models: dict[str, str] = Field(description="backend → model there; requests of other backends are held")
    after: float
    concurrency: int
    ca: str | None = Field(None, description="path on the box of CA certificates; None: those of the system")
    api_key: Secret | None = None


class Floating(Value):
    """The address of a proxy on several boxes, as VRRP has to know it."""

    address: str
    router_id: int


class ProxyConfig(Value):
    """What the proxy has to do. Which servers are enabled at start-up is decided by ``layout``."""

    boxes: tuple[str, ...] = Field(description="boxes that run it; the first is the lead")
    unit: str = "fleetctl-proxy.service"
    address: str = Field(description="where clients reach it")
    port: int
    own: dict[str, str] = Field({}, description="box → its own address, where the proxy there listens too")
    floating: Floating | None = Field(None, description="how the address gets to one of several boxes")
    vrrp_unit: str = "fleetctl-vrrp.service"
    former: tuple[str, ...] = Field((), description="address:port of the proxy before a move, still served during it")
    admin_socket: str = "/run/fleetctl-proxy/admin.sock"
    layout: str | None = Field(description="servers of this layout are enabled when HAProxy starts; None: no server")
    hold: float
    keepalive: float = Field(10.0, description="seconds between two comment lines for streaming requests that are held")
    drain: float
    stream_limit: float
    silence_limit: float = Field(300.0, description="seconds without a sign of work after which an engine is hung")
    check_interval: float
    balance: Literal["leastconn", "prefix"] = "leastconn"
    fall: int = Field(2, description="checks that fail in a row before a server is out; 1 to 10")
    rise: int = Field(1, description="checks that succeed in a row before it is back; 1 to 10")
    retries: int = Field(3, description="further tries of a request; 0 to 10")
    timeout_connect: float = Field(2.0, description="seconds that a server may take to accept a connection")
    timeout_queue: float | None = Field(None, description="seconds in the queue of full servers; None: hold")
    timeout_http_keep_alive: float = Field(60.0, description="seconds that a client's connection may be idle")
    backends: tuple[Backend, ...]
    adapters: dict[str, str] = Field({}, description="model that takes LoRA adapters → its backend")
    api_keys: dict[str, Secret] = {}
    certificate: str | None = Field(None, description="path on the box of the PEM file for HTTPS; None: plain HTTP")
    bridge: Bridge | None = None
    guard_port: int | None = Field(None, description="port at which the guards of the boxes are asked; None: no guard")
    template: str = Field("", description="digest of the templates that it is rendered with")

    @model_validator(mode="before")
    @classmethod
    def _one_box(cls, value: Any) -> Any:
        """Releases that an earlier version kept have the one box that there was."""
        if isinstance(value, dict) and "box" in value:
            return {**{key: of for key, of in value.items() if key != "box"}, "boxes": (value["box"],)}
        return value

    @property
    def lead(self) -> str:
        """The first of its boxes."""
        return self.boxes[0]

    @property
    def listens(self) -> frozenset[str]:
        """Every address that clients may use."""
        return frozenset({self.address, *self.own.values()})

    def fingerprint(self) -> str:
        """Identity of the configuration but for which servers are enabled; HAProxy carries it as `description`."""
        return self.model_copy(update={"layout": None}).sha256()[:16]


class Guarded(Value):
    """Ports of one box that the firewall closes: engines', and those at which the ranks of a split meet."""

    engines: tuple[int, ...]
    ranks: tuple[int, ...] = ()
    nats: bool = Field(False, description="NATS is among ``ranks``: only the fleet's own boxes have business there")


class Firewall(Value):
    """Who reaches which ports, in every layout of fleet.yaml alike. Addresses and networks are in normal form."""

    guarded: dict[str, Guarded] = Field(description="box → its ports")
    fleet: tuple[str, ...] = Field(description="addresses of the boxes, which reach all of them")
    allow: tuple[str, ...] = Field((), description="networks that reach the engines, and not where ranks meet")


class Bundle(Value):
    """Programs that a box needs, in one folder by the digest of what went into it: sources of fleetctl, libraries."""

    digest: str
    sources: bool = Field(description="the sources of a pool's programs are in it")
    requirements: tuple[str, ...] = Field((), description="libraries, as pip is asked for them")


class Service(Value):
    """A program of a pool on one box."""

    kind: Literal["nats", "worker", "gateway", "batch"]
    box: str
    unit: str
    address: str = Field(description="where it listens")
    port: int = Field(description="0: nowhere")
    paths: tuple[str, ...] = Field(description="files with which it has to start again")
    program: str = Field(description="path of the program that has to be on the box")


class Lodger(Value):
    """An engine of a pool: a worker starts and stops it."""

    engine: Engine
    pinned: bool
    memory: int = Field(description="bytes that it takes once loaded")


class Pool(Value):
    """What serves the models of a pool."""

    services: tuple[Service, ...]
    lodgers: tuple[Lodger, ...]
    store: int = Field(0, description="bytes that NATS may keep on each of its boxes; 0: a release that does not say")

    def on(self, box: str) -> list[Service]:
        """Programs of the pool on one box."""
        return [service for service in self.services if service.box == box]


def _with_shares(engine: Any, files: Any) -> Any:
    """An engine as JSON whose ranks all have their share."""
    if not isinstance(engine, dict) or all("share" in rank for rank in engine["ranks"]):
        return engine
    ranks = []
    for rank in engine["ranks"]:
        unit = "".join(file["content"] for file in files[rank["box"]] if file["path"].endswith(f"/{rank['unit']}"))
        found = re.findall(r"--gpu-memory-utilization ([0-9.]+)", unit)
        ranks.append({"share": float(found[-1]), **rank} if found else rank)
    return {**engine, "ranks": ranks}


class Release(Value):
    """Everything that one layout puts on the boxes. ``layout`` is None for the state before fleetctl."""

    fleet: str
    layout: str | None
    engines: tuple[Engine, ...] = ()
    proxy: ProxyConfig | None = None
    files: dict[str, tuple[File, ...]] = Field({}, description="box → files that engines and proxy need")
    superseded: dict[str, tuple[str, ...]] = Field({}, description="box → foreign units that must stay away")
    budgets: tuple[Budget, ...] = ()
    gates: Gates = Gates()
    tasks: dict[str, str] = Field({}, description="file of gates.evaluations → its text")
    firewall: Firewall | None = Field(None, description="None: fleetctl has no firewall")
    pool: Pool | None = Field(None, description="None: no model is in a pool")
    programs: dict[str, tuple[Bundle, ...]] = Field({}, description="box → programs that its units start")
    spec: str = Field("", description="the text of fleet.yaml that it was made from")

    @model_validator(mode="before")
    @classmethod
    def _shares(cls, value: Any) -> Any:
        """Releases that an earlier version kept say only in their units what part of the memory each rank has."""
        try:
            engines = [_with_shares(engine, value["files"]) for engine in value["engines"]]
        except (KeyError, TypeError, AttributeError, ValueError):
            return value  # whatever is wrong with it is said of the fields themselves
        return {**value, "engines": engines}

    def boxes(self) -> list[str]:
        """Every box that has a part in the release, in order of name."""
        names = {rank.box for engine in self.engines for rank in engine.ranks} | set(self.files)
        return sorted(names | set(self.superseded) | set(self.proxy.boxes if self.proxy else ()))

    def ranks_on(self, box: str) -> list[tuple[Engine, Rank]]:
        """Engine processes on one box."""
        return [(engine, rank) for engine in self.engines for rank in engine.ranks if rank.box == box]

    def lodgers_on(self, box: str) -> list[tuple[Engine, Rank]]:
        """Engines that a worker on a box can load."""
        lodgers = self.pool.lodgers if self.pool else ()
        return [(one.engine, one.engine.head) for one in lodgers if one.engine.head.box == box]

    @property
    def all_engines(self) -> tuple[Engine, ...]:
        """Those that are always there, and those of the pool."""
        return (*self.engines, *(one.engine for one in (self.pool.lodgers if self.pool else ())))

    def any_engine(self, name: str) -> Engine:
        """An engine by its id, of the pool or not."""
        return next(engine for engine in self.all_engines if engine.id == name)

    def gateways(self) -> list[tuple[str, Server]]:
        """HAProxy's servers of this layout that are gateways, each with its backend."""
        return [
            (backend.name, server)
            for backend in (self.proxy.backends if self.proxy else ())
            for server in backend.servers
            if server.gateway and server.layout == self.layout
        ]
