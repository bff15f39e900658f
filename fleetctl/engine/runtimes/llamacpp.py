"""llama.cpp's server: ``llama-server``. Pure.

Sources: llama.cpp b11434, ``common/arg.cpp`` (flags), ``tools/server/server-context.cpp`` (answers) and
``tools/server/server-task.cpp`` (metrics).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetctl.engine.runtimes.faults import no_cache_size
from fleetctl.engine.runtimes.metrics import counter, gauge
from fleetctl.engine.runtimes.runtime import Ask, Fault, ModelList, Runtime

_METRICS = "llama.cpp tools/server; needs --metrics"


def _flags(ask: Ask) -> list[str]:
    model = ask.model
    ours = ["--model" if model.weights.startswith("/") else "--hf-repo", model.weights]
    # A host that ends with .sock is a Unix socket to it.
    listens = ["--host", ask.socket] if ask.socket else ["--host", ask.host, "--port", str(ask.port)]
    ours += ["--alias", ",".join(ask.served_as), *listens]
    # Its slots divide the cache among them: so each request has room for its whole context.
    ours += ["--parallel", str(ask.concurrency), "--ctx-size", str(model.context * ask.concurrency), "--metrics"]
    if model.kv_cache_dtype is not None:
        ours += ["--cache-type-k", model.kv_cache_dtype, "--cache-type-v", model.kv_cache_dtype]
    if ask.task != "generate":
        # An encoder sees a whole input at once, and has to take it in one batch.
        ours += ["--embeddings" if ask.task == "embed" else "--reranking"]
        ours += ["--batch-size", str(model.context), "--ubatch-size", str(model.context)]
    return ours


def _faults(ask: Ask) -> Iterable[Fault]:
    yield from no_cache_size(ask, "llama-server", "its cache has room for context: tokens of concurrency: requests")
    if ask.model.weights.startswith("/") and not ask.model.weights.endswith(".gguf"):
        yield Fault(
            f"llama-server reads one .gguf file, and weights: is {ask.model.weights}",
            "write the path of the file (the first, where there are several)",
        )
    if ask.model.revision is not None:
        yield Fault("llama-server cannot be told a revision", "fetch the file yourself and write its path as weights:")
    if ask.model.speculative is not None:
        yield Fault(
            "llama-server has its own flags for speculative decoding",
            "take speculative: out, and put --spec-type and the others into arguments:",
        )


def _models(body: Any) -> dict[str, int | None]:
    """Its id is one of its names, ``aliases`` has all of them, and ``meta`` what one slot has room for."""
    found: dict[str, int | None] = {}
    for model in body.get("data") or []:
        room = (model.get("meta") or {}).get("n_ctx")
        for name in (model["id"], *(model.get("aliases") or ())):
            found[str(name)] = None if room is None else int(room)
    return found


LLAMACPP = Runtime(
    name="llama.cpp",
    title="llama.cpp",
    program=("llama-server",),
    image_program=("/app/llama-server",),
    packages=(),
    tasks=("generate", "embed", "rerank"),
    flags=_flags,
    faults=_faults,
    models=ModelList("/v1/models", _models),
    exact_context=False,
    aliases={
        "-m": "--model",
        "-hf": "--hf-repo",
        "-hfr": "--hf-repo",
        "-a": "--alias",
        "-c": "--ctx-size",
        "-np": "--parallel",
        "-ctk": "--cache-type-k",
        "-ctv": "--cache-type-v",
        "-b": "--batch-size",
        "-ub": "--ubatch-size",
        "-ngl": "--gpu-layers",
        "--n-gpu-layers": "--gpu-layers",
        "-fa": "--flash-attn",
        "-kvu": "--kv-unified",
        "--embedding": "--embeddings",
        "--rerank": "--reranking",
        "--no-host": "--no-host",  # this is about memory, and not the opposite of --host
    },
    repeatable=frozenset({"--lora", "--lora-scaled", "--override-kv", "--control-vector"}),
    reserved={
        "--model": "set weights: of the model",
        "--hf-repo": "set weights: of the model",
        "--port": "set port: of the placement",
        "--alias": "set served_as: of the model",
        "--parallel": "set concurrency: of the placement",
        "--embeddings": "set task: of the model",
        "--reranking": "set task: of the model",
        "--api-key": "a secret shows in a command line: set LLAMA_API_KEY in environment: by reference",
        "--api-prefix": "the proxy and the gates ask for /v1: leave it out",
        "--hf-token": "a secret shows in a command line: set HF_TOKEN in environment: by reference",
    },
    metrics=(
        counter("prompt_tokens", "llamacpp:prompt_tokens", source=_METRICS),
        counter("generation_tokens", "llamacpp:tokens_predicted", source=_METRICS),
        counter("draft_tokens", "llamacpp:spec_decode_num_draft_tokens", source=f"{_METRICS}; since 2026"),
        counter("accepted_tokens", "llamacpp:spec_decode_num_accepted_tokens", source=f"{_METRICS}; since 2026"),
        gauge("running", "llamacpp:requests_processing", source=_METRICS),
        gauge("waiting", "llamacpp:requests_deferred", source=_METRICS),
        gauge("cache_usage", "llamacpp:kv_cache_usage_ratio", source=f"{_METRICS}; gone since 2025"),
    ),
    version=("--version",),
    hub_cache=False,
    sockets=True,
)
