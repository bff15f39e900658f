"""How ``text-embeddings-router`` spells things.

Sources: text-embeddings-inference 1.9.3, ``router/src/main.rs`` (flags; each is also a variable), ``Dockerfile*``
(PORT=80, and text-embeddings-router as entry point).
"""

from __future__ import annotations

import re

from fleetctl.importing import readers
from fleetctl.importing.dialect import Dialect

TEI = Dialect(
    runtime="text-embeddings-inference",
    programs={"text-embeddings-router": ()},
    sign=re.compile(r"(^|/)text-embeddings-inference([:@]|$)|text-embeddings-router"),
    image="ghcr.io/huggingface/text-embeddings-inference:latest",
    keys={
        "--model-id": readers.weights,
        "--served-model-name": readers.served,
        "--revision": readers.word_of("revision"),
        "--max-concurrent-requests": readers.number_of("--max-concurrent-requests", readers.put("concurrency")),
        "--port": readers.port,
        "--api-key": readers.api_key,
        "--hf-token": readers.hub_token,
        "--hf-api-token": readers.hub_token,
    },
    left_out={"--hostname": "", "--uds-path": ""},
    variables={
        "MODEL_ID": "--model-id",
        "SERVED_MODEL_NAME": "--served-model-name",
        "REVISION": "--revision",
        "MAX_CONCURRENT_REQUESTS": "--max-concurrent-requests",
        "PORT": "--port",
        "HOSTNAME": "--hostname",
        "UDS_PATH": "--uds-path",
    },
    port=3000,
    image_port=80,
    context=512,
    needs_gpu=False,
    closing=readers.rank_by_name,
)
