"""Reading the `vllm serve` command line into a `ServeArgs`."""

import argparse
import json
import os
import re
from dataclasses import dataclass, field
from typing import Any

from . import flags

BATCHED_TOKENS = 8192
SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class ServeArgs:
    """What the stand-in acts on. Every other option is checked, then kept in `given` only."""

    model: str
    host: str
    port: int
    uds: str | None
    served_model_name: list[str]
    max_model_len: int | None
    max_num_seqs: int
    batched_tokens: int
    gpu_memory_utilization: float
    kv_cache_dtype: str
    kv_cache_memory_bytes: int | None
    block_size: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int
    headless: bool
    speculative_tokens: int
    api_keys: list[str]
    auto_tool_choice: bool
    prefix_caching: bool
    lora_modules: dict[str, str]
    enable_lora: bool
    max_lora_rank: int
    shutdown_timeout: int
    log_stats: bool
    access_log: bool
    given: dict[str, Any] = field(default_factory=dict)


def count(text: str) -> int:
    """`'25.6k'` → 25600, `'1K'` → 1024, `'7'` → 7."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text.strip())
    if match is None:
        return int(text)
    number, suffix = match.groups()
    if "." in number and suffix.isupper():
        raise argparse.ArgumentTypeError(
            f"Decimals are not allowed with binary suffixes like {suffix}. "
            f"Did you mean to use {number}{suffix.lower()} instead?"
        )
    return int(float(number) * SUFFIXES[suffix])


def length(text: str) -> int | None:
    """A count of tokens, or None for `auto` and `-1`: take what the model allows."""
    return None if text.strip().lower() in ("auto", "-1") else count(text)


def build_parser() -> argparse.ArgumentParser:
    """The parser with every option of vLLM 0.32; values not given are absent from its result."""
    parser = argparse.ArgumentParser(
        prog="vllm serve",
        usage="vllm serve [model_tag] [options]",
        argument_default=argparse.SUPPRESS,
        description="Launch a local OpenAI-compatible API server (stand-in engine).",
    )
    parser.add_argument("model_tag", nargs="?", help="The model tag to serve")
    kinds: list[tuple[str, dict[str, Any]]] = [
        (flags.SWITCH, {"action": "store_true"}),
        (flags.BOOLEAN, {"action": argparse.BooleanOptionalAction}),
        (flags.OPTIONAL, {"nargs": "?", "const": True}),
        (flags.TEXT, {}),
        (flags.INTEGER, {"type": int}),
        (flags.COUNT, {"type": count}),
        (flags.LENGTH, {"type": length}),
        (flags.NUMBER, {"type": float}),
        (flags.JSON, {"type": json.loads}),
        (flags.LIST, {"nargs": "+"}),
        (flags.APPEND, {"action": "append"}),
    ]
    for words, options in kinds:
        for word in words.split():
            spellings = word.split("=")
            choices = flags.CHOICES.get(spellings[0])
            more: dict[str, Any] = {"choices": list(map(options.get("type", str), choices.split()))} if choices else {}
            parser.add_argument(*spellings, **options, **more)
    return parser


def serve_help(every_flag: bool) -> str:
    """What `vllm serve --help=all` prints; without `=all` vLLM lists groups of flags and no flag."""
    parser = build_parser()
    if every_flag:
        return parser.format_help()
    return f"{parser.format_usage()}\nUse `--help=all` to show all available flags at once."


def normalise(argv: list[str]) -> list[str]:
    """Turn vLLM's free spellings into plain options.

    `--max_model_len` becomes `--max-model-len`, `-O3` becomes `--optimization-level 3`, and
    `--speculative-config.method mtp` is collected into one JSON value per option.
    """
    plain: list[str] = []
    nested: dict[str, dict[str, Any]] = {}
    words = iter(argv)
    for word in words:
        if not word.startswith("--"):
            match = re.fullmatch(r"-O=?(\d)", word)
            plain += ["--optimization-level", match.group(1)] if match else [word]
            continue
        name, equals, value = word.partition("=")
        option, dot, path = name.partition(".")
        option = option.replace("_", "-")
        if not dot:
            plain.append(option + equals + value)
            continue
        text = value if equals else next(words, "")
        target = nested.setdefault(option, {})
        *parents, last = path.rstrip("+").split(".")
        for key in parents:
            target = target.setdefault(key, {})
        if path.endswith("+"):
            target.setdefault(last, []).extend(text.split(","))
        else:
            target[last] = json_or_text(text)
    for option, content in nested.items():
        plain += [option, json.dumps(content)]
    return plain


def json_or_text(text: str) -> Any:
    """The JSON value that `text` spells, or the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def lora_modules(parser: argparse.ArgumentParser, entries: list[str]) -> dict[str, str]:
    """`name=path` pairs or JSON objects → adapter name to path."""
    modules: dict[str, str] = {}
    for entry in entries:
        content = json_or_text(entry)
        if isinstance(content, dict) and "name" in content:
            modules[content["name"]] = content.get("path", "")
        elif isinstance(content, str) and "=" in content:
            name, _, path = content.partition("=")
            modules[name] = path
        else:
            parser.error(f"Invalid fields for --lora-modules: {entry}")
    return modules


