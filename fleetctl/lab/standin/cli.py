"""The `vllm` command line: `serve`, `--version`, `--help`."""

import sys

from . import VERSION
from .arguments import parse_serve, serve_help
from .follower import run_follower
from .log import log_to
from .server import run_server
from .settings import Control

USAGE = """usage: vllm [-h] [-v] {serve} ...

vLLM CLI (stand-in engine: answers with made-up text, loads no model)

positional arguments:
  {serve}
    serve        Launch a local OpenAI-compatible API server to serve LLM completions via HTTP.

options:
  -h, --help     show this help message and exit
  -v, --version  show program's version number and exit
"""


def main(argv: list[str]) -> int:
    """Run one `vllm` command; returns the exit status. Bad options exit with 2, as argparse does."""
    if argv[:1] in (["-v"], ["--version"]):
        print(VERSION)
        return 0
    if argv[:1] != ["serve"]:
        print(USAGE, end="")
        if not argv or argv[0] in ("-h", "--help"):
            return 0
        print(
            f"vllm: error: argument subparser: invalid choice: {argv[0]!r} (choose from 'serve')",
            file=sys.stderr,
        )
        return 2
    if {"--help", "-h", "--help=all"} & set(argv[1:]):
        print(serve_help(every_flag="--help=all" in argv))
        return 0
    args = parse_serve(argv[1:])
    control = Control(rank=args.node_rank)
    log_to("MainProcess" if args.headless else "APIServer")
    if args.headless:
        return run_follower(args, control)
    return run_server(args, control)
