"""Which models share a backend of HAProxy, and the servers that every layout gives it.

Models with a served name in common are one backend: a new build of a model is moved to as another layout, and clients
keep asking for the same name.
"""

from __future__ import annotations

import json

from fleetctl.engine.runtimes.command import served_names, task_of
from fleetctl.engine.runtimes.runtime import OPENAI_LIST
from fleetctl.errors import SpecError
from fleetctl.render.engine import concurrency, runtime_of
from fleetctl.render.names import server_name
from fleetctl.render.ports import engine_ports
from fleetctl.render.release import Backend, Server
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.fleet_model import Task

GATEWAY_MAXCONN = 4000
"""Requests that the proxy gives a gateway at once: as many as it takes connections itself."""


def backends(fleet: Fleet) -> tuple[Backend, ...]:
    """Backends in the order in which models stand in the file; models in no layout have none.

    Raises SpecError when a layout has two models that clients could not tell apart.
    """
    groups = _groups(fleet)
    _check(fleet, groups)
    return tuple(_backend(fleet, group) for group in groups)


def backend_of(fleet: Fleet, model: str) -> str:
    """Name of the backend through which a model is reached."""
    return next(group[0] for group in _groups(fleet) if model in group)


def _groups(fleet: Fleet) -> list[list[str]]:
    placed = {model for models in fleet.layouts.values() for model in models}
    groups: list[list[str]] = []
    for model in (name for name in fleet.models if name in placed):
        names = set(served_names(model, fleet.models[model]))
        joined = [g for g in groups if names & {n for m in g for n in served_names(m, fleet.models[m])}]
        merged = [m for group in joined for m in group] + [model]
        groups = [merged if g is joined[0] else g for g in groups if g not in joined[1:]] if joined else groups
        if not joined:
            groups.append(merged)
    return groups


def _check(fleet: Fleet, groups: list[list[str]]) -> None:
    for group in groups:
        asked = {_proof(fleet, model)[0]: model for model in group}
        if len(asked) > 1:
            raise SpecError(
                f"models {', '.join(asked.values())} share a served name and do not answer the same questions",
                hint="give each of them its own served_as:, or the same task: (of models that rank: the same runtime:)",
            )
    for layout, models in fleet.layouts.items():
        for group in groups:
            together = [model for model in models if model in group]
            if len(together) > 1:
                names = sorted({n for m in group for n in served_names(m, fleet.models[m])})
                raise SpecError(
                    f"layout {layout}: clients cannot tell {' and '.join(together)} apart, which are served as one of"
                    f" {', '.join(names)} (models {', '.join(group)} share names)",
                    hint="give each model of the layout its own served_as:",
                )


def _backend(fleet: Fleet, group: list[str]) -> Backend:
    names = dict.fromkeys(n for model in group for n in served_names(model, fleet.models[model]))
    servers = []
    for layout, models in fleet.layouts.items():
        ports = engine_ports(fleet, layout)
        for model in (m for m in models if m in group):
            boxes = models[model].boxes
            if fleet.pool is not None and models[model].pool is not None:
                servers += [_gateway(fleet, layout, box, fleet.pool.port) for box in fleet.gateways]
                continue
            for box in boxes if models[model].split is None else [next(iter(boxes))]:
                servers.append(
                    Server(
                        name=server_name(layout, box),
                        layout=layout,
                        box=box,
                        address=fleet.boxes[box].address,
                        port=ports[model],
                        maxconn=concurrency(fleet, layout, model, box),
                    )
                )
    path, question = _proof(fleet, group[0])
    return Backend(
        name=group[0],
        served_as=tuple(names),
        servers=tuple(servers),
        path=path,
        question=question,
        lists_models=all(runtime_of(fleet, model).models.path == OPENAI_LIST.path for model in group),
    )


def _gateway(fleet: Fleet, layout: str, box: str, port: int) -> Server:
    """A gateway, which holds no requests back: how many wait is its queue's to limit."""
    address = fleet.boxes[box].address
    name = server_name(layout, box)
    return Server(name=name, layout=layout, box=box, address=address, port=port, maxconn=GATEWAY_MAXCONN, gateway=True)


def _proof(fleet: Fleet, name: str) -> tuple[str, str]:
    """Path and JSON of the smallest question that proves an engine of a model; empty for a chat completion."""
    model, runtime = fleet.models[name], runtime_of(fleet, name)
    served, form = served_names(name, model)[0], runtime.reranking
    questions: dict[Task, tuple[str, dict[str, object]]] = {
        "generate": ("", {}),
        "embed": ("/v1/embeddings", {"model": served, "input": "Hello"}),
        "rerank": (form.path, {"model": served, "query": "Hello", form.documents: ["Hello"]}),
    }
    path, question = questions[task_of(runtime, name, model)]
    return path, json.dumps(question) if path else ""
