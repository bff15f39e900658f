"""A fleet with a pool beside the office's other layouts, and boxes that are in it."""

from __future__ import annotations

from typing import Any

from planned import layout, unit

from fleetctl.facts.types import BoxFacts, Observed, ServerFacts
from fleetctl.plan.difference import engine_name
from fleetctl.render.release import Release

PASSWORDS = {role: {"env": f"NATS_{role.upper()}"} for role in ("gateway", "worker", "operator")}
MINILM: dict[str, Any] = {
    "weights": "/models/minilm",
    "weights_size": "90MiB",
    "runtime": "encoder",
    "context": 256,
    "launch": {"program": "/usr/bin/python3"},
}
SMALL: dict[str, Any] = {
    "weights": "/models/small",
    "weights_size": "1GiB",
    "context": 4096,
    "launch": {"venv": "/opt/vllm"},
}
WORKER, GATEWAY, NATS = "fleetctl-worker.service", "fleetctl-gateway.service", "fleetctl-nats.service"
BATCH = "fleetctl-batch.service"


def pooled(name: str = "pool", **changes: Any) -> Release:
    """A layout of the office, which has a third one: two models in a pool of both boxes, queue and gateway on a."""
    added = {
        "models__minilm": MINILM,
        "models__small": SMALL,
        "layouts__pool": {
            "minilm": {"pool": ["a", "b"], "pin": True, "concurrency": 8},
            "small": {"pool": ["a", "b"], "memory": "12GiB"},
        },
        "pool": {"nats": {"boxes": ["a"], "passwords": PASSWORDS}},
    }
    return layout(name, **{**added, **changes})


def in_pool(box: BoxFacts, release: Release, loaded: tuple[str, ...] = ("minilm",)) -> BoxFacts:
    """The box with the programs of its pool at work, and these models loaded."""
    assert release.pool is not None
    units, ours = dict(box.units), set(box.ours)
    for service in release.pool.on(box.hostname):
        units[service.unit] = unit(fragment=f"/etc/systemd/system/{service.unit}")
    for engine, rank in release.lodgers_on(box.hostname):
        fragment = f"/etc/systemd/system/{rank.unit}"
        name = engine_name(engine, rank, release.layout)
        there = engine.model in loaded
        units[rank.unit] = (
            unit(enabled="disabled", engine=name, fragment=fragment)
            if there
            else unit("inactive", "disabled", fragment=fragment)
        )
    return box.model_copy(update={"units": units, "ours": tuple(sorted(ours | set(units)))})


def all_in_pool(observed: Observed, release: Release, loaded: tuple[str, ...] = ("minilm",)) -> Observed:
    """Both boxes so."""
    return {name: in_pool(box, release, loaded) for name, box in observed.items()}


def server(status: str = "UP") -> ServerFacts:
    """A server of the proxy."""
    return ServerFacts(status=status, weight=1)
