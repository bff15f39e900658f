"""What an engine says about memory when it starts. Formats of vLLM from 0.6 (V0) to 0.32, told apart by their words.

Lines of several ranks may be in one log: values that each rank says are kept for all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

GIB = 1024**3

_NUMBER = r"(-?[0-9][0-9,]*(?:\.[0-9]+)?)"
_CACHE = re.compile(rf"(?:GPU|CPU|XPU|TPU|NPU) KV cache size: {_NUMBER} tokens")
_CONCURRENCY = re.compile(rf"Maximum concurrency for {_NUMBER} tokens per request: {_NUMBER}x")
_AVAILABLE = re.compile(rf"Available KV cache memory: {_NUMBER} GiB|reserved for KV Cache is {_NUMBER}GiB")
_ON_CPU = re.compile(rf"(?:Explicitly|Auto) set \({_NUMBER}/{_NUMBER}\)? ?(?:GiB|\) GiB) for KV cache")
_BESIDE = re.compile(rf"{_NUMBER} GiB memory was consumed by non-kv usages")
_LOADING = re.compile(
    rf"[Mm]odel loading took {_NUMBER} ?(GiB|GB)(?: memory)?(?: and {_NUMBER} seconds)?"
    rf"|[Ll]oading model weights took {_NUMBER} ?(GiB|GB)|model weights take {_NUMBER}(GiB)"
)
_BLOCKS = re.compile(rf"# \w+ blocks: {_NUMBER}, # CPU blocks")
_BLOCK_SIZE = re.compile(rf"Setting attention block size to {_NUMBER} tokens")
_PEAK = re.compile(rf"(?:PyTorch activation peak memory takes|torch peak memory increase:) {_NUMBER} ?GiB")
# Since 0.11, at the end of a start; until 0.2x weights and the rest were told apart.
_ACTUAL = re.compile(
    rf"Free memory on device \({_NUMBER}/{_NUMBER} GiB\) on startup\. Desired GPU memory utilization is"
    rf" \({_NUMBER}, {_NUMBER} GiB\)\. Actual usage is {_NUMBER} GiB for (weight|consumed)[^,]*,"
    rf" {_NUMBER} GiB for peak activation,(?: {_NUMBER} GiB for non-torch memory,)?"
    rf" and {_NUMBER} GiB for CUDAGraph memory"
)
_NON_TORCH = re.compile(rf"non_torch_memory takes {_NUMBER}GiB")
_GRAPHS = re.compile(
    rf"Graph capturing finished in {_NUMBER} secs?, took {_NUMBER} GiB|Estimated CUDA graph memory: {_NUMBER} GiB"
)
_SHARE = re.compile(rf"gpu_memory_utilization['\"]? ?[:=(]+ ?{_NUMBER}|--gpu-memory-utilization[ =]{_NUMBER}")
_TOTAL = re.compile(rf"total_gpu_memory \({_NUMBER}GiB\)")
_NOT_FREE = re.compile(
    rf"Free memory on device \S+ \({_NUMBER}/{_NUMBER} GiB\) on startup is less than desired GPU memory utilization"
    rf" \({_NUMBER}, {_NUMBER} GiB\)"
)
_TOO_SMALL = re.compile(
    rf"{_NUMBER} GiB KV cache is needed, which is larger than the available KV cache memory \({_NUMBER}"
)
# The first line of a start; where an engine runs without the API server, the second.
_STARTS = (re.compile(r"vLLM API server version"), re.compile(r"Initializing an? (?:V1 |V0 )?LLM engine"))
_VERSION = re.compile(r"vLLM API server version (\S+)|LLM engine \(v([^)]+)\)")


@dataclass(frozen=True)
class EngineLog:
    """What was found. Bytes and seconds; None where the log does not say. Tuples have one value for each rank."""

    version: str | None = None
    tokens: int | None = None
    """The cache's size."""
    context: int | None = None
    """max_model_len, which the concurrency is for."""
    concurrency: float | None = None
    available: tuple[int, ...] = ()
    """Memory for the cache."""
    weights: tuple[int, ...] = ()
    """What loading the model took."""
    load_seconds: float | None = None
    blocks: int | None = None
    block_size: int | None = None
    activations: int | None = None
    non_torch: int | None = None
    graphs: int | None = None
    share: float | None = None
    """gpu_memory_utilization"""
    total: int | None = None
    """Memory as the engine sees it."""
    beside: int | None = None
    """What an engine on a CPU takes besides its cache, weights included."""
    needed: int | None = None
    """Memory for one request of full context, where the engine refused to start for lack of it."""
    free: int | None = None
    """Free memory at the start, where the engine refused to start for lack of it."""

    @property
    def whole(self) -> bool:
        """Whether the log tells of a start that got as far as the cache."""
        return self.tokens is not None or self.blocks is not None


