"""The command line of ``vllm serve`` for one rank of an engine, and the environment that goes with it. Pure.

``--shutdown-timeout`` (how long vLLM lets running requests finish after SIGTERM) is not passed: older versions do not
know the flag and would not start. The proxy drains an engine before it is stopped, so nothing is lost without it;
where the version has it, put it in ``arguments``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fleetctl.engine.runtimes.flags import flag_name, layer_flags, split_flags
from fleetctl.errors import SpecError
from fleetctl.spec.fleet_model import Loras, Model

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
    "--kv-cache-memory": "--kv-cache-memory-bytes",
    "--device-memory-utilization": "--gpu-memory-utilization",
}

REPEATABLE = frozenset({"--middleware"})

# Flags on which the proxy, the gates, the budget or the other ranks depend, with the key to use in their place.
_RESERVED = {
    "--model": "set weights: of the model",
    "--port": "set port: of the placement",
    "--uds": "the proxy and the gates reach an engine over TCP: leave it out",
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


@dataclass(frozen=True)
class RankOfMany:
    """The place of one rank in an engine over several boxes."""

    rank: int
    ranks: int
    parallel: Literal["tensor", "pipeline"]
    master_address: str
    master_port: int


def served_names(name: str, model: Model) -> tuple[str, ...]:
    """Names under which clients ask for a model; ``name`` is its key in fleet.yaml."""
    return model.served_as or (name,)


def check_arguments(arguments: Sequence[str], where: str) -> None:
    """Refuse arguments that fleetctl sets itself, because others depend on them. Raises SpecError."""
    for group in split_flags(arguments):
        hint = _RESERVED.get(flag_name(group[0], ALIASES))
        if hint is not None:
            raise SpecError(f"{where}: {group[0].partition('=')[0]} is set by fleetctl", hint=hint)
        if not group[0].startswith("-"):
            raise SpecError(
                f"{where}: the first argument is {group[0]!r}, which is no flag",
                hint="the model comes from weights: and takes no further word",
            )


def serve_arguments(
    name: str,
    model: Model,
    *,
    host: str,
    port: int,
    concurrency: int,
    gpu_memory_utilization: float,
    kv_cache_memory: int | None = None,
    extra: Sequence[Sequence[str]] = (),
    split: RankOfMany | None = None,
) -> list[str]:
    """What follows the word ``vllm`` for one rank: ``serve MODEL --host …``.

    ``extra`` holds layers of further arguments (model, placement, box); each wins over what is before it.
    Raises SpecError when one of them is a flag that fleetctl has to set itself.
    """
    ours = ["--host", host, "--port", str(port), "--served-model-name", *served_names(name, model)]
    ours += ["--max-model-len", str(model.context)]
    ours += ["--gpu-memory-utilization", f"{gpu_memory_utilization:g}"]
    if kv_cache_memory is not None:  # the share is then only what has to be free when the engine starts
        ours += ["--kv-cache-memory-bytes", str(kv_cache_memory)]
    # The engine sizes its batches and its graphs for this; the proxy's maxconn is what keeps to it.
    ours += ["--max-num-seqs", str(concurrency)]
    if model.revision is not None:
        ours += ["--revision", model.revision]
    if model.kv_cache_dtype is not None:
        ours += ["--kv-cache-dtype", model.kv_cache_dtype]
    if model.speculative is not None:
        config = json.dumps(model.speculative.model_dump(mode="json"), separators=(",", ":"))
        ours += ["--speculative-config", config]
    ours += lora_arguments(model.loras)
    if split is not None:
        ours += [f"--{split.parallel}-parallel-size", str(split.ranks), "--nnodes", str(split.ranks)]
        ours += ["--node-rank", str(split.rank)]
        ours += ["--master-addr", split.master_address, "--master-port", str(split.master_port)]
        ours += ["--headless"] if split.rank > 0 else []
    for layer in extra:
        check_arguments(layer, f"arguments of model {name}")
    return ["serve", model.weights, *layer_flags([ours, *extra], ALIASES, repeatable=REPEATABLE)]


def lora_arguments(loras: Loras | None) -> list[str]:
    """What makes an engine take adapters; which ones it starts with is added on the box (systemd/adapters.py)."""
    if loras is None:
        return []
    words = ["--enable-lora", "--max-loras", str(loras.max_loras), "--max-lora-rank", str(loras.max_lora_rank)]
    return words + ([] if loras.max_cpu_loras is None else ["--max-cpu-loras", str(loras.max_cpu_loras)])


def lora_environment(loras: Loras | None) -> dict[str, str]:
    """What makes an engine load and unload adapters while it runs."""
    return {} if loras is None else {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}


def split_environment(link: str, interface: str | None) -> dict[str, str]:
    """Environment that keeps a rank's traffic on the link between the boxes."""
    environment = {"VLLM_HOST_IP": link}
    if interface is not None:
        environment |= {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface}
    return environment
