"""Vectors that cannot be used, and a ranking that is upside down, do not get an engine its traffic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import pytest

from fleetctl.engine.client import EngineClient, EngineError
from fleetctl.gates.encoders import TEXTS, embedding, ranking
from fleetctl.render.release import Engine, Rank
from fleetctl.spec.fleet_gates import EmbeddingGate

ENGINE = Engine(
    id="l/v@a",
    model="v",
    kind="copy",
    ranks=(Rank(box="a", unit="u", digest="d"),),
    address="10.0.0.1",
    port=8000,
    served_as=("v",),
    context=512,
    concurrency=1,
    load_limit=1,
    stop_limit=1,
    weights="org/v",
    binary=None,
    runtime="text-embeddings-inference",
    task="embed",
    backend="v",
    server="l-a",
)
GOOD = {TEXTS[0]: [1.0, 0.0], TEXTS[1]: [0.8, 0.6], TEXTS[2]: [0.0, 1.0]}


class Encoder:
    """An engine with the vectors of a table; ``alone`` is what the first text gets by itself."""

    def __init__(self, vectors: dict[str, list[float]], alone: list[float] | None = None) -> None:
        self.vectors, self.alone = vectors, alone

    def embed(self, model: str, texts: Sequence[str]) -> list[list[float]]:
        assert model == "v"
        return [self.alone] if len(texts) == 1 and self.alone else [self.vectors[text] for text in texts]


def prove(encoder: Encoder, **gate: Any) -> dict[str, Any]:
    return embedding(ENGINE, cast(EngineClient, encoder), EmbeddingGate.model_validate(gate))


def test_good_vectors_pass() -> None:
    assert prove(Encoder(GOOD), dimensions=2) == {"dimensions": 2, "again": 1.0}
    assert prove(Encoder({text: [3 * x for x in v] for text, v in GOOD.items()}), normalised=False)["dimensions"] == 2


BAD = [
    ({TEXTS[1]: [math.nan, 0.0]}, None, {}, "NaN"),
    ({TEXTS[1]: [math.inf, 0.0]}, None, {}, "infinite"),
    ({TEXTS[1]: []}, None, {}, "without numbers"),
    ({TEXTS[1]: [1.0, 0.0, 0.0]}, None, {}, "different lengths: 2, 3"),
    ({TEXTS[1]: [0.0, 0.0]}, None, {"normalised": False}, "a vector of zeros"),
    ({TEXTS[1]: [3.0, 0.0]}, None, {}, "has the length 3.000 and not 1"),
    ({TEXTS[2]: [1.0, 0.0]}, None, {}, "nothing in common got the same vector"),
    ({}, [0.0, 1.0], {}, "the same text got two vectors: their cosine is 0.0000"),
    ({}, None, {"dimensions": 384}, "have 2 numbers, and gates.embedding.dimensions says 384"),
]


@pytest.mark.parametrize(("vectors", "alone", "gate", "said"), BAD, ids=[case[3] for case in BAD])
def test_vectors_that_cannot_be_used_fail(
    vectors: dict[str, list[float]], alone: list[float] | None, gate: dict[str, Any], said: str
) -> None:
    with pytest.raises(EngineError, match=said):
        prove(Encoder({**GOOD, **vectors}, alone), **gate)


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ({0: 0.9, 1: 0.1}, "has 0.1, one that does not 0.9"),
        ({1: 0.9}, "got the scores"),
        ({0: 0.1, 1: math.nan}, "scores"),
    ],
)
def test_a_ranking_that_is_wrong_fails(scores: dict[int, float], said: str) -> None:
    class Ranker:
        def rerank(self, *_: object) -> dict[int, float]:
            return scores

    with pytest.raises(EngineError, match=said):
        ranking(ENGINE, cast(EngineClient, Ranker()))
