"""The pool in fleet.yaml: where its queue and its gateways are, and how much may wait."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fleetctl.spec.part import Count, Name, Part, Port
from fleetctl.spec.secret import SecretRef
from fleetctl.spec.units import Duration, Size


class Passwords(Part):
    """Passwords of NATS, one for each role; who has one may do what that role needs and no more."""

    gateway: SecretRef = Field(description="of the gateways: they put requests into the queue and hear the answers")
    worker: SecretRef = Field(description="of the workers: they take requests from the queue and answer them")
    operator: SecretRef = Field(description="of fleetctl itself: batch jobs, and the state of the queue")
    cluster: SecretRef | None = Field(
        default=None, description="between the servers of a cluster of three; needed there, and of no use elsewhere"
    )


class NatsTls(Part):
    """Encrypted connections to NATS, with the operator's own certificate; files on every box that runs NATS."""

    certificate: str = Field(
        description="path of a PEM file with certificate and chain, for the addresses of the boxes"
    )
    key: str = Field(description="path of its private key")
    ca: str | None = Field(
        default=None,
        description="path, on every box of the pool, of the CA certificates that it is checked against; default: those "
        "of the system",
    )


class Nats(Part):
    """NATS with JetStream, which has the queue: one server, or three that each keep all of it."""

    boxes: Annotated[tuple[Name, ...], Field(min_length=1)] = Field(
        description="boxes that run it: one, or three for a queue that outlives the loss of one of them"
    )
    port: Port = Field(default=4222, description="port for gateways and workers")
    cluster_port: Port = Field(default=6222, description="port at which the servers of a cluster meet")
    store: Size = Field(
        default=10 * 2**30,
        description="disk that the queue may take on each of these boxes, bodies and results included",
    )
    passwords: Passwords = Field(description="passwords of its users, by reference")
    tls: NatsTls | None = Field(default=None, description="encrypted connections; default: plain ones")
    program: str = Field(default="/usr/sbin/nats-server", description="path of nats-server on these boxes")


class Bodies(Part):
    """A bucket that speaks S3, where bodies of requests lie that are too long for the queue."""

    url: str = Field(
        description="bucket and prefix, such as s3://BUCKET/PREFIX; nothing else should be below the prefix"
    )
    endpoint: str | None = Field(
        default=None, description="URL of the server, such as https://minio.lan:9000; default: that of AWS"
    )
    region: str = Field(default="us-east-1", description="region of the bucket")
    access_key: SecretRef = Field(description="access key, by reference; it has to read, write, remove and list")
    secret_key: SecretRef = Field(description="its secret key, by reference")

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        return self.url.removeprefix("s3://").partition("/")[0]

    @property
    def prefix(self) -> str:
        """What names in it begin with, without slashes at its ends."""
        return self.url.removeprefix("s3://").partition("/")[2].strip("/")


class Pool(Part):
    """The one queue in which requests for the models of a pool wait, and what is around it."""

    nats: Nats = Field(description="the queue")
    gateways: Annotated[tuple[Name, ...], Field(min_length=1)] | None = Field(
        default=None, description="boxes that run a gateway, to which the proxy sends; default: the proxy's boxes"
    )
    port: Port = Field(default=8090, description="port of the gateways; that of the workers is the next one")
    limit: Count = Field(
        default=1000, description="requests of a model that wait at most; further ones get 429 and a time to try again"
    )
    deadline: Duration = Field(
        default=120.0, description="how long a request may take, where its client asks for no other time, before a 504"
    )
    most_body: Size = Field(default=64 * 2**20, description="longest body of a request")
    bodies: Bodies | None = Field(
        default=None, description="S3-compatible bucket for long bodies of requests; default: the store of NATS"
    )

    @property
    def worker_port(self) -> int:
        """Port of the workers."""
        return self.port + 1
