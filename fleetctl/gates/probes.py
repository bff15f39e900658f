"""The gate of same answers: a new build against the one that serves, by what both say to the same prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetctl.engine.client import EngineClient, EngineError
from fleetctl.engine.exchange import Exchange
from fleetctl.gates.failure import GateError
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
NAME = "same_answers"
SHOWN = 3  # differing answers that a failure shows


@dataclass(frozen=True)
class Said:
    """What an engine said to a prompt, and how that went over the wire."""

    text: str
    exchange: Exchange | None = None


def answers_of(url: str, model: str, gate: SameAnswersGate, socket: Path) -> list[Said]:
    """What an engine says to each prompt at temperature 0. Raises EngineError."""
    with EngineClient(url, socket=socket, timeout=gate.within) as client:
        try:
            return [
                Said(
                    client.counted_chat(model, prompt, gate.max_tokens, deterministic=True).text,
                    client.exchanges[-1],
                )
                for prompt in gate.prompts or PROMPTS
            ]
        except EngineError as error:
            error.exchanges = tuple(client.exchanges[-1:])
            raise


def pass_probes(engine_id: str, gate: SameAnswersGate, before: Sequence[str], now: Sequence[Said]) -> dict[str, Any]:
    """Compare. Raises GateError, with some of what differs, when too little is the same."""
    prompts = gate.prompts or PROMPTS
    if len(before) != len(now) or len(now) != len(prompts):
        raise GateError(engine_id, NAME, "the prompts changed while they were asked")
    other = [triple for triple in zip(prompts, before, now, strict=True) if _plain(triple[1]) != _plain(triple[2].text)]
    same = 1 - len(other) / len(prompts)
    if same < gate.at_least:
        shown = "\n".join(
            f"{prompt[:60]!r}: {was[:60]!r}, now {said.text[:60]!r}" for prompt, was, said in other[:SHOWN]
        )
        raise GateError(
            engine_id,
            NAME,
            f"{100 * same:.0f} % of its answers are those of the build that serves now, and "
            f"{100 * gate.at_least:.0f} % are wanted",
            answer=shown,
            exchanges=[said.exchange for _, _, said in other if said.exchange is not None],
        )
    return {"same": round(same, 3), "prompts": len(prompts)}


def _plain(text: str) -> str:
    return " ".join(text.split())
