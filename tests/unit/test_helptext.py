"""A program's own help says which flags it knows, in each of the four forms that engines print it in."""

from __future__ import annotations

import pytest

from fleetctl.engine.runtimes.helptext import Wrong, known_flags, wrong_words
from fleetctl.engine.runtimes.known import RUNTIMES
from fleetctl.render.help import engine_words_of

ARGPARSE = """\
usage: engine [options]

options:
  -h, --help            show this help message and exit
  --cache-dtype {auto,fp8,fp8_e4m3}
                        Type of the cache. See
                        --not-a-flag for more.
  --enable-tools, --no-enable-tools
                        Tools.
  --tensor-parallel-size N, -tp N  Ranks.
  --middleware M        May be repeated.
  --optimization-level N
"""
TABLE = """\
╭─ Options ────────────────────────────────────────────────────────────╮
│ --model-id                         TEXT          repo id             │
│ --trust        --no-trust                        trust remote code   │
│ --dtype                            [float32|int8|auto]  its type     │
│ *  --port  -p                      INTEGER       port [required]     │
╰──────────────────────────────────────────────────────────────────────╯
"""
CLAP = """\
Options:
      --model-id <MODEL_ID>
          The model.

          [env: MODEL_ID=]

      --dtype <DTYPE>
          The type

          [possible values: float16, float32]

      --pooling <POOLING>
          Possible values:
          - cls:        the first
          - last-token: the last

  -p, --port <PORT>
          The port [default: 3000]
"""
LLAMA = """\
----- common params -----
-h,    --help, --usage                  print usage and exit
-c,    --ctx-size N                     size of the context
-ctk,  --cache-type-k TYPE              type of the cache
                                        allowed values: f32, f16, q8_0,
                                        q4_0
                                        (default: f16)
-kvo,  --kv-offload, -nkvo, --no-kv-offload
                                        whether to offload
"""
FORMS = [
    (ARGPARSE, {"--cache-dtype": ("auto", "fp8", "fp8_e4m3"), "--no-enable-tools": (), "-tp": (), "--help": ()}),
    (TABLE, {"--model-id": (), "--no-trust": (), "--dtype": ("float32", "int8", "auto"), "--port": (), "-p": ()}),
    (CLAP, {"--dtype": ("float16", "float32"), "--pooling": ("cls", "last-token"), "--port": (), "-p": ()}),
    (LLAMA, {"--ctx-size": (), "--cache-type-k": ("f32", "f16", "q8_0", "q4_0"), "-nkvo": (), "--usage": ()}),
]


@pytest.mark.parametrize(("text", "wanted"), FORMS, ids=["argparse", "typer", "clap", "llama.cpp"])
def test_flags_and_their_choices_are_read(text: str, wanted: dict[str, tuple[str, ...]]) -> None:
    found = known_flags(text)
    assert {name: found.get(name) for name in wanted} == wanted
    assert "--not-a-flag" not in found


WORDS = [
    (["--cache-dtype", "fp9"], Wrong("--cache-dtype", "fp9", "fp8", ("auto", "fp8", "fp8_e4m3"))),
    (["--cache_dtype=fp8"], None),
    (["--enable-toolz"], Wrong("--enable-toolz", None, "--enable-tools")),
    (["--cache"], None),  # argparse takes the beginning of a flag
    (["-tp", "2", "--no-enable-tools"], None),
    (["-O3"], None),
    (["--middleware.x", "1"], None),
    (["--zzz"], Wrong("--zzz", None, None)),
    (["serve", "MODEL"], None),
]


@pytest.mark.parametrize(("words", "wanted"), WORDS)
def test_what_the_program_would_refuse_is_found_with_what_was_meant(words: list[str], wanted: Wrong | None) -> None:
    found = list(wrong_words(words, known_flags(ARGPARSE), RUNTIMES["vllm"]))
    assert found == ([] if wanted is None else [wanted])


def test_clap_takes_no_beginning_of_a_flag() -> None:
    runtime = RUNTIMES["text-embeddings-inference"]
    assert [wrong.flag for wrong in wrong_words(["--model"], known_flags(CLAP), runtime)] == ["--model"]


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ("vllm", ("vllm", "IMAGE", "serve", "MODEL", "--port", "1")),
        ("sglang", ("python3", "IMAGE", "-m", "sglang.launch_server", "--port", "1")),
        ("llama.cpp", ("/app/llama-server", "IMAGE", "--port", "1")),
    ],
)
def test_of_a_container_the_words_behind_its_program_are_the_engines(runtime: str, words: tuple[str, ...]) -> None:
    run = ("/usr/bin/podman", "run", "--rm", "-e", "A", "--entrypoint", *words)
    found = engine_words_of(run, RUNTIMES[runtime])
    assert found == (words[2:] if runtime != "sglang" else words[4:])
