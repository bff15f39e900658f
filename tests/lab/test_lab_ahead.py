"""What is done while the old layout serves: weights looked at and read into memory."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from moving import BOXES, Moving

FOLDER = "/models/tiny"
DROP = {"page_cache": "drop"}
SIZE = 24 * 1024 * 1024
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 128,
    "intermediate_size": 256,
    "vocab_size": 512,
    "max_position_embeddings": 262144,
}


def safetensors(size: int) -> bytes:
    """The beginning of a safetensors file with one tensor of ``size`` bytes."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header


def put_weights(moving: Moving, box: str, missing: int = 0) -> None:
    begin = safetensors(SIZE)
    length = len(begin) + SIZE - missing
    moving.put(box, f"{FOLDER}/config.json", json.dumps(CONFIG))
    write = f"with open('{FOLDER}/model.safetensors', 'wb') as f: f.write({begin!r}); f.truncate({length})"
    moving.sh(box, f"mkdir -p {FOLDER}; python3 -", write)


def cached(moving: Moving, box: str) -> int:
    return int(moving.sh(box, f"fincore --bytes --noheadings --output RES {FOLDER}/model.safetensors").strip())


def with_folder(document: dict[str, Any]) -> None:
    document["models"]["standin"]["weights"] = FOLDER


def test_weights_are_in_memory_before_the_old_engines_stop(moving: Moving) -> None:
    for box in BOXES:
        put_weights(moving, box)
    text = moving.changed(with_folder)
    moving.cutover("split", text=text)
    for box in BOXES:
        moving.sh(box, f"sync; dd if={FOLDER}/model.safetensors of=/dev/null iflag=nocache count=0 status=none")
        assert cached(moving, box) < SIZE
    ran = moving.cutover("replicas", text=text)
    order = ran.steps()
    for box in BOXES:
        assert order.index(f"prepare.read_ahead.{box}") < order.index("hold.hold.proxy")
        assert cached(moving, box) >= SIZE
    # The plan said how large the caches would be, and status says how large the engines say they are.
    planned = {one["engine"]: one["tokens"] for one in ran.plan["sizings"]}
    assert len(planned) == 2 and all(planned.values())
    seen = {one["id"]: (one["cache"], one["cache_expected"]) for one in moving.status(text)["engines"]}
    assert {engine: expected for engine, (_, expected) in seen.items()} == planned
    assert all(cache > 0 for cache, _ in seen.values()), seen
    moving.rollback()


def test_a_context_that_does_not_fit_the_cache_is_refused_with_the_sum(moving: Moving) -> None:
    for box in BOXES:
        put_weights(moving, box)
    text = moving.changed(lambda d: (with_folder(d), d["models"]["standin"].update(context=2**30, weights_size="2GiB")))
    moving.cutover("split", text=moving.changed(with_folder))
    before = moving.picture()
    ran = moving.run("cutover", "--to", "replicas", "--yes", text=text)
    assert ran.rc == 5, ran
    assert "replicas/standin@box1 would not start, its cache has no room for one request of its context" in ran.said
    assert moving.same_as(before)


def test_weights_that_were_cut_short_are_told_before_anything_is_touched(moving: Moving) -> None:
    for box in BOXES:
        put_weights(moving, box)
    text = moving.changed(with_folder)
    moving.cutover("split", text=text)
    before = moving.picture()
    put_weights(moving, "box2", missing=1000)
    ran = moving.run("cutover", "--to", "replicas", "--yes", text=text)
    assert ran.rc == 6, ran
    whole = len(safetensors(SIZE)) + SIZE
    assert f"box2: weights are not complete: {FOLDER}/model.safetensors has {whole - 1000} bytes of {whole}" in ran.said
    assert moving.same_as(before)


def test_what_a_running_engine_measured_is_written_into_the_file_and_the_next_plan_goes_by_it(moving: Moving) -> None:
    for box in BOXES:
        put_weights(moving, box)
    text = moving.changed(with_folder)
    moving.control("box2", weights_bytes=2**30, cache_bytes=3 * 2**29)
    moving.cutover("replicas", text=text)
    ran = moving.run("capacity", "calibrate", "box2", "--running", "--yes", text=text)
    assert ran.rc == 0, ran
    told = next(event for event in ran.events if event["type"] == "calibrated")
    # 3 GiB of share (4 GiB less a reserve of 1 GiB), less 1 GiB of weights and 1.5 GiB for the cache.
    assert (told["weights"], told["overhead"], told["ranks"]) == (2**30, 2**29, 1)
    after = Path(told["file"]).read_text()
    assert "measured" not in text and after.count("measured: {box2: {weights: 1024MiB, overhead: 512MiB") == 1
    assert moving.run("apply", "--yes", text=after).nothing, "no engine starts again for that"
    away = moving.cutover("split", text=moving.changed(lambda d: (with_folder(d), d["boxes"]["box2"].update(DROP))))
    order = away.steps()
    assert order.index("switch.await_free.box2") < order.index("switch.drop_page_cache.box2")
    assert "switch.drop_page_cache.box1" not in order
    plan = moving.run("plan", "--to", "replicas", text=after)
    sums = {one["engine"]: one["lines"][0] for one in plan.plan["sizings"]}
    assert "1.0 GiB - engine and activations 0.5 GiB = 1.5 GiB" in sums["replicas/standin@box2"]
    assert "measured there on" in sums["replicas/standin@box2"] and "measured" not in sums["replicas/standin@box1"]
