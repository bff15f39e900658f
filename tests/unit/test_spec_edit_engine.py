"""Settings that were tried are written into fleet.yaml where they belong, and nothing else changes."""

from __future__ import annotations

import pytest
from test_spec_edit_concurrency import HEAD, changed

from fleetctl.errors import SpecError
from fleetctl.spec.edit_engine import EngineSettings, with_engine_settings

COPIES = "  one: {m: {copies: [a, b], concurrency: 12}}  # ours\n"
SPECULATIVE = HEAD.replace("launch:", "speculative: {method: mtp, num_speculative_tokens: 2}, launch:")


@pytest.mark.parametrize(
    ("head", "layouts", "wanted", "lines"),
    [
        (
            HEAD,
            COPIES,
            EngineSettings(batched_tokens=4096),
            [
                "-   one: {m: {copies: [a, b], concurrency: 12}}  # ours",
                '+   one: {m: {copies: [a, b], concurrency: 12, arguments: [--max-num-batched-tokens, "4096"]}}'
                "  # ours",
            ],
        ),
        (
            HEAD,
            "  one:\n    m:\n      copies: [a, b]\n      arguments: [--seed, '7', --max_num_batched_tokens=2048, -x]\n",
            EngineSettings(batched_tokens=4096),
            [
                "-       arguments: [--seed, '7', --max_num_batched_tokens=2048, -x]",
                "+       arguments: [--seed, '7', --max_num_batched_tokens=4096, -x]",
            ],
        ),
        (
            HEAD,
            "  one:\n    m:\n      copies: [a, b]\n      arguments:\n        - --seed\n        - '7'  # luck\n",
            EngineSettings(batched_tokens=4096),
            ["+         - --max-num-batched-tokens", '+         - "4096"'],
        ),
        (
            HEAD.replace("launch:", "arguments: [--max-num-batched-tokens, '2048'], launch:"),
            COPIES,
            EngineSettings(batched_tokens=4096),
            [
                "-   m: {weights: org/m, context: 8192, arguments: [--max-num-batched-tokens, '2048'], "
                "launch: {venv: /opt/vllm}}",
                '+   m: {weights: org/m, context: 8192, arguments: [--max-num-batched-tokens, "4096"], '
                "launch: {venv: /opt/vllm}}",
            ],
        ),
        (
            HEAD,
            "  one:\n    m:\n      copies:\n"
            "        a: {arguments: [--max-num-batched-tokens, '1024']}  # small\n        b:\n",
            EngineSettings(batched_tokens=4096),
            [
                "-         a: {arguments: [--max-num-batched-tokens, '1024']}  # small",
                '+         a: {arguments: [--max-num-batched-tokens, "4096"]}  # small',
            ],
        ),
        (
            SPECULATIVE,
            COPIES,
            EngineSettings(speculative_tokens=4),
            [
                "-   m: {weights: org/m, context: 8192, speculative: {method: mtp, num_speculative_tokens: 2}, "
                "launch: {venv: /opt/vllm}}",
                "+   m: {weights: org/m, context: 8192, speculative: {method: mtp, num_speculative_tokens: 4}, "
                "launch: {venv: /opt/vllm}}",
            ],
        ),
        (
            HEAD,
            COPIES,
            EngineSettings(share=0.74),
            [
                "-   one: {m: {copies: [a, b], concurrency: 12}}  # ours",
                "+   one: {m: {copies: {a: {gpu_memory_utilization: 0.74}, b: {}}, concurrency: 12}}  # ours",
            ],
        ),
        (
            HEAD,
            "  one:\n    m:\n      copies:\n        a: {concurrency: 4}  # old\n        b:  # new\n",
            EngineSettings(share=0.74),
            [
                "-         a: {concurrency: 4}  # old",
                "+         a: {concurrency: 4, gpu_memory_utilization: 0.74}  # old",
            ],
        ),
        (
            HEAD,
            "  one:\n    m:\n      copies:\n        - a\n        - b\n      concurrency: 4\n",
            EngineSettings(share=0.74),
            [
                "-         - a",
                "-         - b",
                "+         a: {gpu_memory_utilization: 0.74}",
                "+         b: {}",
            ],
        ),
        (HEAD, COPIES, EngineSettings(), []),
    ],
    ids=["new", "=", "a block", "of the model", "of one copy", "drafts", "a list", "a mapping", "a block list", "-"],
)
def test_it_is_set_where_it_stands_or_belongs(
    head: str, layouts: str, wanted: EngineSettings, lines: list[str]
) -> None:
    after = with_engine_settings(head + layouts, "one", "m", ["a"], wanted)
    assert sorted(changed(head + layouts, after)) == sorted(lines)


def test_several_at_once_and_on_both_copies() -> None:
    wanted = EngineSettings(batched_tokens=2048, speculative_tokens=3, share=0.5)
    after = with_engine_settings(SPECULATIVE + COPIES, "one", "m", ["a", "b"], wanted)
    assert "copies: {a: {gpu_memory_utilization: 0.5}, b: {gpu_memory_utilization: 0.5}}" in after
    assert "num_speculative_tokens: 3" in after and '--max-num-batched-tokens, "2048"' in after


@pytest.mark.parametrize(
    ("head", "layouts", "wanted", "told"),
    [
        (HEAD, COPIES, EngineSettings(speculative_tokens=2), "num_speculative_tokens: 2"),
        (HEAD, COPIES, EngineSettings(share=0.99), "0.99"),
        (
            HEAD,
            "  one:\n    m:\n      copies:\n        - a\n        - b  # slow\n        # end\n",
            EngineSettings(share=0.5),
            "write this under layouts: one: m: copies: a",
        ),
        (
            HEAD,
            "  one: {m: &p {copies: [a], concurrency: 4}}\n  two: {m: *p}\n",
            EngineSettings(batched_tokens=4096),
            "write this under layouts: one: m",
        ),
    ],
)
def test_what_would_change_more_or_cannot_be_is_refused(
    head: str, layouts: str, wanted: EngineSettings, told: str
) -> None:
    with pytest.raises(SpecError) as caught:
        with_engine_settings(head + layouts, "one", "m", ["a"], wanted)
    assert told in str(caught.value)
