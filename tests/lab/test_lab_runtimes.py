"""Engines of other kinds than vLLM: SGLang over two boxes and as copies, and encoders, each with its own proof."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from moving import BOXES, Moving

SGLANG = {
    "runtime": "sglang",
    "weights": "lab/standin",
    "weights_size": "1GiB",
    "context": 8192,
    "kv_cache_dtype": "fp8",
    "launch": {"venv": "/opt/standin/sglang_venv"},
    "environment": {"STANDIN_LOAD_SECONDS": "0.5", "STANDIN_SPEED": "20"},
    "load_limit": "2m",
    "stop_limit": "20s",
}
ROUTER = {
    "runtime": "text-embeddings-inference",
    "weights": "lab/encoder",
    "weights_size": "100MiB",
    "context": 512,
    "launch": {"program": "/opt/standin/bin/text-embeddings-router"},
    "environment": {"STANDIN_LOAD_SECONDS": "0.5"},
}


def with_models(moving: Moving, models: dict[str, Any], layouts: dict[str, Any], **more: Any) -> str:
    def change(document: dict[str, Any]) -> None:
        document["models"].update(models)
        document["layouts"].update(layouts)
        document.update(more)

    return moving.changed(change)


def command(moving: Moving, box: str, unit: str) -> str:
    return moving.sh(box, f"systemctl show -P ExecStart {unit}")


@pytest.fixture(autouse=True)
def _plain(moving: Moving) -> Any:
    """The boxes run the plain file again for whoever comes next."""
    yield
    moving.cutover("replicas")


def test_sglang_runs_split_over_two_boxes_and_as_copies(moving: Moving) -> None:
    layouts = {
        "wide": {"chat": {"split": list(BOXES), "concurrency": 8}},
        "each": {"chat": {"copies": list(BOXES), "concurrency": 8}},
    }
    text = with_models(moving, {"chat": {**SGLANG, "served_as": ["standin"]}}, layouts)
    moving.cutover("wide", text=text)
    head, follower = (command(moving, box, "fleetctl-wide-chat.service") for box in BOXES)
    link = moving.lab.box("box1").link_address
    for rank, line in enumerate((head, follower)):
        assert f"--nnodes 2 --node-rank {rank} --dist-init-addr {link}:29500" in line
    assert moving.answers()
    moving.cutover("each", text=text)
    assert moving.answers()
    ran = moving.run("top", "--once", text=text)
    sample = next(event for event in ran.events if event["type"] == "sample")
    assert sum(copy["counts"]["generation_tokens"] for copy in sample["copies"]) > 0, sample
    assert all(copy["figures"]["running"] == 0 for copy in sample["copies"])
    wrong = text.replace("runtime: sglang", "runtime: sglang\n    arguments: [--tool-call-parsers, qwen]")
    refused = moving.run("apply", "--yes", text=wrong)
    assert (
        refused.rc,
        "SGLang does not know --tool-call-parsers; did you mean --tool-call-parser?" in refused.said,
    ) == (
        5,
        True,
    ), refused


def test_an_encoder_is_let_in_by_its_vectors_and_a_ranker_by_its_ranking(moving: Moving) -> None:
    ranker = {**ROUTER, "task": "rerank"}
    layouts = {"encoders": {"vectors": {"copies": ["box1"]}, "ranks": {"copies": ["box2"]}}}
    text = with_models(moving, {"vectors": ROUTER, "ranks": ranker}, layouts)
    failed = moving.run("cutover", "--to", "encoders", "--yes", text=text.replace("context: 512", "context: 1024"))
    assert (failed.rc, "its context is 512 tokens and has to be at least 1024" in failed.said) == (6, True), failed
    ran = moving.cutover("encoders", text=text)
    told = [step["summary"] for step in ran.plan["steps"] if step["kind"] == "gate"]
    assert sorted(told) == [
        "encoders/ranks@box2 answers: model, context, a ranking",
        "encoders/vectors@box1 answers: model, context, vectors",
    ]
    with httpx.Client(base_url=moving.proxy, trust_env=False, timeout=30) as client:
        answer = client.post("/v1/embeddings", json={"model": "vectors", "input": ["one", "two"]}).json()
        assert [len(one["embedding"]) for one in answer["data"]] == [64, 64]
        ranked = client.post("/rerank", json={"model": "ranks", "query": "a b", "texts": ["c", "a b"]}).json()
        assert ranked[0]["index"] == 1
        assert {one["id"] for one in client.get("/v1/models").json()["data"]} >= {"vectors", "ranks"}
    seen = moving.status(text)
    assert (seen["exit"], seen["problems"]) == (0, []), seen


def test_an_encoder_that_fails_is_out_of_the_proxy_until_it_embeds_again(moving: Moving) -> None:
    layouts = {"encoders": {"vectors": {"copies": list(BOXES)}}}
    text = with_models(moving, {"vectors": ROUTER}, layouts)
    moving.cutover("encoders", text=text)
    moving.lab.exec("box1", ["sh", "-c", "echo '{\"error_500\": true}' > /etc/standin.json"])
    with httpx.Client(base_url=moving.proxy, trust_env=False, timeout=30) as client:
        for _ in range(20):
            answer = client.post("/v1/embeddings", json={"model": "vectors", "input": "one"})
            assert answer.status_code == 200, answer.text
    log = moving.sh("box1", "journalctl -u fleetctl-proxy -o cat --no-pager | grep 'fails completions' | tail -1")
    assert "vectors/encoders-box1" in log
    moving.lab.exec("box1", ["rm", "-f", "/etc/standin.json"])


def test_a_box_that_lacks_a_program_or_a_kind_that_cannot_split_is_refused(moving: Moving) -> None:
    layouts = {"wide": {"vectors": {"split": list(BOXES)}}}
    ran = moving.run("plan", "--to", "wide", text=with_models(moving, {"vectors": ROUTER}, layouts))
    assert (ran.rc, "text-embeddings-inference cannot be split over boxes" in ran.said) == (2, True), ran
    layouts = {"near": {"vectors": {"copies": ["box1"]}}}
    missing = {**ROUTER, "launch": {"program": "/opt/nowhere/text-embeddings-router"}}
    ran = moving.run("plan", "--to", "near", text=with_models(moving, {"vectors": missing}, layouts))
    assert (ran.rc, "/opt/nowhere/text-embeddings-router is not a program there" in ran.said) == (5, True), ran
