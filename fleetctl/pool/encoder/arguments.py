"""The command line of the server. Names are vLLM's where it has the same option. Pure but for counting cores."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

BATCH_TOKENS = 2048


@dataclass(frozen=True)
class Arguments:
    """How the server was started."""

    model: Path
    names: tuple[str, ...]
    uds: Path | None
    host: str
    port: int
    most_batch_tokens: int
    most_tokens: int | None
    threads: int
    provider: str


def read_arguments(argv: Sequence[str] | None = None) -> Arguments:
    """From the command line. Ends the program with status 2 where it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m fleetctl.pool.encoder", description="Serve an embedding model.")
    add = parser.add_argument
    add("--model", required=True, type=Path, metavar="FOLDER", help="as sentence-transformers writes it")
    add("--served-model-name", nargs="+", metavar="NAME", help="names that clients use (default: the folder's)")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--uds", type=Path, metavar="PATH", help="listen on this Unix socket")
    where.add_argument("--port", type=_whole(0, 65535), help="listen on this port; 0: any that is free")
    add("--host", default="127.0.0.1", help="with --port (default: 127.0.0.1)")
    add("--max-model-len", type=_whole(1), metavar="TOKENS", help="longest input (default: what the folder says)")
    told = "tokens of a batch with its padding (default: %(default)s); a longer input is a batch of its own"
    add("--max-batch-tokens", type=_whole(1), default=BATCH_TOKENS, metavar="TOKENS", help=told)
    add("--threads", type=_whole(1), default=_cores(), help="cores to compute on (default: those that it may use)")
    told = "execution provider of ONNX Runtime (default: %(default)s)"
    add("--provider", default="CPUExecutionProvider", metavar="NAME", help=told)
    read = parser.parse_args(argv)
    return Arguments(
        read.model,
        tuple(read.served_model_name or [read.model.resolve().name]),
        read.uds,
        read.host,
        read.port or 0,
        read.max_batch_tokens,
        read.max_model_len,
        read.threads,
        read.provider,
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _whole(least: int, most: int = 1 << 31) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not from {least} to {most}")
        return value

    return number
