"""How ``python -m sglang.launch_server`` spells things."""

from __future__ import annotations

import re

from fleetctl.engine.runtimes.sglang import STATIC
from fleetctl.importing import readers
from fleetctl.importing.dialect import Dialect
from fleetctl.importing.found import Found, FoundModel, Setting, Word


def _static(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    """Weights and cache are a part of the share: the share is what that part is of."""
    readers.share(found, model, word, said)
    if model.share is not None:
        model.share = min(1.0, round(model.share / STATIC, 2))
        told = f"--mem-fraction-static {said[0]} is {STATIC:g} of gpu_memory_utilization {model.share:g}"
        found.note(word.place, f"{told}: the rest is for what SGLang takes as it goes")


def _embedding(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    model.settings["task"] = Setting("embed", "or rerank")


def _rendezvous(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    port = said[0].rpartition(":")[2]
    if port.isdecimal() and 0 < int(port) < 65536:
        model.master_port = int(port)


SGLANG = Dialect(
    runtime="sglang",
    programs={"sglang": ("serve",)},
    modules=("sglang.launch_server",),
    sign=re.compile("sglang"),
    image="lmsysorg/sglang:latest",
    image_words=("serve",),
    positional=True,
    port=30000,
    keys={
        "--model-path": readers.weights,
        "--served-model-name": readers.served,
        "--revision": readers.word_of("revision"),
        "--context-length": readers.number_of("--context-length", readers.context),
        "--mem-fraction-static": _static,
        "--kv-cache-dtype": readers.cache_type,
        "--max-running-requests": readers.number_of("--max-running-requests", readers.put("concurrency")),
        "--port": readers.port,
        "--tp-size": readers.number_of("--tp-size", readers.parallel),
        "--tp": readers.number_of("--tp", readers.parallel),
        "--pp-size": readers.number_of("--pp-size", readers.pipeline),
        "--pp": readers.number_of("--pp", readers.pipeline),
        "--dp-size": readers.data_parallel,
        "--dp": readers.data_parallel,
        "--dist-init-addr": _rendezvous,
        "--is-embedding": _embedding,
        "--api-key": readers.api_key,
        "--admin-api-key": readers.api_key,
    },
    left_out={
        "--host": "",
        "--nnodes": "",
        "--node-rank": "",
        "--enable-metrics": "",
        "--config": "the file that it names was not read: give its settings as arguments",
    },
    bare=frozenset({"--is-embedding"}),
)
