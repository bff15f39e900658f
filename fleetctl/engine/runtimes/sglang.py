"""SGLang: ``python -m sglang.launch_server``. Pure.

Sources: sglang 0.5.23, ``srt/arg_groups/fields`` (flags), ``srt/entrypoints/http_server.py`` (answers) and
``srt/observability/metrics_collector.py`` (metrics).
"""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.engine.runtimes.faults import no_cache_size, one_name
from fleetctl.engine.runtimes.metrics import counter, gauge
from fleetctl.engine.runtimes.runtime import Ask, Fault, Reranking, Runtime, listed_ranks

STATIC = 0.88
"""Part of its share that it may allocate at once, for weights and cache. Activations and CUDA graphs come on top, for
which SGLang by itself keeps about an eighth of a GPU (``srt/arg_groups/memory_hook.py``)."""

_ALGORITHMS = {"mtp": "NEXTN", "draft_model": "STANDALONE"}
_DTYPES = {"fp8": "fp8_e4m3"}

_METRICS = "sglang/srt/observability/metrics_collector.py; needs --enable-metrics"


def _flags(ask: Ask) -> list[str]:
    model, split = ask.model, ask.split
    ours = ["--model-path", model.weights, "--host", ask.host, "--port", str(ask.port)]
    ours += ["--served-model-name", ask.served_as[0], "--context-length", str(model.context)]
    ours += ["--mem-fraction-static", f"{int(ask.share * STATIC * 1000) / 1000:g}"]
    ours += ["--max-running-requests", str(ask.concurrency), "--enable-metrics"]
    ours += [] if ask.task == "generate" else ["--is-embedding"]
    if model.revision is not None:
        ours += ["--revision", model.revision]
    if model.kv_cache_dtype is not None:
        ours += ["--kv-cache-dtype", _DTYPES.get(model.kv_cache_dtype, model.kv_cache_dtype)]
    ours += _speculative(ask)
    if split is not None:
        size = "--tp-size" if split.parallel == "tensor" else "--pp-size"
        host = f"[{split.master_address}]" if ":" in split.master_address else split.master_address
        ours += [size, str(split.ranks), "--nnodes", str(split.ranks), "--node-rank", str(split.rank)]
        ours += ["--dist-init-addr", f"{host}:{split.master_port}"]
    return ours


def _speculative(ask: Ask) -> list[str]:
    """A chain of drafts as long as fleet.yaml says: the step that verifies them has one token more."""
    asked = ask.model.speculative
    if asked is None:
        return []
    algorithm = _ALGORITHMS.get(asked.method, asked.method.upper())
    words = ["--speculative-algorithm", algorithm]
    draft = (asked.model_extra or {}).get("model")
    if draft is not None:
        words += ["--speculative-draft-model-path", str(draft)]
    if algorithm == "NGRAM":
        return [*words, "--speculative-num-draft-tokens", str(asked.num_speculative_tokens)]
    words += ["--speculative-num-steps", str(asked.num_speculative_tokens), "--speculative-eagle-topk", "1"]
    return [*words, "--speculative-num-draft-tokens", str(asked.num_speculative_tokens + 1)]


def _faults(ask: Ask) -> Iterable[Fault]:
    yield from one_name(ask, "SGLang")
    yield from no_cache_size(ask, "SGLang", "put --max-total-tokens and a number of tokens into arguments:")
    more = set((ask.model.speculative.model_extra or {}) if ask.model.speculative else ()) - {"model"}
    if more:
        yield Fault(
            f"SGLang has no one flag for {', '.join(sorted(more))} of speculative:",
            "take them out, and put its own --speculative-… flags into arguments:",
        )


def _split_environment(link: str, interface: str | None) -> dict[str, str]:
    environment = {"SGLANG_HOST_IP": link}
    if interface is not None:
        environment |= {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface}
    return environment


SGLANG = Runtime(
    name="sglang",
    title="SGLang",
    program=("python", "-m", "sglang.launch_server"),
    image_program=("python3", "-m", "sglang.launch_server"),
    packages=("sglang",),
    tasks=("generate", "embed", "rerank"),
    flags=_flags,
    faults=_faults,
    reranking=Reranking("/v1/rerank", "documents", listed_ranks),
    # Its /health would ask the scheduler for a token, and wait from 1 s to 20 s for it: in the middle of a long prompt
    # an engine that works would be taken out of the proxy. Whether it answers, gates and proxy find out otherwise.
    environment={"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"},
    split_environment=_split_environment,
    aliases={
        "--model": "--model-path",
        "--tensor-parallel-size": "--tp-size",
        "--pipeline-parallel-size": "--pp-size",
        "--data-parallel-size": "--dp-size",
        "--nccl-init-addr": "--dist-init-addr",
        "--speculative-draft-model": "--speculative-draft-model-path",
    },
    reserved={
        "--model-path": "set weights: of the model",
        "--port": "set port: of the placement",
        "--served-model-name": "set served_as: of the model",
        "--context-length": "set context: of the model",
        "--nnodes": "it follows from the boxes of split:",
        "--node-rank": "it follows from the order of the boxes of split:",
        "--dist-init-addr": "it follows from the first box of split: and master_port:",
        "--is-embedding": "set task: of the model",
        "--api-key": "a secret shows in a command line, and the boxes' firewall: keeps others from an engine",
        "--admin-api-key": "a secret shows in a command line, and the boxes' firewall: keeps others from an engine",
    },
    metrics=(
        counter("prompt_tokens", "sglang:prompt_tokens", source=_METRICS),
        counter("generation_tokens", "sglang:generation_tokens", source=_METRICS),
        counter("requests", "sglang:num_requests", source=_METRICS),
        counter("first_tokens", "sglang:time_to_first_token_seconds_count", source=_METRICS),
        counter("first_token_seconds", "sglang:time_to_first_token_seconds_sum", source=_METRICS),
        counter("prefix_queries", "sglang:prompt_tokens", source=f"{_METRICS}; every prompt token is looked up"),
        counter("prefix_hits", "sglang:cached_tokens", source=f"{_METRICS}; one sample for each cache_source"),
        counter("preemptions", "sglang:num_retracted_requests", source=_METRICS),
        gauge("running", "sglang:num_running_reqs", source=_METRICS),
        gauge("waiting", "sglang:num_queue_reqs", source=_METRICS),
        gauge("cache_usage", "sglang:token_usage", source=_METRICS),
        gauge("cache_tokens", "sglang:max_total_num_tokens", source=_METRICS),
        gauge("prefix_hit_rate", "sglang:cache_hit_rate", source=_METRICS),
        gauge("acceptance", "sglang:spec_accept_rate", source=_METRICS),
    ),
    abbreviates=True,
)
