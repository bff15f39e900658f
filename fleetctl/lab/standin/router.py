"""`text-embeddings-router` 1.9 as far as fleetctl knows it: its flags, its answers, its metrics.

Read from its sources: `router/src/main.rs`, `router/src/http/server.rs`, `core/src/infer.rs`, `core/src/queue.rs`.
"""

import argparse
import json
import sys
from collections.abc import Awaitable, Callable

from .api import PROMETHEUS, Api, json_response
from .arguments import parse_serve
from .engine import Engine
from .httpd import Request, Response
from .log import log_to
from .server import run_server
from .settings import Control

VERSION = "1.9.3"
SWITCHES = "--json-output --disable-spans"
VALUES = """
    --revision --tokenization-workers --served-model-name --max-concurrent-requests --max-batch-tokens
    --max-batch-requests --max-client-batch-size --default-prompt-name --default-prompt --dense-path --hf-token
    --hostname --uds-path --huggingface-hub-cache --payload-limit --api-key --otlp-endpoint --otlp-service-name
    --prometheus-port --cors-allow-origin
"""
DRAIN = "30"  # it lets running requests finish after SIGTERM, for as long as they take


def build_parser() -> argparse.ArgumentParser:
    """Every option of the router; clap takes no beginning of an option for the option."""
    parser = argparse.ArgumentParser(prog="text-embeddings-router", allow_abbrev=False)
    parser.add_argument("--model-id", required=True)
    parser.add_argument("--port", "-p", default="3000")
    parser.add_argument("--dtype", choices=["float16", "float32"])
    parser.add_argument("--pooling", choices=["cls", "mean", "splade", "last-token"])
    parser.add_argument("--auto-truncate", nargs="?", const="true", default="true")
    for name in SWITCHES.split():
        parser.add_argument(name, action="store_true")
    for name in VALUES.split():
        parser.add_argument(name)
    parser.add_argument("--version", "-V", action="version", version=f"text-embeddings-router {VERSION}")
    return parser


class EncoderApi(Api):
    """Answers as the router does: it serves one model, and takes any name for it."""

    def __init__(self, engine: Engine, before_completion: Callable[[int], Awaitable[None]]) -> None:
        super().__init__(engine, before_completion)
        self.routes = {
            "/health": {"GET": self.health},
            "/": {"GET": self.health},
            "/ping": {"GET": self.health},
            "/info": {"GET": self.info},
            "/metrics": {"GET": self.metrics},
            "/v1/embeddings": {"POST": self.embeddings},
            "/rerank": {"POST": self.rerank},
        }

    async def info(self, _: Request) -> Response:
        """What is served, and how."""
        name = self.engine.args.served_model_name[0]
        told = {"model_id": self.engine.args.model, "served_model_name": name, "max_input_length": self.context()}
        return json_response({**told, "model_dtype": "float16", "version": VERSION})

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings; a name that it does not serve is a warning in its log."""
        body = {**self.read_json(request), "model": self.engine.args.served_model_name[0]}
        request.body = json.dumps(body).encode()
        return await super().embeddings(request)

    async def rerank(self, request: Request) -> Response:
        """POST /rerank: a list with index and score."""
        ranked = self.ranked(self.read_json(request), "texts")
        return json_response([{"index": index, "score": score} for index, _, score in ranked])

    async def metrics(self, _: Request) -> Response:
        """Prometheus text under the router's names."""
        engine = self.engine
        done = float(sum(engine.metrics.success.values()))
        lines = [
            "# TYPE te_request_success counter",
            f'te_request_success{{method="batch"}} {done}',
            "# TYPE te_embed_success counter",
            f"te_embed_success {done}",
            "# TYPE te_queue_size gauge",
            f"te_queue_size {engine.reported[1]}",
            "# TYPE te_request_input_length histogram",
            f"te_request_input_length_sum {engine.metrics.counters['prompt_tokens']}",
            f"te_request_input_length_count {done}",
        ]
        return Response(200, ("\n".join(lines) + "\n").encode(), PROMETHEUS)


def main(argv: list[str]) -> int:
    """Run the router; returns the exit status."""
    given = build_parser().parse_args(argv)
    words = [given.model_id, "--host", given.hostname or "0.0.0.0", "--port", given.port, "--runner", "pooling"]
    words += ["--served-model-name", given.served_model_name or given.model_id, "--max-model-len", "512"]
    log_to("router")
    return run_server(parse_serve([*words, "--shutdown-timeout", DRAIN]), Control(), EncoderApi)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
