"""Gates of engines that generate nothing: vectors that can be used, and documents in the right order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fleetctl.engine.client import EngineClient, EngineError
from fleetctl.engine.runtimes.known import RUNTIMES
from fleetctl.render.release import Engine
from fleetctl.spec.fleet_gates import EmbeddingGate

TEXTS = (
    "The ferry to the island leaves at nine in the morning.",
    "A boat goes to the island at nine.",
    "Photosynthesis turns light into sugar.",
)
QUERY = "When does the ferry to the island leave?"
ALIKE = 0.999
"""Cosine of two vectors of one text, asked for alone and with others: batches differ in the last bits of 16."""
DIFFERENT = 0.9999
"""Cosine above which two vectors of different texts are the same vector."""
UNIT = 0.02
"""How far from 1 the length of a normalised vector of 16-bit numbers may be."""


def embedding(engine: Engine, client: EngineClient, gate: EmbeddingGate) -> dict[str, Any]:
    """Vectors of three texts together, and of the first once more alone. Raises EngineError saying what is wrong."""
    model = engine.served_as[0]
    together = client.embed(model, TEXTS)
    alone = client.embed(model, TEXTS[:1])[0]
    for vector in (*together, alone):
        _check(vector, gate)
    lengths = {len(vector) for vector in (*together, alone)}
    if len(lengths) > 1:
        raise EngineError(f"its vectors have different lengths: {', '.join(map(str, sorted(lengths)))}")
    again = cosine(together[0], alone)
    if again < ALIKE:
        raise EngineError(f"the same text got two vectors: their cosine is {again:.4f}, and at least {ALIKE} is wanted")
    if cosine(together[0], together[2]) > DIFFERENT:
        raise EngineError("two texts that have nothing in common got the same vector")
    return {"dimensions": lengths.pop(), "again": round(again, 5)}


def ranking(engine: Engine, client: EngineClient) -> dict[str, Any]:
    """A document that answers a question is ranked above one that does not."""
    documents = (TEXTS[2], TEXTS[0])
    scores = client.rerank(RUNTIMES[engine.runtime].reranking, engine.served_as[0], QUERY, documents)
    if sorted(scores) != [0, 1] or not all(math.isfinite(score) for score in scores.values()):
        raise EngineError(f"two documents got the scores {scores}")
    if scores[1] <= scores[0]:
        raise EngineError(f"the document that answers the question has {scores[1]:g}, one that does not {scores[0]:g}")
    return {"scores": [round(scores[1], 4), round(scores[0], 4)]}


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Cosine of the angle between two vectors of the same length, neither of them zero."""
    product = math.fsum(a * b for a, b in zip(one, other, strict=True))
    return product / (math.hypot(*one) * math.hypot(*other))


def _check(vector: Sequence[float], gate: EmbeddingGate) -> None:
    """One vector by itself. Raises EngineError."""
    if not vector:
        raise EngineError("a text got a vector without numbers")
    if not all(math.isfinite(number) for number in vector):
        raise EngineError("a vector has numbers in it that are none (NaN or infinite)")
    if gate.dimensions is not None and len(vector) != gate.dimensions:
        wanted = f"gates.embedding.dimensions says {gate.dimensions}"
        raise EngineError(f"its vectors have {len(vector)} numbers, and {wanted}")
    length = math.hypot(*vector)
    if length == 0:
        raise EngineError("a text got a vector of zeros")
    if gate.normalised and abs(length - 1) > UNIT:
        raise EngineError(
            f"a vector has the length {length:.3f} and not 1: with a model whose vectors are meant to be so, write "
            "gates: {embedding: {normalised: false}}"
        )
