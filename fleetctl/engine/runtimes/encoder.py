"""fleetctl's own server of encoders (ONNX Runtime): ``python3 -m fleetctl.pool.encoder``. Pure.

Source: ``fleetctl/pool/encoder``, which lands on the boxes with the programs of a pool.
"""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.engine.runtimes.faults import no_cache
from fleetctl.engine.runtimes.metrics import counter, gauge
from fleetctl.engine.runtimes.runtime import Ask, Fault, Runtime

_METRICS = "fleetctl/pool/encoder/metrics.py"
BATCH = 2048
"""Tokens that one call of a worker has, where the longest request asks for no more."""


def batch_tokens(context: int) -> int:
    """Tokens of one call to an encoder: an input has to fit one. What it computes at a time it decides by itself."""
    return max(BATCH, context)


def _flags(ask: Ask) -> list[str]:
    ours = ["--model", ask.model.weights, "--served-model-name", *ask.served_as]
    ours += ["--uds", ask.socket] if ask.socket else ["--host", ask.host, "--port", str(ask.port)]
    return [*ours, "--max-model-len", str(ask.model.context)]


def _faults(ask: Ask) -> Iterable[Fault]:
    yield from no_cache(ask, "encoder")
    if not ask.model.weights.startswith("/"):
        yield Fault("encoder reads a folder and fetches nothing", "write weights: as a path on the boxes")


ENCODER = Runtime(
    name="encoder",
    title="encoder",
    program=("python3", "-m", "fleetctl.pool.encoder"),
    packages=("onnxruntime",),
    tasks=("embed",),
    flags=_flags,
    faults=_faults,
    metrics=(
        counter("prompt_tokens", "vllm:prompt_tokens", source=_METRICS),
        counter("requests", "vllm:request_success", source=_METRICS),
        gauge("running", "vllm:num_requests_running", source=_METRICS),
        gauge("waiting", "vllm:num_requests_waiting", source=_METRICS),
    ),
    reserved={
        "--model": "set weights: of the model",
        "--port": "set port: of the placement",
        "--uds": "in a pool fleetctl gives it one",
        "--served-model-name": "set served_as: of the model",
        "--max-model-len": "set context: of the model",
    },
    hub_cache=False,
    sockets=True,
)
