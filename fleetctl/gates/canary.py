"""The gate of long context: one long prompt, with something in its middle to be found."""

from __future__ import annotations

import math
from typing import Any

from fleetctl.engine.client import EngineClient, EngineError
from fleetctl.render.release import Engine
from fleetctl.spec.fleet_gates import LongContextGate

PHRASE = "amber 7431 falcon"
ANSWER = 64  # tokens for the answer; a model that thinks aloud first is given `max_tokens`
SAMPLE = 50  # lines whose tokens the engine counts, for the tokenizer is its own
LINE = 40  # tokens of a line at most: it has fewer bytes
MARGIN = 128  # tokens left free for the chat template
SHORTEST = 0.8  # part of the wanted tokens that the engine has to have counted: it did not cut the prompt


def wanted_tokens(engine: Engine, gate: LongContextGate) -> int:
    """Tokens of the prompt: as asked for, by default three quarters of the context, and never more than fit."""
    room = engine.context - gate.max_tokens - MARGIN
    return max(1, min(gate.tokens or 3 * engine.context // 4, room))


def pass_canary(engine: Engine, gate: LongContextGate, client: EngineClient) -> dict[str, Any]:
    """Ask. Raises EngineError when it is not answered, was cut, or (with ``find``) the phrase was not found."""
    model, wanted = engine.served_as[0], wanted_tokens(engine, gate)
    empty = client.counted_chat(model, _prompt(0), 1)
    sample = max(1, min(SAMPLE, (wanted - empty.prompt_tokens) // LINE))  # not more than fits a short context
    short = client.counted_chat(model, _prompt(sample), 1)
    per_line = (short.prompt_tokens - empty.prompt_tokens) / sample
    if per_line <= 0:
        raise EngineError("it does not say how many tokens a prompt has (usage.prompt_tokens)")
    lines = max(0, math.floor((wanted - empty.prompt_tokens) / per_line))
    told = client.counted_chat(model, _prompt(lines), gate.max_tokens)
    if told.prompt_tokens < SHORTEST * min(wanted, lines * per_line):
        raise EngineError(f"of a prompt of about {wanted:,} tokens it read {told.prompt_tokens:,}")
    if not told.text.strip():
        raise EngineError(f"a prompt of {told.prompt_tokens:,} tokens came back without text")
    if gate.find and "7431" not in told.text:
        raise EngineError(
            f"in a prompt of {told.prompt_tokens:,} tokens it did not find what stands in the middle", answer=told.text
        )
    return {"tokens": told.prompt_tokens, "seconds": round(told.total, 3)}


def _prompt(lines: int) -> str:
    """A log of so many lines, the phrase in the middle of it, and the question."""
    log = [f"Entry {number:06d}: nothing to report." for number in range(lines)]
    log.insert(lines // 2, f"Entry {lines // 2:06d}: the pass phrase is {PHRASE}.")
    text = "\n".join(log)
    return f"{text}\n\nWhat is the pass phrase in one of the entries above? Answer with the pass phrase only."