def check_supported(given: dict[str, Any]) -> None:
    """Refuse what would be silently wrong here. Raises NotImplementedError naming the option."""
    several = {"data_parallel_size", "api_server_count"}
    for name in ("config", "grpc", "ssl_keyfile", "ssl_certfile", *sorted(several)):
        value = given.get(name)
        if value and not (name in several and value == 1):
            raise NotImplementedError(f"the stand-in engine has no --{name.replace('_', '-')}")
    if given.get("node_rank", 0) and not given.get("headless"):
        raise NotImplementedError("the stand-in engine needs --headless on every rank but 0")


def check_parsers(given: dict[str, Any]) -> None:
    """Refuse what vLLM refuses before it loads; the messages are its own. Raises TypeError or KeyError."""
    tool, reasoning = given.get("tool_call_parser"), given.get("reasoning_parser")
    if given.get("enable_auto_tool_choice"):
        if not tool:
            raise TypeError("Error: --enable-auto-tool-choice requires --tool-call-parser")
        known = flags.TOOL_PARSERS.split()
        if tool not in known and not given.get("tool_parser_plugin"):
            raise KeyError(f"invalid tool call parser: {tool} (chose from {{ {','.join(known)} }})")
    known = flags.REASONING_PARSERS.split()
    if reasoning and reasoning not in known and not given.get("reasoning_parser_plugin"):
        raise KeyError(f"invalid reasoning parser: {reasoning} (chose from {{ {','.join(known)} }})")


def check_ranks(given: dict[str, Any]) -> None:
    """Refuse nodes and ranks that do not fit together; the messages are vLLM's. Raises ValueError."""
    nodes, rank = given.get("nnodes", 1), given.get("node_rank", 0)
    world = given.get("tensor_parallel_size", 1) * given.get("pipeline_parallel_size", 1)
    if world % nodes:
        raise ValueError(
            f"Invalid data-parallel launch options: `--nnodes {nodes}` must evenly divide the total world "
            f"size ({world}). Adjust `--nnodes`, `--data-parallel-size`, `--pipeline-parallel-size`, "
            "`--tensor-parallel-size`, or `--prefill-context-parallel-size`."
        )
    if not 0 <= rank < nodes:
        raise ValueError(
            f"Invalid data-parallel launch options: `--node-rank` must be between 0 and {nodes - 1}; got "
            f"`--node-rank {rank}`. Set it to this node's zero-based index."
        )


def check_batches(given: dict[str, Any]) -> None:
    """Refuse batches with less than a token for each request; the message is vLLM's. Raises ValueError."""
    tokens, sequences = given.get("max_num_batched_tokens") or BATCHED_TOKENS, given.get("max_num_seqs", 256)
    if tokens < sequences:
        raise ValueError(
            f"max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({sequences})."
        )


def parse_serve(argv: list[str]) -> ServeArgs:
    """Parse what follows `vllm serve`. A wrong option prints argparse's message and exits with status 2."""
    parser = build_parser()
    given = vars(parser.parse_args(normalise(argv)))
    check_supported(given)
    check_parsers(given)
    model = given.get("model_tag") or given.get("model") or "Qwen/Qwen3-0.6B"
    check_ranks(given)
    check_batches(given)
    speculative = given.get("speculative_config") or {}
    environment_key = os.environ.get("VLLM_API_KEY")
    return ServeArgs(
        model=model,
        host=given.get("host") or "",
        port=given.get("port", 8000),
        uds=given.get("uds"),
        served_model_name=given.get("served_model_name") or [model],
        max_model_len=given.get("max_model_len"),
        max_num_seqs=given.get("max_num_seqs", 256),
        batched_tokens=given.get("max_num_batched_tokens") or BATCHED_TOKENS,
        gpu_memory_utilization=given.get("gpu_memory_utilization", 0.92),
        kv_cache_dtype=given.get("kv_cache_dtype", "auto"),
        kv_cache_memory_bytes=given.get("kv_cache_memory_bytes"),
        block_size=given.get("block_size", 16),
        tensor_parallel_size=given.get("tensor_parallel_size", 1),
        pipeline_parallel_size=given.get("pipeline_parallel_size", 1),
        nnodes=given.get("nnodes", 1),
        node_rank=given.get("node_rank", 0),
        master_addr=given.get("master_addr", "127.0.0.1"),
        master_port=given.get("master_port", 29501),
        headless=given.get("headless", False),
        speculative_tokens=speculative.get("num_speculative_tokens", 1) if speculative else 0,
        api_keys=given.get("api_key") or ([environment_key] if environment_key else []),
        auto_tool_choice=given.get("enable_auto_tool_choice") or False,
        prefix_caching=given.get("enable_prefix_caching", True) is not False,
        lora_modules=lora_modules(parser, given.get("lora_modules", [])),
        enable_lora=given.get("enable_lora") or False,
        max_lora_rank=int(given.get("max_lora_rank", 16)),
        shutdown_timeout=given.get("shutdown_timeout", 0),
        log_stats=not given.get("disable_log_stats", False),
        access_log=not given.get("disable_uvicorn_access_log", False),
        given=given,
    )
