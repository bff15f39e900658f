"""Arguments of an engine, read as the engine reads them, and those that fleet.yaml has a key for."""

from __future__ import annotations

import re

_PLACE = {
    "--port": "port: of the placement",
    "--host": "address: of the box",
    "--api-key": "api_keys: of the proxy, with references such as {env: NAME}",
    "--hf-token": "environment: of the model, with HF_TOKEN: {env: NAME}",
}
_VLLM = {
    **_PLACE,
    "--model": "weights: of the model",
    "--revision": "revision: of the model",
    "--served-model-name": "served_as: of the model",
    "--max-model-len": "context: of the model",
    "--kv-cache-dtype": "kv_cache_dtype: of the model",
    "--speculative-config": "speculative: of the model",
    "--gpu-memory-utilization": "gpu_memory_utilization: of a box in the placement",
    "--uds": "port: of the placement (the proxy reaches engines by address and port)",
    "--nnodes": "split: of the placement, with the list of boxes",
    "--node-rank": "split: of the placement; the order of its boxes is their rank",
    "--master-addr": "split: of the placement; its first box is the head",
    "--master-port": "master_port: of the placement",
    "--headless": "split: of the placement; every box but the first is headless",
}
_ENCODER = {
    **_PLACE,
    "--model-id": "weights: of the model",
    "--revision": "revision: of the model",
    "--served-model-name": "served_as: of the model",
}
_HERE: dict[str, dict[str, str]] = {
    "vllm": _VLLM,
    "sglang": {
        **_PLACE,
        "--model-path": "weights: of the model",
        "--revision": "revision: of the model",
        "--served-model-name": "served_as: of the model",
        "--context-length": "context: of the model",
        "--kv-cache-dtype": "kv_cache_dtype: of the model",
        "--is-embedding": "task: of the model",
        "--nnodes": "split: of the placement, with the list of boxes",
        "--node-rank": "split: of the placement; the order of its boxes is their rank",
        "--dist-init-addr": "split: of the placement; its first box is the head, and master_port: its port",
    },
    "llama.cpp": {
        **_PLACE,
        "--model": "weights: of the model",
        "--hf-repo": "weights: of the model",
        "--alias": "served_as: of the model",
        "--parallel": "concurrency: of the placement",
        "--embeddings": "task: of the model",
        "--reranking": "task: of the model",
    },
    "text-embeddings-inference": {**_ENCODER, "--hostname": "address: of the box"},
    "infinity": _ENCODER,
    "encoder": {
        **_PLACE,
        "--model": "weights: of the model",
        "--served-model-name": "served_as: of the model",
        "--uds": "port: of the placement (fleetctl gives every engine its own)",
    },
}
"""Kind of engine → flag → the key of fleet.yaml that says it."""
_SPLIT = {
    "tensor": dict.fromkeys(("--tensor-parallel-size", "--tp-size"), "split: and parallel: of the placement"),
    "pipeline": dict.fromkeys(("--pipeline-parallel-size", "--pp-size"), "split: and parallel: of the placement"),
}
_SHORT_VLLM = {
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-sc": "--speculative-config",
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "--device-memory-utilization": "--gpu-memory-utilization",
}
_SHORT = {
    "vllm": _SHORT_VLLM,
    "sglang": {"--model": "--model-path", "--nccl-init-addr": "--dist-init-addr"},
    "llama.cpp": {"-m": "--model", "-hf": "--hf-repo", "-a": "--alias", "-np": "--parallel", "--rerank": "--reranking"}
    | {"--embedding": "--embeddings"},
    "text-embeddings-inference": {"-p": "--port"},
}
_CONTAINER = {
    "--name": "the name is that of the unit",
    "--rm": "the container is removed when the unit stops",
    "--detach": "systemd has to see the process",
    "--restart": "systemd restarts the engine, and a second supervisor would bring it back after a move",
    "--network": "engines use the network of the host",
    "--pull": "a start never downloads; `fleetctl cutover` sees to the image before anything is stopped",
    "--entrypoint": "the container runs the engine of the model",
    "--cgroups": "where its processes are, the unit's limits reach them",
    "--log-driver": "the journal has what the engine says",
}
_CONTAINER_SHORT = {"-d": "--detach", "--net": "--network"}


def flag(argument: str, runtime: str = "vllm") -> str | None:
    """``--max_model_len=8`` as ``--max-model-len``; None for what is not an option."""
    found = re.match(r"--?[A-Za-z][A-Za-z0-9_-]*", argument)
    if not found:
        return None
    name = found[0].replace("_", "-") if found[0].startswith("--") else found[0]
    return _SHORT.get(runtime, {}).get(name, name)


def key_instead(argument: str, parallel: str | None, runtime: str = "vllm") -> str | None:
    """The key of fleet.yaml that says what this argument would. ``parallel`` is that of a split, else None."""
    name = flag(argument, runtime)
    if name is None:
        return None
    return _HERE.get(runtime, {}).get(name) or (_SPLIT.get(parallel, {}).get(name) if parallel else None)


def container_reason(option: str) -> str | None:
    """Why an option of ``docker run`` is fleetctl's to set; None where it is not."""
    name = option.partition("=")[0]
    return _CONTAINER.get(_CONTAINER_SHORT.get(name, name))


def value_after(arguments: list[str], name: str) -> str | None:
    """The last value given to an option, as ``--name value`` or ``--name=value``."""
    value = None
    for index, argument in enumerate(arguments):
        if flag(argument) == name:
            after = arguments[index + 1] if index + 1 < len(arguments) else None
            value = argument.partition("=")[2] if "=" in argument else after
    return value
