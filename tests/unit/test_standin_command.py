"""The stand-in engine takes vLLM 0.32's command line and refuses what vLLM refuses."""

import subprocess
import sys
from pathlib import Path

import pytest
from standin_process import VLLM

from fleetctl.lab.standin.arguments import parse_serve
from fleetctl.lab.standin.settings import Control, Settings


def vllm(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(VLLM), *words], capture_output=True, text=True, timeout=20)


def test_version_and_help_need_no_model() -> None:
    assert vllm("--version").stdout == "0.32.0+standin\n"
    assert "--headless" not in vllm("serve", "--help").stdout, "vLLM lists groups there"
    listed = vllm("serve", "--help=all").stdout
    for option in ("--kv-cache-memory-bytes", "--headless", "--no-enable-prefix-caching", "-tp", "--uds"):
        assert option in listed


def test_the_folder_also_runs_as_a_module(tmp_path: Path) -> None:
    (tmp_path / "standin").symlink_to(VLLM.parent.parent)
    result = subprocess.run(
        [sys.executable, "-B", "-m", "standin", "--version"], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.stdout == "0.32.0+standin\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--foo"], "vllm serve: error: unrecognized arguments: --foo"),
        (["--swap-space", "4"], "unrecognized arguments: --swap-space 4"),
        (["--disable-log-requests"], "unrecognized arguments: --disable-log-requests"),
        (["--port", "http"], "argument --port: invalid int value: 'http'"),
        (["--kv-cache-dtype", "fp9"], "argument --kv-cache-dtype: invalid choice: 'fp9'"),
        (["--max-model-len", "1.5K"], "Decimals are not allowed with binary suffixes like K"),
    ],
)
def test_a_wrong_option_is_refused_with_status_2(words: list[str], message: str) -> None:
    result = vllm("serve", "m", *words)
    assert result.returncode == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--enable-auto-tool-choice"], "--enable-auto-tool-choice requires --tool-call-parser"),
        (["--enable-auto-tool-choice", "--tool-call-parser", "nope"], "invalid tool call parser: nope"),
        (["--reasoning-parser", "nope"], "invalid reasoning parser: nope"),
        (["-tp", "2", "--nnodes", "2", "--node-rank", "2", "--headless"], "must be between 0 and 1; got"),
        (["--nnodes", "2"], "`--nnodes 2` must evenly divide the total world size (1)"),
        (["-tp", "2", "--nnodes", "2", "--node-rank", "1"], "needs --headless"),
        (["--config", "x.yaml"], "the stand-in engine has no --config"),
    ],
)
def test_options_that_do_not_go_together_end_with_status_1(words: list[str], message: str) -> None:
    result = vllm("serve", "m", *words)
    assert result.returncode == 1
    assert message in result.stderr


def test_every_spelling_of_an_option_means_the_same() -> None:
    args = parse_serve(
        ["m", "--max_model_len=256K", "-tp", "2", "--served-model-name", "a", "b", "-O3", "--no-enable-prefix-caching",
         "--speculative_config", '{"method": "mtp", "num_speculative_tokens": 4}', "--lora-modules", "x=/l/x",
         "--compilation-config.pass_config.fuse_allreduce_rms", "true", "--kv-cache-memory-bytes", "1.5g"]
    )  # fmt: skip
    assert (args.max_model_len, args.tensor_parallel_size, args.served_model_name) == (2**18, 2, ["a", "b"])
    assert (args.speculative_tokens, args.prefix_caching, args.lora_modules) == (4, False, {"x": "/l/x"})
    assert args.kv_cache_memory_bytes == 1_500_000_000
    assert args.given["compilation_config"] == {"pass_config": {"fuse_allreduce_rms": True}}
    assert args.given["optimization_level"] == 3


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "k")
    assert parse_serve(["m"]).api_keys == ["k"]
    assert parse_serve(["m", "--api-key", "a", "b"]).api_keys == ["a", "b"]


def test_the_control_file_wins_over_the_environment_and_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    environ = {"STANDIN_CONTROL": str(path), "STANDIN_SPEED": "3", "STANDIN_CURVE": "[[1, 10]]"}
    control = Control(rank=1, environ=environ)
    assert (control.now().speed, control.now().curve) == (3.0, ((1.0, 10.0),))
    path.write_text('{"speed": 5, "ranks": {"1": {"load_seconds": 9}, "0": {"load_seconds": 8}}}')
    assert (control.now().speed, control.now().load_seconds) == (5.0, 9.0)
    path.write_text('{"speed": 6')
    assert control.now().speed == 5.0
    path.unlink()
    assert control.now().speed == 3.0


def test_a_setting_that_does_not_exist_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "control.json"
    path.write_text('{"sped": 5}')
    assert Control(environ={"STANDIN_CONTROL": str(path)}).now() == Settings()
    assert "sped" in capfd.readouterr().err
