"""infinity (PyTorch encoders): ``infinity_emb v2``. Pure.

Source: infinity_emb 0.0.77, ``cli.py`` (flags), ``infinity_server.py`` (answers; its metrics are those of
prometheus-fastapi-instrumentator, which count requests by path).
"""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.engine.runtimes.faults import no_cache, one_name
from fleetctl.engine.runtimes.metrics import counter
from fleetctl.engine.runtimes.runtime import Ask, Fault, Runtime

_METRICS = "prometheus-fastapi-instrumentator, by the path that was asked for"


def _begin(ask: Ask) -> list[str]:
    return ["v2"]


def _flags(ask: Ask) -> list[str]:
    ours = ["--model-id", ask.model.weights, "--served-model-name", ask.served_as[0]]
    # Without a prefix its paths are /embeddings and /models.
    ours += ["--host", ask.host, "--port", str(ask.port), "--url-prefix", "/v1"]
    if ask.model.revision is not None:
        ours += ["--revision", ask.model.revision]
    return ours


def _faults(ask: Ask) -> Iterable[Fault]:
    yield from one_name(ask, "infinity")
    yield from no_cache(ask, "infinity")


INFINITY = Runtime(
    name="infinity",
    title="infinity",
    program=("infinity_emb",),
    packages=("infinity_emb",),
    tasks=("embed", "rerank"),
    begin=_begin,
    flags=_flags,
    faults=_faults,
    environment={"DO_NOT_TRACK": "1"},  # it would tell its makers of every start
    # The server of several models takes these flags several times. Here it has one.
    reserved={
        "--model-id": "set weights: of the model",
        "--port": "set port: of the placement",
        "--served-model-name": "set served_as: of the model",
        "--url-prefix": "the proxy and the gates ask for /v1: leave it out",
        "--api-key": "a secret shows in a command line: set INFINITY_API_KEY in environment: by reference",
        "--preload-only": "the engine would end at once: leave it out",
    },
    metrics=(counter("requests", "http_requests", source=_METRICS, handlers=("/embeddings", "/rerank", "/classify")),),
    help=("v2", "--help"),
)
