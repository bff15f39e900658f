"""How ``infinity_emb v2`` spells things; ``v1`` has the same flags but for the name of the model's.

Sources: infinity_emb 0.0.77, ``cli.py`` (flags), ``env.py`` (variables, port), ``args.py`` (the name that it gives a
model), ``Dockerfile.*`` (infinity_emb as entry point).
"""

from __future__ import annotations

import re

from fleetctl.importing import readers
from fleetctl.importing.dialect import Dialect, Reader
from fleetctl.importing.found import Found, FoundModel, Setting, Word

_PREFIX = "/v1"


def _first(key: str, flag: str) -> Reader:
    """Of a flag that is there once for each of several models; a variable has them with ; between."""

    def read(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
        first, *more = said[0].strip(";").split(";")
        if key in model.settings or more:
            told = "an engine of fleetctl serves one model: write an entry for each of the others"
            found.note(word.place, f"{flag} is there more than once: {told}")
        if key not in model.settings and first:
            model.settings[key] = Setting([first] if key == "served_as" else first)

    return read


def _prefix(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    if said[0].rstrip("/") != _PREFIX:
        told = f"behind the proxy its paths begin with {_PREFIX}, as {_PREFIX}/embeddings"
        found.note(word.place, f"--url-prefix is left out: {told}")


INFINITY = Dialect(
    runtime="infinity",
    programs={"infinity_emb": ("v2", "v1")},
    sign=re.compile(r"(^|/)infinity([:@]|$)|infinity_emb"),
    image="michaelf34/infinity:latest",
    image_words=("v2", "v1"),
    keys={
        "--model-id": _first("weights", "--model-id"),
        "--model-name-or-path": _first("weights", "--model-id"),
        "--served-model-name": _first("served_as", "--served-model-name"),
        "--revision": _first("revision", "--revision"),
        "--port": readers.port,
        "--url-prefix": _prefix,
        "--api-key": readers.api_key,
    },
    left_out={
        "--host": "",
        "--preload-only": "the engine would end at once",
        "--proxy-root-path": "the proxy changes no paths",
    },
    variables={
        "INFINITY_MODEL_ID": "--model-id",
        "INFINITY_SERVED_MODEL_NAME": "--served-model-name",
        "INFINITY_REVISION": "--revision",
        "INFINITY_PORT": "--port",
        "INFINITY_HOST": "--host",
        "INFINITY_URL_PREFIX": "--url-prefix",
    },
    port=7997,
    context=512,
    named=lambda weights: "/".join(weights.split("/")[-2:]),
    needs_gpu=False,
    closing=readers.rank_by_name,
)
