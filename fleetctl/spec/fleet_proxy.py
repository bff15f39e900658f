"""The proxy in fleet.yaml: where clients come in, and what becomes of their requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from fleetctl.spec.part import Count, Name, Part, Port, Retries, Tries
from fleetctl.spec.secret import SecretRef
from fleetctl.spec.units import Duration


class Tls(Part):
    """HTTPS at the proxy, with the operator's own certificate. Clients speak HTTP/2 or HTTP/1.1 over TLS 1.2 or 1.3."""

    certificate: str = Field(
        description="path, on every box of the proxy, of a PEM file with certificate, chain and private key; "
        "after a renewal: systemctl reload fleetctl-proxy"
    )


class Bridge(Part):
    """Another OpenAI-compatible endpoint, asked only while no engine of the fleet is up.

    Prompts then leave the fleet. Answers of it have the header ``fleetctl-bridge``.
    """

    url: str = Field(description="base URL as clients of it have it, such as https://api.example.com/v1")
    model: str | dict[Name, str] = Field(
        description="name of the model there; or a mapping of the fleet's models to such names, others are held"
    )
    api_key: SecretRef | None = Field(default=None, description="key that the endpoint asks for")
    after: Duration = Field(
        default=2.0, description="how long a request waits for an engine first; longer than a failed check lasts"
    )
    concurrency: Count = Field(default=12, description="requests it is given at once; the others are held")
    ca: str | None = Field(
        default=None,
        description="path on the proxy's box of the CA certificates that its certificate is checked against; "
        "default: those of the system (/etc/ssl/certs, package ca-certificates)",
    )


class Floating(Part):
    """An address that is on one of the proxy's boxes at a time, and moves to another when that one cannot serve."""

    address: str = Field(description="the address, one that no machine has; clients use it")
    router_id: Annotated[int, Field(ge=1, le=255, strict=True)] = Field(
        default=51, description="VRRP router id (virtual_router_id), used by nothing else between these boxes"
    )


def wrong_kind(one: bool, several: Sequence[Any] | None, *, floating: bool) -> str | None:
    """What is wrong with the boxes of a proxy: ``one`` (box:), ``several`` (boxes:), ``floating``; None if nothing."""
    if one == (several is not None):
        return "a proxy has either box: or boxes:"
    if several is not None and len(several) == 1:
        return "boxes: names two boxes or more; a single one is written box: NAME"
    if several is not None and not floating:
        return "several boxes need one address for clients; write floating: {address: …}, one that no machine has"
    if several is None and floating:
        return "a floating address is for a proxy on several boxes; write boxes: [a, b] in place of box:"
    return None


class Proxy(Part):
    """The one address that clients use."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={
            "oneOf": [
                {
                    "required": ["box"],
                    "properties": {"box": {"type": "string"}, "floating": {"type": "null"}},
                },
                {
                    "required": ["boxes", "floating"],
                    "properties": {"boxes": {"type": "array", "minItems": 2}, "floating": {"type": "object"}},
                },
            ]
        },
    )

    SHORTEST: ClassVar[tuple[str, ...]] = ("box",)

    box: Name | None = Field(default=None, description="box that runs the proxy")
    boxes: Annotated[tuple[Name, ...], Field(min_length=1)] | None = Field(
        default=None, description="instead of box: boxes that each run the proxy, with one floating address"
    )
    floating: Floating | None = Field(default=None, description="the address of a proxy that runs on several boxes")
    address: str | None = Field(
        default=None, description="address to listen on; default: the box's address, or the floating one"
    )
    port: Port = Field(default=8080, description="port to listen on")
    hold: Duration = Field(default=1200.0, description="how long a request waits while no engine is up, before a 503")
    keepalive: Duration = Field(
        default=10.0, description="time between two comment lines for streaming requests that wait for an engine"
    )
    drain: Duration = Field(
        default=120.0, description="how long running requests may take to finish before an engine stops"
    )
    stream_limit: Duration = Field(
        default=3600.0, description="longest silence of an engine before its request is given up"
    )
    silence_limit: Duration = Field(
        default=300.0,
        description="how long an engine with requests may show no sign of work before they are given to another one; "
        "longer than its longest step, and than its longest prompt where it does not read prompts in chunks",
    )
    check_interval: Duration = Field(default=0.5, description="time between two health checks of an engine")
    balance: Literal["leastconn", "prefix"] = Field(
        default="leastconn",
        description="leastconn: to the engine with the fewest requests; prefix: a conversation stays on the copy whose "
        "cache has it, if that one has room",
    )
    fall: Tries = Field(default=2, description="health checks that fail in a row before an engine is out")
    rise: Tries = Field(default=1, description="health checks that succeed in a row before it is back")
    retries: Retries = Field(
        default=3, description="how often a request that lost its engine, or reached none, is tried again"
    )
    timeout_connect: Duration = Field(
        default=0.5,
        description="how long an engine may take to accept a connection; also how long HAProxy waits (1s at most) "
        "before it tries again when one was refused",
    )
    timeout_queue: Duration | None = Field(
        default=None, description="how long a request waits while all engines are full, before a 503; default: hold"
    )
    timeout_http_keep_alive: Duration = Field(
        default=60.0, description="how long a client's connection may be idle between two requests"
    )
    tls: Tls | None = Field(default=None, description="HTTPS for clients; default: plain HTTP")
    api_keys: dict[Name, SecretRef] = Field(default={}, description="named keys that clients may use; none: no check")
    bridge: Bridge | None = Field(default=None, description="where requests go while no engine is up; default: nowhere")

    @model_validator(mode="after")
    def _one_kind(self) -> Proxy:
        wrong = wrong_kind(self.box is not None, self.boxes, floating=self.floating is not None)
        if wrong:
            raise ValueError(wrong)
        return self

    @property
    def on(self) -> tuple[str, ...]:
        """The boxes that run the proxy, in the order of the file."""
        return self.boxes if self.boxes is not None else (self.box or "",)

    @property
    def lead(self) -> str:
        """The first of them: it keeps the fleet's lock and journals."""
        return self.on[0]
