"""text-embeddings-inference (Candle): ``text-embeddings-router``. Pure.

Source: text-embeddings-inference 1.9.3, ``router/src/main.rs`` (flags), ``router/src/http/server.rs`` (answers) and
``core/src`` (metrics).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetctl.engine.runtimes.faults import no_cache, one_name
from fleetctl.engine.runtimes.metrics import counter, gauge
from fleetctl.engine.runtimes.runtime import Ask, Fault, ModelList, Reranking, Runtime, listed_ranks

_METRICS = "text-embeddings-inference core/src, router/src"
_BATCH = 16384  # its own default of --max-batch-tokens
_REQUESTS = 512  # its own default of --max-concurrent-requests


def _flags(ask: Ask) -> list[str]:
    model = ask.model
    ours = ["--model-id", model.weights, "--hostname", ask.host, "--port", str(ask.port)]
    ours += ["--served-model-name", ask.served_as[0]]
    if model.context > _BATCH:  # an input has to fit one batch
        ours += ["--max-batch-tokens", str(model.context)]
    if ask.concurrency > _REQUESTS:
        # Every input of a request counts, and one too many gets a 429: the proxy's maxconn is what keeps to the limit.
        ours += ["--max-concurrent-requests", str(ask.concurrency)]
    if model.revision is not None:
        ours += ["--revision", model.revision]
    # Where its parts talk to each other: two of them on a box must not meet.
    return [*ours, "--uds-path", f"/tmp/text-embeddings-{ask.port}"]


def _faults(ask: Ask) -> Iterable[Fault]:
    yield from one_name(ask, "text-embeddings-inference")
    yield from no_cache(ask, "text-embeddings-inference")


def _info(body: Any) -> dict[str, int | None]:
    """It has no /v1/models: /info tells its one name, and the longest input that the model takes."""
    return {str(body["served_model_name"]): int(body["max_input_length"])}


TEI = Runtime(
    name="text-embeddings-inference",
    title="text-embeddings-inference",
    program=("text-embeddings-router",),
    packages=(),
    tasks=("embed", "rerank"),
    flags=_flags,
    faults=_faults,
    models=ModelList("/info", _info),
    reranking=Reranking("/rerank", "texts", listed_ranks),
    exact_context=False,
    aliases={"-p": "--port"},
    reserved={
        "--model-id": "set weights: of the model",
        "--port": "set port: of the placement",
        "--served-model-name": "set served_as: of the model",
        "--api-key": "a secret shows in a command line: set API_KEY in environment: by reference",
        "--hf-token": "a secret shows in a command line: set HF_TOKEN in environment: by reference",
        "--hf-api-token": "a secret shows in a command line: set HF_TOKEN in environment: by reference",
    },
    metrics=(
        counter("prompt_tokens", "te_request_input_length_sum", source=_METRICS),
        counter("requests", "te_request_success", source=f"{_METRICS}; one sample for each method"),
        gauge("waiting", "te_queue_size", source=_METRICS),
    ),
    version=("--version",),
    hub_cache=False,
)
