"""LoRA adapters at a gateway: names that come and go while it runs, and lead to the model they were made for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from echo_worker import embedding
from gateways import MODELS, gateway, until, worker
from natsserver import needs_nats, running

from fleetctl.pool.gateway.adapters import read
from fleetctl.pool.gateway.models import Models
from fleetctl.pool.gateway.refusals import Refusal


def put(file: Path, text: str) -> None:
    """Replace the file, as a box does."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


@needs_nats
def test_an_adapter_is_a_model_from_the_push_until_it_is_removed_and_nothing_restarts(tmp_path: Path) -> None:
    file = tmp_path / "names"
    body = json.dumps({"model": "contracts", "prompt": "a"}).encode()
    with (
        running(tmp_path) as nats,
        worker(nats.access) as at_work,
        gateway(tmp_path, nats.access, adapters=str(file)) as ours,
    ):
        assert ours.post("/v1/completions", body).status == 404
        put(file, "contracts gen\nelsewhere qwen\n")
        until(lambda: ours.get("/v1/models/contracts").status == 200)
        answer = ours.post("/v1/completions", body)
        assert (answer.status, answer.body) == (200, body)
        assert at_work.seen[0][0].model == "gen", "it is the base model's to answer, and its engine sees the name"
        listed = json.loads(ours.get("/v1/models").body)["data"]
        assert [one["id"] for one in listed if "parent" in one] == ["contracts"]
        assert ours.post("/v1/embeddings", body).status == 400
        header = {"x-model": "contracts"}
        assert ours.post("/v1/completions", body, header).status == 200
        for other in ({"model": "gen", "prompt": "a"}, {"prompt": "a"}, {"prompt": "a" * 1_000_000}):
            refused = ours.post("/v1/completions", other, header)
            assert (refused.status, "in the body has to name it too" in refused.error["message"]) == (400, True)
        put(file, "")
        until(lambda: ours.post("/v1/completions", body).status == 404)


@needs_nats
def test_the_name_of_an_adapter_that_embeds_is_looked_for_in_the_body_too(tmp_path: Path) -> None:
    file, header = tmp_path / "names", {"x-model": "german"}
    put(file, "german minilm\n")
    with (
        running(tmp_path) as nats,
        worker(nats.access, embedding),
        gateway(tmp_path, nats.access, adapters=str(file)) as ours,
    ):
        until(lambda: ours.get("/v1/models/german").status == 200)
        assert ours.post("/v1/embeddings", {"input": "a", "model": "german"}, header).status == 200
        assert ours.post("/v1/embeddings", {"input": "a", "model": "minilm"}, header).status == 400


def test_an_adapter_never_takes_the_name_of_a_model() -> None:
    models = Models(MODELS)
    models.know({"lab/all-MiniLM": "gen", "gen": "minilm", "mine": "gen", "other": "nowhere"})
    assert models.find("lab/all-MiniLM", "/v1/embeddings").key == "minilm"
    assert models.find("gen", "/v1/completions").key == models.find("mine", "/v1/completions").key == "gen"
    with pytest.raises(Refusal):
        models.find("other", "/v1/completions")
    assert json.loads(models.page_of("mine"))["parent"] == "gen"


def test_a_file_that_is_missing_or_odd_has_no_adapters(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == {}
    (tmp_path / "odd").write_bytes(b"a\n\xff\xfe b c\nname model\n\n")
    assert read(tmp_path / "odd") == {"name": "model"}
