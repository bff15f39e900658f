"""`python -m sglang.launch_server` 0.5 as far as fleetctl knows it: its flags, its model list, its metrics.

Read from the sources of sglang 0.5.23: `srt/arg_groups/fields`, `srt/entrypoints/http_server.py`,
`srt/observability/metrics_collector.py`. What it takes for a split becomes what `vllm serve` takes for one.
"""

import argparse
import os

from .api import PROMETHEUS, Api
from .arguments import parse_serve
from .errors import plain_status
from .follower import run_follower
from .httpd import Request, Response
from .log import log_to
from .server import run_server
from .settings import Control

KV_DTYPES = ["auto", "fp8_e5m2", "fp8_e4m3", "mxfp8", "bf16", "bfloat16", "nvfp4", "fp4_mx_block16"]
DRAIN = "30"  # it lets running requests finish after SIGTERM


def build_parser() -> argparse.ArgumentParser:
    """The options that fleetctl sets, and a few that people do."""
    parser = argparse.ArgumentParser(prog="sglang serve")
    add = parser.add_argument
    add("--model-path", "--model", required=True)
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=30000)
    add("--served-model-name")
    add("--revision")
    add("--context-length", type=int)
    add("--mem-fraction-static", type=float)
    add("--max-running-requests", type=int)
    add("--max-total-tokens", type=int)
    add("--kv-cache-dtype", choices=KV_DTYPES, default="auto")
    add("--tp-size", "--tensor-parallel-size", type=int, default=1)
    add("--pp-size", "--pipeline-parallel-size", type=int, default=1)
    add("--nnodes", type=int, default=1)
    add("--node-rank", type=int, default=0)
    add("--dist-init-addr", "--nccl-init-addr")
    add("--speculative-algorithm")
    add("--speculative-draft-model-path")
    add("--speculative-num-steps", type=int)
    add("--speculative-eagle-topk", type=int)
    add("--speculative-num-draft-tokens", type=int)
    add("--tool-call-parser")
    add("--reasoning-parser")
    add("--random-seed", type=int)
    for name in ("--enable-metrics", "--is-embedding", "--trust-remote-code", "--disable-radix-cache"):
        add(name, action="store_true")
    return parser


def as_vllm(given: argparse.Namespace) -> list[str]:
    """The same engine in the words of `vllm serve`."""
    words = [given.model_path, "--host", given.host, "--port", str(given.port)]
    words += ["--served-model-name", given.served_model_name or given.model_path, "--shutdown-timeout", DRAIN]
    words += ["--max-model-len", str(given.context_length)] if given.context_length else []
    words += ["--max-num-seqs", str(given.max_running_requests)] if given.max_running_requests else []
    words += ["--gpu-memory-utilization", str(given.mem_fraction_static)] if given.mem_fraction_static else []
    words += ["-tp", str(given.tp_size), "-pp", str(given.pp_size)]
    if given.nnodes > 1:
        address, _, port = given.dist_init_addr.rpartition(":")
        words += ["--nnodes", str(given.nnodes), "--node-rank", str(given.node_rank)]
        words += ["--master-addr", address.strip("[]"), "--master-port", port]
        words += ["--headless"] if given.node_rank else []
    return words


class SglangApi(Api):
    """Answers as SGLang does; without --enable-metrics there is no /metrics."""

    async def metrics(self, _: Request) -> Response:
        """Prometheus text under SGLang's names."""
        if os.environ.get("STANDIN_SGLANG_METRICS") != "yes":
            raise plain_status(404)
        engine = self.engine
        running, waiting, usage = engine.reported
        counters = engine.metrics.counters
        first = engine.metrics.histograms["time_to_first_token_seconds"]
        labels = f'model_name="{engine.args.served_model_name[0]}",engine_type="unified",tp_rank="0",pp_rank="0"'
        values = {
            "num_running_reqs": running,
            "num_queue_reqs": waiting,
            "token_usage": usage,
            "max_total_num_tokens": engine.cache_tokens,
            "prompt_tokens_total": counters["prompt_tokens"],
            "generation_tokens_total": counters["generation_tokens"],
            "cached_tokens_total": counters["prompt_tokens_cached"],
            "num_requests_total": sum(engine.metrics.success.values()),
            "time_to_first_token_seconds_sum": first.sum,
            "time_to_first_token_seconds_count": sum(first.counts),
        }
        lines = [f"sglang:{name}{{{labels}}} {float(value)}" for name, value in values.items()]
        return Response(200, ("\n".join(lines) + "\n").encode(), PROMETHEUS)


def main(argv: list[str]) -> int:
    """Run one rank; returns the exit status."""
    given = build_parser().parse_args(argv)
    if given.enable_metrics:
        os.environ["STANDIN_SGLANG_METRICS"] = "yes"
    args = parse_serve(as_vllm(given))
    control = Control(rank=args.node_rank)
    log_to("MainProcess" if args.headless else "APIServer")
    return run_follower(args, control) if args.headless else run_server(args, control, SglangApi)
