"""``fleetctl capacity`` as people and scripts meet it: no fleet, no GPU, no weights read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoints import CONFIG, data_size, header, llama, write_model
from hub_server import hub_of

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "bench/data/capacity"


def fleetctl(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from fleetctl.cli.main import main; main()", "capacity", *words]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    # No fleet.yaml anywhere near.
    return subprocess.run(
        program,
        capture_output=True,
        text=True,
        cwd="/",
        timeout=120,
        check=False,
        env={**kept, "PYTHONPATH": str(ROOT), **environment},
    )


def events(*words: str, **environment: str) -> list[dict[str, Any]]:
    done = fleetctl(*words, "--json", **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_sum_is_shown_line_by_line_in_80_columns(tmp_path: Path) -> None:
    done = fleetctl(str(write_model(tmp_path / "model")), "--tp", "1,2,3", "--pp", "1,2", "--lora-slots", "2")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line for line in lines if len(line) > 80 and str(tmp_path) not in line] == []
    for label in ("memory of the box", "left for the rest of the box", "weights", "activations", "LoRA slots"):
        assert any(line.startswith(f"  {label} ") for line in lines), label
    assert any("= for the cache" in line for line in lines)
    assert any(line.startswith("tp 2, pp 2: split over 4 boxes") for line in lines)
    assert "tp 3, pp 1: 4 attention heads cannot be divided over 3 ranks" in lines
    assert lines[-1].startswith("Advice: a copy on each box")


def test_a_box_that_is_too_small_and_a_context_that_is_too_long_are_told_in_80_columns() -> None:
    words = ["--weights", "62GiB", "--box-memory", "44.42GiB", "--share", "0.9", "--tp", "1,2", "--context", "1000000"]
    done = fleetctl(str(DATA / "qwen2.5-32b-instruct.json"), *words)
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines() if "/" not in line) <= 80
    assert "the engine will not start" in done.stdout
    assert "the model's own context is 32,768 tokens" in done.stdout
    assert "no division here holds 1 request of full context" in done.stdout


def test_the_office_model_of_public_logs_is_foreseen() -> None:
    """Rows T14 and T15: 71 GiB of weights on a GB10, FP8, 4 draft tokens: 0.76 million tokens at 0.74, 1.08 at 0.78."""
    words = [str(DATA / "qwen3.8-flash-next.json"), "--weights", "71GiB", "--box-memory", "121.63GiB", "--kv", "fp8"]
    for share, tokens in (("0.74", 760_000), ("0.78", 1_080_000)):
        capacity, advice = events(*words, "--spec-tokens", "4", "--share", share)
        assert capacity["tokens"] == pytest.approx(tokens, rel=0.1)
        assert capacity["low"]["tokens"] < tokens < capacity["high"]["tokens"]
        assert sum(line["bytes"] for line in capacity["lines"]) == capacity["available"]
        assert (advice["type"], advice["verdict"], advice["boxes"]) == ("advice", "copy", 1)


def test_weights_are_told_by_format_and_by_part(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", tensors=llama(hidden=1024, inner=4096, vocabulary=32000))
    shown = fleetctl(str(folder)).stdout
    assert "weights in the files: 0.18 GiB (BF16 0.18 GiB)" in shown
    assert "output layer 62.50 MiB" in shown


def test_a_log_calibrates_the_sum_and_is_shown_beside_it(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(
        "INFO Model loading took 79.07 GiB memory and 61.5 seconds\nINFO Available KV cache memory: 8.33 GiB\n"
        "INFO GPU KV cache size: 34,119 tokens, Maximum concurrency for 32,768 tokens per request: 1.04x\n"
    )
    words = [str(DATA / "qwen2.5-32b-instruct.json"), "--log", str(log), "--box-memory", "121.63GiB", "--share", "0.75"]
    done = fleetctl(*words)
    assert done.returncode == 0, done.stderr
    assert "engine and activations" in done.stdout
    assert "measured" in done.stdout
    assert "fleetctl's, from that memory" in done.stdout
    (capacity, _) = events(*words)
    assert capacity["overhead_measured"]
    assert capacity["available"] == pytest.approx(8.33 * 1024**3, rel=1e-6)


def test_what_is_not_known_has_bounds_and_a_name() -> None:
    done = fleetctl(str(DATA / "deepseek-v4-flash.json"), "--weights", "158GiB", "--tp", "2", "--kv", "fp8")
    assert done.returncode == 0, done.stderr
    assert "not known: compressed caches (compress_ratios)" in done.stdout
    assert "tokens, between" in done.stdout
    assert "tokens of cache" not in done.stdout


WRONG: list[tuple[list[str], str]] = [
    (["./nowhere"], "./nowhere: no such folder"),
    (["MODEL", "--kv", "fp7"], "KV dtype fp7 is not known"),
    (["MODEL", "--tp", "two"], "--tp two: not a list of numbers of ranks"),
    (["MODEL", "--tp", "3"], "4 attention heads cannot be divided over 3 ranks"),
    (["MODEL", "--box-memory", "128"], "a box without memory"),
    (["MODEL", "--box-memory", "lots"], "--box-memory lots: a size is a number with a unit"),
    (["MODEL", "--share", "1.5"], "a share of 1.5"),
    (["MODEL", "--context", "0"], "context 0 is not between"),
    (["MODEL", "--log", "/nowhere.log"], "/nowhere.log: No such file or directory"),
    ([str(DATA / "tiny-llama.json")], "the weights are not known"),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=[" ".join(words[-2:]) for words, _ in WRONG])
def test_bad_input_is_told_and_never_a_traceback(tmp_path: Path, words: list[str], said: str) -> None:
    model = str(write_model(tmp_path / "model"))
    done = fleetctl(*(model if word == "MODEL" else word for word in words))
    if words[-2:] == ["--box-memory", "128"]:  # 128 bytes: it is a sum, in which nothing fits
        assert "no division here holds" in done.stdout
        return
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_a_model_on_the_hub_is_read_without_its_weights(tmp_path: Path) -> None:
    tensors = llama(hidden=512, inner=2048, vocabulary=64_000)
    folder = write_model(tmp_path / "model", tensors=tensors)
    with hub_of(folder) as hub:
        found = events("office/tiny", HF_ENDPOINT=hub.address, HF_HOME=str(tmp_path / "home"), HF_TOKEN="hf_secret")
    assert found[0]["weights"] == data_size(tensors) > 100_000_000
    assert hub.sent < 200_000 + len(header(tensors)), "the weights were not to be fetched"
    assert any("model.safetensors" in one for one in hub.asked)
    assert "Bearer hf_secret" in hub.tokens


def test_a_gated_model_says_what_to_do(tmp_path: Path) -> None:
    with hub_of(write_model(tmp_path / "model")) as hub:
        hub.gated = True
        done = fleetctl("office/tiny", HF_ENDPOINT=hub.address, HF_HOME=str(tmp_path / "home"))
    assert done.returncode == 2
    assert "its publisher asks for consent" in done.stderr
    assert "HF_TOKEN" in done.stderr


def test_a_model_that_the_hub_does_not_have_is_told(tmp_path: Path) -> None:
    with hub_of(write_model(tmp_path / "model")) as hub:
        done = fleetctl("office/other", HF_ENDPOINT=hub.address, HF_HOME=str(tmp_path / "home"))
    assert done.returncode == 2
    assert "office/other: no such folder, and the hub knows no such model" in done.stderr


def test_without_a_hub_it_says_so_at_once(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    for environment in ({"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}):
        done = fleetctl("office/tiny", HF_HOME=home, **environment)
        assert done.returncode == 2
        assert "the hub is out of reach" in done.stderr
        assert "Traceback" not in done.stderr


def test_without_a_hub_what_an_earlier_download_left_is_used(tmp_path: Path) -> None:
    home = tmp_path / "home"
    cached = home / "hub/models--office--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs/main").write_text("0" * 40)
    write_model(cached / "snapshots" / ("0" * 40), CONFIG)
    found = events("office/tiny", HF_HOME=str(home), HF_HUB_OFFLINE="1")
    assert found[0]["weights"] == data_size(llama())


def test_the_benchmark_of_the_truth_meets_its_goals() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench/capacity.py")], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert {name: figure["value"] for name, figure in figures.items() if figure["holds"] is False} == {}
    assert figures["rows_to_the_token"]["value"] >= 9
