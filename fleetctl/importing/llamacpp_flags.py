"""How ``llama-server`` spells things.

Sources: llama.cpp, ``common/arg.cpp`` (flags and variables), ``tools/server/server.cpp`` (four slots over one cache
unless told), ``tools/server/server-context.cpp`` (names), ``.devops/*.Dockerfile`` (images).
"""

from __future__ import annotations

import re

from fleetctl.engine.runtimes.flags import flag_name, flag_values, split_flags
from fleetctl.engine.runtimes.llamacpp import LLAMACPP as RUNTIME
from fleetctl.importing import readers
from fleetctl.importing.dialect import Dialect
from fleetctl.importing.found import Found, FoundModel, Setting, Word

_SLOTS = 4  # of a server that is not told how many
_UNIFIED = "--kv-unified"
_CACHE = ("--cache-type-k", "--cache-type-v")
_FETCH = "fetch the file to the boxes, and write its path as weights:"
_KEYS = "the proxy checks clients' keys; write proxy: api_keys: {NAME: {env: VARIABLE}}"
_TLS = "the proxy and the gates ask an engine without TLS"
_ROUTER = "an engine of fleetctl serves one model"


def _file(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    """A file, also where it looks like a hub id."""
    whole = said[0][:1] in ("/", "~", ".", "$")
    model.settings["weights"] = Setting(said[0] if whole else f"./{said[0]}")


def _aliases(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    readers.served(found, model, word, [name for part in said[0].split(",") if (name := part.strip())])


def _slots(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    if said[0] != "-1":  # as many as the server likes
        readers.number_of("--parallel", readers.put("concurrency"))(found, model, word, said)


def _cells(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    if said[0] != "0":  # as long as the model can
        readers.number_of("--ctx-size", readers.context)(found, model, word, said)


def _embeds(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    model.settings.setdefault("task", Setting("embed"))


def _ranks(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    model.settings["task"] = Setting("rerank")


def _close(found: Found, model: FoundModel) -> None:
    told = flag_values(model.arguments, RUNTIME.aliases)
    if told.get("--pooling") == "rank" and "task" in model.settings:
        model.settings["task"] = Setting("rerank")
    key, value = (told.get(name) for name in _CACHE)
    if key and key == value:
        model.settings["kv_cache_dtype"] = Setting(key)
        groups = [one for one in split_flags(model.arguments) if flag_name(one[0], RUNTIME.aliases) not in _CACHE]
        model.arguments = [word for group in groups for word in group]
    _divide(found, model, unified=told.get(_UNIFIED, "no") != "no")
    weights = model.settings.get("weights")
    path = str(weights.value) if weights is not None else ""
    if path[:1] in ("/", "~", ".") and not path.endswith(".gguf"):
        found.note(model.place, "llama-server is given a .gguf file by fleetctl: give the file a name that ends so")


def _divide(found: Found, model: FoundModel, *, unified: bool) -> None:
    """The slots share the cache, or each has a part of it: how long one request may be."""
    cells = model.settings.get("context")
    if model.concurrency is None:
        told = f"how many requests it takes at once is not said: {_SLOTS}, over one cache, is what it does by itself"
        found.note(model.place, told)
        model.concurrency = _SLOTS
        if not unified and cells is not None:
            model.arguments.append(_UNIFIED)
            unified = True
    if cells is None or not isinstance(cells.value, int):
        return
    if unified:
        model.arguments += ["--ctx-size", str(cells.value)]
    elif model.concurrency > cells.value:
        found.note(model.place, f"--ctx-size {cells.value} is less than a token for each request, and was left out")
        del model.settings["context"]
    elif model.concurrency > 1:
        told = f"--ctx-size {cells.value}, divided by --parallel {model.concurrency}"
        model.settings["context"] = Setting(cells.value // model.concurrency, told)


LLAMACPP = Dialect(
    runtime="llama.cpp",
    programs={"llama-server": ()},
    # Its images light have no server; those called full have all programs.
    sign=re.compile(r"(^|/)llama\.cpp([:@](?!light)|$)|llama-server"),
    image="ghcr.io/ggml-org/llama.cpp:server-cuda",
    image_words=("--server",),
    asks=re.compile(r"llama\.cpp:full"),
    keys={
        "--model": _file,
        "--hf-repo": readers.weights,
        "--alias": _aliases,
        "--ctx-size": _cells,
        "--parallel": _slots,
        "--port": readers.port,
        "--embeddings": _embeds,
        "--reranking": _ranks,
        "--api-key": readers.api_key,
        "--hf-token": readers.hub_token,
        "-hft": readers.hub_token,
    },
    left_out={
        "--host": "",
        "--metrics": "",
        "--api-key-file": _KEYS,
        "--api-prefix": "the proxy and the gates ask for /v1",
        "--ssl-key-file": _TLS,
        "--ssl-cert-file": _TLS,
        "--model-url": _FETCH,
        "-mu": _FETCH,
        "--docker-repo": _FETCH,
        "-dr": _FETCH,
        "--models-dir": _ROUTER,
        "--models-preset": _ROUTER,
        "--models-max": _ROUTER,
    },
    bare=frozenset({"--embeddings", "--reranking"}),
    variables={
        "LLAMA_ARG_MODEL": "--model",
        "LLAMA_ARG_HF_REPO": "--hf-repo",
        "LLAMA_ARG_ALIAS": "--alias",
        "LLAMA_ARG_CTX_SIZE": "--ctx-size",
        "LLAMA_ARG_N_PARALLEL": "--parallel",
        "LLAMA_ARG_HOST": "--host",
        "LLAMA_ARG_PORT": "--port",
        "LLAMA_ARG_EMBEDDINGS": "--embeddings",
        "LLAMA_ARG_RERANKING": "--reranking",
        "LLAMA_ARG_ENDPOINT_METRICS": "--metrics",
        "LLAMA_ARG_API_PREFIX": "--api-prefix",
        "LLAMA_ARG_CACHE_TYPE_K": "--cache-type-k",
        "LLAMA_ARG_CACHE_TYPE_V": "--cache-type-v",
    },
    port=8080,
    example="/models/MODEL.gguf",
    name_flag="--alias",
    named=lambda weights: weights.rpartition("/")[2] if weights.endswith(".gguf") else weights,
    needs_gpu=False,
    closing=_close,
)
