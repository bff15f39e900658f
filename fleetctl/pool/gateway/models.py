"""Which names clients may use, and for what."""

from __future__ import annotations

import json
from collections.abc import Iterable

from fleetctl.pool import wire
from fleetctl.pool.gateway.refusals import Refusal, unknown_model

PATHS = {
    "/v1/embeddings": ("embed",),
    "/v1/rerank": ("rerank", "embed"),
    "/v1/completions": ("generate",),
    "/v1/chat/completions": ("generate",),
}
"""Path of the API → tasks of the models that can answer it. Encoders rank by the likeness of their vectors."""
STREAMED = frozenset({"/v1/completions", "/v1/chat/completions"})
"""Paths at which `stream` counts."""


class Models:
    """The models of a pool under all of their names."""

    def __init__(self, models: Iterable[wire.PoolModel]) -> None:
        self._named = {name: model for model in models for name in (model.key, *model.served_as)}
        listed = {name: model for model in models for name in model.served_as or (model.key,)}
        self._pages = {name: {"id": name, "object": "model", "created": 0, "owned_by": "fleetctl"} for name in listed}
        data = [self._pages[name] for name in sorted(listed)]
        self.page = json.dumps({"object": "list", "data": data}).encode()
        """What GET /v1/models answers."""

    def page_of(self, name: str) -> bytes:
        """What GET /v1/models/NAME answers. Raises Refusal."""
        if name not in self._pages:
            raise unknown_model(name)
        return json.dumps(self._pages[name]).encode()

    def find(self, name: str, path: str) -> wire.PoolModel:
        """The model of a name, for a path. Raises Refusal: it does not exist, or does something else."""
        model = self._named.get(name)
        if model is None:
            raise unknown_model(name)
        if model.task not in PATHS[path]:
            able = ", ".join(other for other, tasks in PATHS.items() if model.task in tasks)
            raise Refusal(400, f"{name} is a model for {model.task}: it answers {able}", param="model")
        return model
