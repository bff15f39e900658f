"""What fleetctl says of a cache, beside vLLM itself: its planner over many configurations, and real starts of it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fleetctl.capacity.attention import CPU, Launch
from fleetctl.capacity.config import read_shape
from fleetctl.capacity.headers import of_metadata
from fleetctl.capacity.logs import EngineLog, parse_log
from fleetctl.capacity.lora import lora_bytes
from fleetctl.capacity.matrices import adapted_width
from fleetctl.capacity.pages import Paging, page_model
from fleetctl.capacity.weights import weigh
from fleetctl.errors import SpecError
from fleetctl.lab.engines import engines_folder, vllm_folder
from fleetctl.lab.realvllm import ENGINE_ENVIRONMENT, install_vllm

from generated import cases  # isort: skip

HERE = Path(__file__).parent
EACH, SEED = 4, 20
CONTEXT, CACHE = 1024, 64 * 1024**2
PATIENCE = 900  # seconds; only ever spent by a test that fails

SMALL = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "max_position_embeddings": 2048}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
GATED = {
    "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], **SMALL, **HEADS, "num_hidden_layers": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
}  # fmt: skip
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SMALL, **HEADS, "num_hidden_layers": 3}
STATE = {"mamba_ssm_cache_dtype": "float32"}
"""Else the type of the state depends on what this machine's processor can do."""

LATENT = {
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], **SMALL, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": None, "n_routed_experts": 2,
    "first_k_dense_replace": 3, "moe_intermediate_size": 64, "n_group": 1, "topk_group": 1,
    "num_experts_per_tok": 1, "n_shared_experts": 1,
}  # fmt: skip
TWO = {"tensor_parallel_size": 2}

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "grouped-query": (LLAMA, {}, {}),
    "grouped-query in FP8": (LLAMA, {"kv_cache_dtype": "fp8_e5m2"}, {"kv": "fp8_e5m2"}),
    "multi-head": ({**LLAMA, "num_key_value_heads": 4}, {"max_model_len": 1000}, {"context": 1000}),
    "sliding window": (
        {
            "model_type": "mistral", "architectures": ["MistralForCausalLM"], **SMALL, **HEADS, "num_hidden_layers": 3,
            "sliding_window": 128,
        },
        {"max_model_len": 2048, "max_num_batched_tokens": 256},
        {"context": 2048, "batched_tokens": 256, "batches": 1},
    ),
    "window and full": (
        {
            "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], **SMALL, **HEADS, "num_hidden_layers": 5,
            "sliding_window": 128, "query_pre_attn_scalar": 32,
        },
        {},
        {},
    ),
    "latent": (LATENT, {}, {"prefix_caching": False}),
    "latent, the same on both ranks": (LATENT, TWO, {"tp": 2, "prefix_caching": False}),
    "one KV head, copied to both ranks": ({**LLAMA, "num_key_value_heads": 1}, TWO, {"tp": 2}),
    "gated delta net": (GATED, STATE, {"state": "float32"}),
    "Mamba-2": (
        {
            "model_type": "granitemoehybrid", "architectures": ["GraniteMoeHybridForCausalLM"], **SMALL, **HEADS,
            "num_hidden_layers": 5, "layer_types": ["mamba", "mamba", "attention", "mamba", "mamba"],
            "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_d_state": 64, "mamba_expand": 2,
            "num_local_experts": 0, "shared_intermediate_size": 256, "position_embedding_type": "rope",
        },
        STATE,
        {"state": "float32"},
    ),
}  # fmt: skip
"""Name → config.json, arguments of the engine, and the same for fleetctl."""


