"""How ``vllm serve`` spells things."""

from __future__ import annotations

import json
import re

from fleetctl.importing import readers
from fleetctl.importing.dialect import Dialect
from fleetctl.importing.found import Found, FoundModel, Setting, Word, without_secrets


def _backend(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    if said[0] not in ("mp", "uni"):
        found.note(word.place, f"--distributed-executor-backend {said[0]} is left out: ranks are started without it")


def _speculative_flag(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    _speculative(found, model, word, " ".join(said))


def _speculative(found: Found, model: FoundModel, word: Word, text: str) -> None:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        found.note(
            word.place,
            f"--speculative-config is left out: {without_secrets([Word(text[:60], word.place)])} is no JSON object",
        )
    elif not isinstance(config.get("method"), str) or not isinstance(config.get("num_speculative_tokens"), int):
        found.note(word.place, "--speculative-config is left out: speculative: needs method and num_speculative_tokens")
    else:
        model.settings["speculative"] = Setting(config)


def _runner(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    if said[0] == "pooling":
        model.settings["task"] = Setting("embed", "or rerank")


VLLM = Dialect(
    runtime="vllm",
    programs={"vllm": ("serve",)},
    modules=("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main", "vllm.entrypoints.api_server"),
    sign=re.compile("vllm"),
    image="vllm/vllm-openai:latest",
    image_words=("serve", "vllm"),
    positional=True,
    keys={
        "--model": readers.weights,
        "--served-model-name": readers.served,
        "--revision": readers.word_of("revision"),
        "--max-model-len": readers.number_of("--max-model-len", readers.context),
        "--gpu-memory-utilization": readers.share,
        "--kv-cache-dtype": readers.cache_type,
        "--kv-cache-memory-bytes": readers.number_of("--kv-cache-memory-bytes", readers.put("cache")),
        "--max-num-seqs": readers.number_of("--max-num-seqs", readers.put("concurrency")),
        "--port": readers.port,
        "--master-port": readers.number_of("--master-port", readers.put("master_port")),
        "--tensor-parallel-size": readers.number_of("--tensor-parallel-size", readers.parallel),
        "--pipeline-parallel-size": readers.number_of("--pipeline-parallel-size", readers.pipeline),
        "--data-parallel-size": readers.data_parallel,
        "--distributed-executor-backend": _backend,
        "--speculative-config": _speculative_flag,
        "--runner": _runner,
        "--api-key": readers.api_key,
        "--hf-token": readers.hub_token,
    },
    left_out={
        "--host": "",
        "--nnodes": "",
        "--node-rank": "",
        "--headless": "",
        "--master-addr": "the head is the first box of split:",
        "--uds": "the proxy and the gates reach an engine over TCP",
        "--config": "the file that it names was not read: give its settings as arguments",
        "--env-file": "the file that it names was not read",
    },
    several=frozenset({"--served-model-name", "--lora-modules", "--middleware", "--allowed-origins"}),
)
