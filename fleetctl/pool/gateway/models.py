"""Which names clients may use, and for what. LoRA adapters are names of their own, which come and go."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

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
        self._keys = {model.key: model for model in models}
        self._own = {name: model for model in models for name in (model.key, *model.served_as)}
        self._listed = {name: _page(name) for model in models for name in model.served_as or (model.key,)}
        self.page = b""
        """What GET /v1/models answers."""
        self.know({})

    def know(self, adapters: Mapping[str, str]) -> None:
        """These are the adapters from now on: name → key of its model. Those of models elsewhere do not count."""
        mine = {name: self._keys[key] for name, key in adapters.items() if key in self._keys and name not in self._own}
        named = {name: _page(name, (model.served_as or (model.key,))[0]) for name, model in mine.items()}
        self._named, self._pages = {**self._own, **mine}, {**self._listed, **named}
        data = [*(self._listed[name] for name in sorted(self._listed)), *(named[name] for name in sorted(named))]
        self.page = json.dumps({"object": "list", "data": data}).encode()

    def is_adapter(self, name: str) -> bool:
        """Whether it is the name of an adapter."""
        return name in self._named and name not in self._own

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


def _page(name: str, parent: str = "") -> dict[str, object]:
    page = {"id": name, "object": "model", "created": 0, "owned_by": "fleetctl"}
    return {**page, "parent": parent} if parent else page