def ask(python: Path, script: str, lines: Sequence[dict[str, Any]]) -> str:
    """Run a script by the engine's Python, with a case a line; its output."""
    ran = subprocess.run(
        [str(python), "-I", str(HERE / script)],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **ENGINE_ENVIRONMENT, "NO_COLOR": "1"},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python of the engine, installed where it is missing."""
    return install_vllm(vllm_folder(engines_folder()), print) / "bin/python"


def paged(config: dict[str, Any], **settings: Any) -> Paging:
    return page_model(read_shape(json.dumps(config)), Launch(**settings))


def test_the_planner_of_vllm_comes_to_the_same_figures(python: Path) -> None:
    asked = cases(EACH, SEED)
    planned = [json.loads(line) for line in ask(python, "planner.py", asked).splitlines()]
    assert len(planned) == len(asked)
    wrong, compared = [], set()
    for case, plan in zip(asked, planned, strict=True):
        names = ("context", "tp", "pp", "kv", "spec_tokens", "prefix_caching", "batched_tokens")
        try:
            mine = paged(case["config"], **{name: case[name] for name in names})
        except SpecError as error:
            wrong += [] if "error" in plan else [(case, plan, error.message)]
            continue
        figures = {"starts": mine.starts(case["available"]), "block": mine.block}
        if plan.get("starts"):
            figures |= {"tokens": mine.tokens(case["available"]), "blocks": mine.blocks(case["available"])}
            compared.add(case["kind"])
        if figures != {name: plan.get(name) for name in figures}:
            wrong.append((case, plan, figures))
    assert wrong == []
    assert compared == {case["kind"] for case in asked}, "each kind of model was to be compared at least once"


def test_a_real_engine_logs_the_size_that_fleetctl_says(python: Path) -> None:
    usual = {"max_model_len": CONTEXT, "kv_cache_memory_bytes": CACHE}
    lines = [
        {"name": name, "config": config, "arguments": {**usual, **arguments}}
        for name, (config, arguments, _) in KINDS.items()
    ]
    said = sections(ask(python, "engine_cache.py", lines))
    logged = {name: (log.tokens, log.concurrency) for name, log in said.items()}
    mine = {}
    for name, (config, _, settings) in KINDS.items():
        paging = paged(config, **{"context": CONTEXT, "backend": CPU, **settings})
        mine[name] = (paging.tokens([CACHE]), round(paging.concurrency([CACHE]), 2))
    assert logged == mine


WEIGHED = {"grouped-query": (1, 4), "latent": (2,), "gated delta net": (2,), "Mamba-2": (2, 4)}
"""Kind of model → tensor-parallel ranks."""


def test_weights_on_a_rank_are_the_parameters_that_the_engine_makes(python: Path) -> None:
    lines = [{"config": KINDS[name][0], "tp": tp} for name, ranks in WEIGHED.items() for tp in ranks]
    said = [line[4:] for line in ask(python, "engine_weights.py", lines).splitlines() if line.startswith("=== ")]
    assert len(said) == len(lines)
    for line, answer in zip(lines, said, strict=True):
        made = json.loads(answer)
        shape, launch = read_shape(json.dumps(line["config"])), Launch(context=256, tp=line["tp"])
        (mine,) = weigh(of_metadata(made["tensors"], "transformers"), shape, launch).stages
        # What is left are vectors of states, which are divided, and counted whole.
        assert mine == pytest.approx(made["bytes"], rel=0.005), line


MIXTURE = {
    "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], **SMALL, **HEADS, "num_hidden_layers": 3,
    "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
ADAPTED = {
    "grouped-query": (LLAMA, 0.0),
    "a mixture": (MIXTURE, 0.0),
    "latent": (LATENT, 0.0),
    "gated delta net": (GATED, 0.06),
    "Mamba-2": (KINDS["Mamba-2"][0], 0.06),
}
"""Kind of model → config.json, and how far off its slots may be: vLLM joins and splits projections of states."""


def test_slots_for_adapters_are_what_the_engine_sets_aside(python: Path) -> None:
    slots, rank = 4, 16
    lines = [{"config": config, "slots": slots, "rank": rank} for config, _ in ADAPTED.values()]
    said = [line[4:] for line in ask(python, "engine_lora.py", lines).splitlines() if line.startswith("=== ")]
    assert len(said) == len(lines)
    wrong = []
    for (name, (config, margin)), answer in zip(ADAPTED.items(), said, strict=True):
        made = json.loads(answer)
        shape = read_shape(json.dumps(config))
        width = adapted_width(of_metadata(made["tensors"], "transformers"), shape)
        mine, engine = lora_bytes(shape, slots, rank, width=width), sum(made["bytes"].values())
        # Not every family adapts the embedding and the output layer; it is counted all the same.
        embedding = 2 * (shape.vocabulary + shape.hidden) * slots * rank * 2
        if not engine * (1 - margin) <= mine <= engine * (1 + margin) + embedding:
            wrong.append((name, mine, engine, made["bytes"]))
    assert wrong == []


def sections(output: str) -> dict[str, EngineLog]:
    """The log of each engine."""
    found = {}
    for part in output.split("=== begin ")[1:]:
        name, _, log = part.partition("\n")
        found[name] = parse_log(log.partition("=== end")[0])
        assert found[name].tokens, f"{name}: {log[-1500:]}"
    return found
