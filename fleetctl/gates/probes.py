"""The gate of same answers: a new build against the one that serves, by what both say to the same prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fleetctl.engine.client import EngineClient, EngineError
from fleetctl.spec.fleet_gates import SameAnswersGate

PROMPTS = (
    "Write the numbers from one to five as words, separated by commas.",
    "What is 12 times 12? Answer with the number only.",
    "Name the capital of Japan in one word.",
    "Spell the word 'engine' backwards.",
    "Which is heavier, a kilogram of iron or a kilogram of feathers? One sentence.",
    "Translate 'good morning' into French. Only the translation.",
    "Is 91 a prime number? Answer yes or no.",
    'Return exactly this JSON and nothing else: {"status": "ok"}',
    "What comes next: 2, 4, 8, 16? Only the number.",
    "Finish the proverb with its last word only: A stitch in time saves",
)
SHOWN = 3  # differing answers that a failure shows


def answers_of(url: str, model: str, gate: SameAnswersGate, socket: Path) -> list[str]:
    """What an engine says to each prompt at temperature 0. Raises EngineError."""
    with EngineClient(url, socket=socket, timeout=gate.within) as client:
        return [
            client.counted_chat(model, prompt, gate.max_tokens, deterministic=True).text
            for prompt in gate.prompts or PROMPTS
        ]


def pass_probes(engine_id: str, gate: SameAnswersGate, before: Sequence[str], now: Sequence[str]) -> dict[str, Any]:
    """Compare. Raises EngineError, with some of what differs, when too little is the same."""
    prompts = gate.prompts or PROMPTS
    if len(before) != len(now) or len(now) != len(prompts):
        raise EngineError(f"{engine_id} failed the gate same_answers: the prompts changed while they were asked")
    other = [triple for triple in zip(prompts, before, now, strict=True) if _plain(triple[1]) != _plain(triple[2])]
    same = 1 - len(other) / len(prompts)
    if same < gate.at_least:
        shown = "\n".join(f"{prompt[:60]!r}: {was[:60]!r}, now {is_[:60]!r}" for prompt, was, is_ in other[:SHOWN])
        raise EngineError(
            f"{engine_id} failed the gate same_answers: {100 * same:.0f} % of its answers are those of the build that "
            f"serves now, and {100 * gate.at_least:.0f} % are wanted",
            answer=shown,
        )
    return {"same": round(same, 3), "prompts": len(prompts)}


def _plain(text: str) -> str:
    return " ".join(text.split())