def parse_log(text: str) -> EngineLog:
    """Read the log of an engine; of several starts the last one counts."""
    text = _last_start(text)
    concurrency, cpu = _last(_CONCURRENCY, text), _last(_ON_CPU, text)
    loading = [_loading(match) for match in _LOADING.finditer(text)]
    refused, small = _last(_NOT_FREE, text), _last(_TOO_SMALL, text)
    available = tuple(_bytes(next(g for g in match.groups() if g)) for match in _AVAILABLE.finditer(text))
    if not available and cpu:
        available = (_bytes(cpu[1]),)
    if not available and small:
        available = (_bytes(small[2]),)
    graphs = _last(_GRAPHS, text)
    actual = _last(_ACTUAL, text)
    version, share, total = _last(_VERSION, text), _last(_SHARE, text), _last(_TOTAL, text)
    return EngineLog(
        version=(version[1] or version[2]) if version else None,
        tokens=_whole(_last(_CACHE, text)),
        context=_whole(concurrency),
        concurrency=_real(concurrency[2]) if concurrency else None,
        available=available,
        weights=tuple(size for size, _ in loading),
        load_seconds=max((seconds for _, seconds in loading if seconds is not None), default=None),
        blocks=_whole(_last(_BLOCKS, text)),
        block_size=_whole(_last(_BLOCK_SIZE, text)),
        activations=_bytes(actual[7]) if actual else _gib(_last(_PEAK, text)),
        non_torch=_bytes(actual[8]) if actual and actual[8] else _gib(_last(_NON_TORCH, text)),
        graphs=_bytes(graphs[2] or graphs[3]) if graphs else _bytes(actual[9]) if actual else None,
        share=_real(share[1] or share[2]) if share else _real(actual[3]) if actual else None,
        total=_total(refused, actual, cpu) or _gib(total),
        beside=_gib(_last(_BESIDE, text)),
        needed=_bytes(small[1]) if small else None,
        free=_bytes(refused[1]) if refused else None,
    )


def _total(*told: re.Match[str] | None) -> int | None:
    """The second figure of the first line that is there: memory as the engine sees it."""
    return next((_bytes(match[2]) for match in told if match), None)


def _last_start(text: str) -> str:
    for begin in _STARTS:
        found = _last(begin, text)
        if found:
            # Its own line, with what stands before the words.
            return text[text.rfind("\n", 0, found.start()) + 1 :]
    return text


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return max(pattern.finditer(text), key=lambda match: match.start(), default=None)


def _real(number: str) -> float:
    return float(number.replace(",", ""))


def _whole(match: re.Match[str] | None) -> int | None:
    return int(_real(match[1])) if match else None


def _bytes(number: str) -> int:
    return round(_real(number) * GIB)


def _gib(match: re.Match[str] | None) -> int | None:
    return _bytes(match[1]) if match else None


def _loading(match: re.Match[str]) -> tuple[int, float | None]:
    """Bytes and seconds of one "Model loading took". Older versions say GB and mean GiB."""
    size = match[1] or match[4] or match[6]
    return _bytes(size), _real(match[3]) if match[3] else None
