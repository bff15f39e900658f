"""A Release: everything a layout puts on the boxes, as one value.

It is made by :func:`fleetctl.render.layout.render_layout` from fleet.yaml, kept on every box in its generation, and
read back from there for a rollback. Secrets are in it by reference only.
"""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from fleetctl.render.ports import rendezvous_port
from fleetctl.spec.fleet import Gates
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
    quoting: Literal["none", "environment", "word"] = Field(
        "none",
        description="how a secret gets into the content: as it is, as a value of EnvironmentFile=, or as one word",
    )


class Budget(Value):
    """Memory of one box as a layout divides it. All sizes are bytes."""

    box: str
    memory: int
    reserve: int
    share: float = Field(description="gpu_memory_utilization of all engines on the box together")
    weights: int | None = Field(description="weights this box holds; None: not known")
    lines: tuple[str, ...] = Field(description="the sum, line by line, as plan shows it")


class Rank(Value):
    """One process of an engine: the unit that runs it and the box it runs on."""

    box: str
    unit: str
    rank: int = 0
    share: float = Field(1.0, description="gpu_memory_utilization: its part of the box's memory")
    digest: str = Field(description="changes exactly when the running process has to be replaced")


class Engine(Value):
    """One engine of a layout: a copy (one rank) or a split (several; the first is the head)."""

    id: str = Field(description="LAYOUT/MODEL for a split, LAYOUT/MODEL@BOX for a copy")
    model: str
    kind: Literal["copy", "split"]
    ranks: tuple[Rank, ...]
    address: str
    port: int
    master_port: int | None = None
    served_as: tuple[str, ...]
    context: int
    concurrency: int
    load_limit: float
    stop_limit: float
    weights: str
    revision: str | None = Field(None, description="revision of a hub id")
    image: tuple[str, str] | None = Field(None, description="container engine and image reference")
    binary: str | None = Field(description="path of the program that has to exist on the box; None for a container")
    backend: str = Field(description="HAProxy backend")
    server: str = Field(description="HAProxy server in that backend")

    @property
    def head(self) -> Rank:
        """The rank that listens for requests."""
        return self.ranks[0]

    @property
    def listens(self) -> dict[int, str]:
        """Ports that the engine listens on, all on the box of its head, and what each is for."""
        found = {self.port: f"engine {self.id}"}
        if self.master_port is not None:
            found[self.master_port] = f"the torch rendezvous of {self.id}"
            found[rendezvous_port(self.master_port)] = f"the meeting of the ranks of {self.id}"
        return found

    @property
    def url(self) -> str:
        """Base URL of the engine itself, never of the proxy."""
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


class Backend(Value):
    """One model behind the proxy, with the servers of every layout that can serve it."""

    name: str
    served_as: tuple[str, ...]
    servers: tuple[Server, ...]


class ProxyConfig(Value):
    """What the proxy has to do. Which servers are enabled at start-up is decided by ``layout``."""

    box: str
    unit: str = "fleetctl-proxy.service"
    address: str
    port: int
    admin_socket: str = "/run/fleetctl-proxy/admin.sock"
    layout: str | None = Field(description="servers of this layout are enabled when HAProxy starts; None: no server")
    hold: float
    keepalive: float = Field(10.0, description="seconds between two comment lines for streaming requests that are held")
    drain: float
    stream_limit: float
    check_interval: float
    backends: tuple[Backend, ...]
    api_keys: dict[str, Secret] = {}
    certificate: str | None = Field(None, description="path on the box of the PEM file for HTTPS; None: plain HTTP")
    guard_port: int | None = Field(None, description="port at which the guards of the boxes are asked; None: no guard")
    template: str = Field("", description="digest of the templates that it is rendered with")

    def fingerprint(self) -> str:
        """Identity of the configuration but for which servers are enabled; HAProxy carries it as `description`."""
        return self.model_copy(update={"layout": None}).sha256()[:16]


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
    spec: str = Field("", description="the text of fleet.yaml that it was made from")

    def boxes(self) -> list[str]:
        """Every box that has a part in the release, in order of name."""
        names = {rank.box for engine in self.engines for rank in engine.ranks} | set(self.files)
        return sorted(names | set(self.superseded) | ({self.proxy.box} if self.proxy else set()))

    def ranks_on(self, box: str) -> list[tuple[Engine, Rank]]:
        """Engine processes on one box."""
        return [(engine, rank) for engine in self.engines for rank in engine.ranks if rank.box == box]
