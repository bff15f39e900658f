"""What engines of several versions say when they start."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.capacity.logs import EngineLog, parse_log

GIB = 1024**3


def said(**values: object) -> dict[str, object]:
    return values


LINES: list[tuple[str, str, dict[str, object]]] = [
    (
        "0.32, CPU",
        "(EngineCore pid=6925) INFO 11-30 10:47:15 [kv_cache_utils.py:2327] CPU KV cache size: 233,016 tokens, Maximum"
        " concurrency for 1,024 tokens per request: 227.56x\n"
        "(Worker pid=8264) INFO [cpu_worker.py:260] Explicitly set (0.12/15.21) GiB for KV cache on node 0.",
        said(
            tokens=233016,
            context=1024,
            concurrency=227.56,
            available=(round(0.12 * GIB),),
            total=round(15.21 * GIB),
        ),
    ),
    (
        "0.32, CPU without a cache in bytes",
        "INFO [cpu_worker.py:260] Auto set (0.22/15.21) GiB for KV cache on node 0, with 0.76 GiB requested memory for"
        " the worker. 0.54 GiB memory was consumed by non-kv usages.",
        said(available=(round(0.22 * GIB),), total=round(15.21 * GIB), beside=round(0.54 * GIB)),
    ),
    (
        "0.32, two ranks",
        "(Worker_TP0 pid=1) INFO [gpu_worker.py:759] Available KV cache memory: 8.33 GiB\n"
        "(Worker_TP1 pid=2) INFO [gpu_worker.py:759] Available KV cache memory: 8.21 GiB\n"
        "(Worker_TP0 pid=1) INFO [gpu_model_runner.py:5150] Model loading took 79.07 GiB memory and 61.500000 seconds\n"
        "(Worker_TP1 pid=2) INFO [gpu_model_runner.py:5150] Model loading took 79.06 GiB memory and 64.250000 seconds",
        said(
            available=(round(8.33 * GIB), round(8.21 * GIB)),
            weights=(round(79.07 * GIB), round(79.06 * GIB)),
            load_seconds=64.25,
        ),
    ),
    (
        "0.9: two lines",
        "INFO 06-01 12:00:00 [kv_cache_utils.py:715] GPU KV cache size: 499,110 tokens\n"
        "INFO 06-01 12:00:00 [kv_cache_utils.py:719] Maximum concurrency for 262,144 tokens per request: 1.90x\n"
        "INFO 06-01 12:00:00 [gpu_model_runner.py:1600] Model loading took 14.9889 GiB and 3.5 seconds",
        said(tokens=499110, context=262144, concurrency=1.9, weights=(round(14.9889 * GIB),), load_seconds=3.5),
    ),
    (
        "V0",
        "INFO 02-14 the current vLLM instance can use total_gpu_memory (44.42GiB) x gpu_memory_utilization (0.90)"
        " = 39.98GiB\n"
        "INFO 02-14 model weights take 30.71GiB; non_torch_memory takes 0.30GiB; PyTorch activation peak memory takes"
        " 1.26GiB; the rest of the memory reserved for KV Cache is 7.71GiB.\n"
        "INFO 02-14 executor_base.py:111] # CUDA blocks: 3947, # CPU blocks: 2048\n"
        "INFO 02-14 executor_base.py:116] Maximum concurrency for 32768 tokens per request: 1.93x",
        said(
            total=round(44.42 * GIB),
            share=0.9,
            weights=(round(30.71 * GIB),),
            non_torch=round(0.30 * GIB),
            activations=round(1.26 * GIB),
            available=(round(7.71 * GIB),),
            blocks=3947,
            context=32768,
            concurrency=1.93,
        ),
    ),
    (
        "V0, older",
        "INFO 10-01 model_runner.py:1008] Loading model weights took 14.9888 GB\n"
        "INFO 10-01 gpu_executor.py:122] # GPU blocks: 2000, # CPU blocks: 512",
        said(weights=(round(14.9888 * GIB),), blocks=2000),
    ),
    (
        "a hybrid model",
        "INFO [interface.py:1096] Setting attention block size to 1568 tokens to ensure that attention page size is >="
        " mamba page size.\nINFO [gpu_model_runner.py:6582] Graph capturing finished in 12 secs, took 0.62 GiB",
        said(block_size=1568, graphs=round(0.62 * GIB)),
    ),
    (
        "memory that moved: the cache is larger than it should be",
        "INFO Estimated CUDA graph memory: -20.50 GiB total\nINFO Available KV cache memory: 90.60 GiB",
        said(graphs=round(-20.5 * GIB), available=(round(90.6 * GIB),)),
    ),
    (
        "C14: not enough free at the start",
        "ValueError: Free memory on device cuda:0 (36.75/121.63 GiB) on startup is less than desired GPU memory"
        " utilization (0.85, 103.38 GiB). Decrease GPU memory utilization",
        said(free=round(36.75 * GIB), total=round(121.63 * GIB)),
    ),
    (
        "not room for one request",
        "ValueError: To serve at least one request with the model's max seq len (196608), 23.25 GiB KV cache is needed,"
        " which is larger than the available KV cache memory (22.5 GiB). Based on the available memory, the estimated"
        " maximum model length is 190272.",
        said(needed=round(23.25 * GIB), available=(round(22.5 * GIB),)),
    ),
    (
        "the version and the share",
        "INFO [utils.py:299] vLLM API server version 0.26.0\n"
        "INFO [api_utils.py:286] non-default args: {'gpu_memory_utilization': 0.74, 'max_model_len': 262144}",
        said(version="0.26.0", share=0.74),
    ),
    (
        "0.32: all of it in one line, with CUDA graphs in the peak",
        "(Worker_TP0 pid=223) INFO 08-22 04:42:13 [gpu_worker.py:789] Free memory on device (30.27/31.4 GiB) on"
        " startup. Desired GPU memory utilization is (0.92, 28.88 GiB). Actual usage is 15.03 GiB for consumed memory"
        " (weights + non-torch), 1.59 GiB for peak activation, and 0.09 GiB for CUDAGraph memory. Replace"
        " gpu_memory_utilization config with `--kv-cache-memory=12917635953` (12.03 GiB) to fit into requested memory."
        " Current kv cache memory in use is 12.26 GiB.",
        said(activations=round(1.59 * GIB), graphs=round(0.09 * GIB), share=0.92, total=round(31.4 * GIB)),
    ),
    (
        "0.11: the same, told apart",
        "INFO 09-23 18:12:39 [gpu_worker.py:391] Free memory on device (78.66/79.19 GiB) on startup. Desired GPU memory"
        " utilization is (0.9, 71.27 GiB). Actual usage is 14.08 GiB for weight, 1.97 GiB for peak activation, 0.07 GiB"
        " for non-torch memory, and 0.67 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with",
        said(
            activations=round(1.97 * GIB),
            non_torch=round(0.07 * GIB),
            graphs=round(0.67 * GIB),
            share=0.9,
            total=round(79.19 * GIB),
        ),
    ),
    ("nothing of memory", "INFO: Application startup complete.", {}),
]


@pytest.mark.parametrize(("text", "expected"), [line[1:] for line in LINES], ids=[line[0] for line in LINES])
def test_each_version_is_understood(text: str, expected: dict[str, object]) -> None:
    empty = asdict(EngineLog())
    assert asdict(parse_log(text)) == {**empty, **expected}


@pytest.mark.parametrize(
    "begin",
    [
        "INFO [utils.py:299] vLLM API server version 0.32.0\n",
        "INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0)\n",
    ],
)
def test_of_several_starts_in_one_log_the_last_one_counts(begin: str) -> None:
    start = (
        "INFO Model loading took {0} GiB memory and 5.0 seconds\nINFO Available KV cache memory: {0} GiB\n"
        "INFO GPU KV cache size: {0},000 tokens, Maximum concurrency for 1,024 tokens per request: {0}.00x\n"
    )
    log = parse_log(begin + start.format(9) + begin + start.format(7))
    assert (log.tokens, log.weights, log.available) == (7000, (7 * GIB,), (7 * GIB,))
    assert log.whole


def test_a_log_without_a_cache_is_not_of_a_whole_start() -> None:
    assert not parse_log("Available KV cache memory: 3 GiB").whole


@given(st.text())
def test_whatever_a_log_says_it_is_read(text: str) -> None:
    assert isinstance(parse_log(text), EngineLog)
