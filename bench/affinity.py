#!/usr/bin/env python3
"""What `balance: prefix` changes beside `leastconn`: real vLLM on two boxes, four kinds of traffic.

Run it alone, as root, on Debian 12: ``python3 bench/affinity.py``. It brings up two boxes of its own with real vLLM on
the CPU, one thread per engine, and a random Llama of 20 million weights, for which reading 1,000 tokens takes about
0.2 s. fleetctl sets the balance of the proxy in turn; every round has traffic that no round before it had.

- ``conversations``: 6 clients with a history each, which grows by every answer and the next question. The copies take
  8 requests at once.
- ``crowd``: the same with 12 clients, so that there is a queue.
- ``short``: independent requests of a few hundred bytes.
- ``hot``: all clients continue one and the same long conversation at once, each with a question of its own.

Time to first token is measured at the client, of all requests whose beginning some engine could have in its cache.
The hit rate is that of both engines together, from their own /metrics: tokens found in the cache, of all that prompts
had. ``imbalance`` is the share of the requests that the busier copy answered, times the number of copies: 1 is even.

Progress goes to standard error; the last line of standard output is JSON. Exit status 0: all was measured.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from _common import (
    CHECKOUT,
    BenchError,
    Figure,
    at_least,
    at_most,
    make_venv,
    run,
    say,
    say_load,
)
from _lab import base_cache, measured

from fleetctl.lab.engines import engines_folder, vllm_folder
from fleetctl.lab.lab import Lab
from fleetctl.lab.realvllm import ENGINE_ENVIRONMENT, install_vllm
from fleetctl.lab.state import Bind
from fleetctl.lab.tinymodel import make_tiny_model

if TYPE_CHECKING:
    from fleetctl.lab.state import LabBox

FOLDER = Path("/var/lib/fleetctl-bench-affinity")
BALANCES = ("leastconn", "prefix")
SHAPE = (512, 8, 4096)  # hidden size, layers, positions
CONCURRENCY = 4
CLIENTS, TURNS, SHORT, HOT = 6, 6, 15, 12
ANSWER = 12  # tokens
PAUSE = 0.4  # seconds, longest time between an answer and the next question
TEXT = (
    "operator describes boxes one file moves model command each box has address link some memory engine proxy sends "
    "request fewest running copy serves more tokens per second than both either can restart without going away"
)
WORDS = TEXT.split()


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure prefix affinity beside leastconn.")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of each balance and each kind of traffic")
    parser.add_argument("--only", choices=KINDS, action="append", help="only this kind of traffic; may be repeated")
    parser.add_argument("--cache", type=int, default=256, help="KV cache of each engine in MiB, 128 tokens each")
    options = parser.parse_args()
    lab = Lab(
        FOLDER / "lab",
        bridge="fleetbench7",
        subnet="10.77.217.0/24",
        link_subnet="10.78.217.0/24",
        base=base_cache(),
    )
    kinds = options.only or list(KINDS)
    return measured("affinity", FOLDER, lab.down, lambda: measure(lab, options.rounds, kinds, options.cache))


def measure(lab: Lab, rounds: int, kinds: Sequence[str], cache: int) -> dict[str, Figure]:
    """Set everything up, measure, and return the figures."""
    fleetctl = make_venv(FOLDER / "fleetctl", str(CHECKOUT)) / "fleetctl"
    venv = install_vllm(vllm_folder(engines_folder()), say)
    model = make_tiny_model(FOLDER / "model", venv / "bin/python", say, SHAPE)
    boxes = lab.up(2, say, binds=[Bind(venv, venv), Bind(model, model)])
    files = {balance: write_fleet(boxes, venv, model, cache, balance) for balance in BALANCES}
    say("starting the engines")
    run([str(fleetctl), "cutover", "--to", "replicas", "-f", str(files["leastconn"]), "--yes"], doing="the cutover")
    bench = Bench(f"{boxes[0].address}:8080", [f"{box.address}:8000" for box in boxes])
    told = {(kind, balance): Told() for kind in kinds for balance in BALANCES}
    bench.round(CLIENTS, conversations, "warm", Told())  # to warm up: the first steps of an engine are slow
    say_load()
    for number in range(1, rounds + 1):
        for balance in BALANCES if number % 2 else BALANCES[::-1]:
            run([str(fleetctl), "apply", "-f", str(files[balance]), "--yes"], doing=f"setting balance: {balance}")
            for kind in kinds:
                clients, traffic = KINDS[kind]
                one = told[kind, balance]
                bench.round(clients, traffic, f"{number} {kind} {balance}", one)
                say(f"round {number} of {rounds}, {kind}, {balance}: {one}")
    say_load()
    return figures_of(told)


def write_fleet(boxes: Sequence[LabBox], venv: Path, model: Path, cache: int, balance: str) -> Path:
    """fleet.yaml with a copy on each box, which differs in the balance alone."""
    document = {
        "fleet": "bench",
        "boxes": {
            box.name: {
                "address": box.address,
                "memory": "8GiB",
                "reserve": "2GiB",
                "ssh": {"user": box.user, "key": str(box.key), "known_hosts": str(box.known_hosts)},
            }
            for box in boxes
        },
        "models": {
            "llama": {
                "weights": str(model),
                "context": SHAPE[2],
                "launch": {"venv": str(venv)},
                "arguments": ["--enforce-eager", f"--kv-cache-memory-bytes={cache * 1024**2}"],
                "environment": dict(ENGINE_ENVIRONMENT),
                "load_limit": "8m",
            }
        },
        "layouts": {"replicas": {"llama": {"copies": [box.name for box in boxes], "concurrency": CONCURRENCY}}},
        "proxy": {"box": boxes[0].name, "port": 8080, "balance": balance},
    }
    path = FOLDER / f"fleet-{balance}.yaml"
    path.write_text(json.dumps(document, indent=1))  # JSON is YAML
    return path


# Traffic -----------------------------------------------------------------------------------------------------

Message = dict[str, str]
Ask = Callable[[list[Message], bool], str]
Traffic = Callable[[str, int, Ask], None]


def text(dice: random.Random, words: int) -> str:
    return " ".join(dice.choice(WORDS) for _ in range(words))


def conversations(seed: str, client: int, ask: Ask) -> None:
    """A client that goes through a conversation: a long system prompt and question, then more of them."""
    dice = random.Random(f"{seed} {client}")
    said = [{"role": "system", "content": text(dice, 300)}, {"role": "user", "content": text(dice, 100)}]
    for turn in range(TURNS):
        said = [*said, {"role": "assistant", "content": ask(said, turn > 0)}]
        said = [*said, {"role": "user", "content": text(dice, 60)}]
        time.sleep(dice.random() * PAUSE)


def short(seed: str, client: int, ask: Ask) -> None:
    """A client that asks short things that have nothing to do with each other."""
    dice = random.Random(f"{seed} {client}")
    for _ in range(SHORT):
        ask([{"role": "user", "content": text(dice, 25)}], True)


def hot(seed: str, client: int, ask: Ask) -> None:
    """A client that has the same long beginning as all others."""
    same, dice = random.Random(seed), random.Random(f"{seed} {client}")
    said = [{"role": "system", "content": text(same, 300)}, {"role": "user", "content": text(same, 100)}]
    for number in range(HOT):
        more = [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": text(dice, 20)}]
        ask([*said, *more], number > 0)


KINDS: dict[str, tuple[int, Traffic]] = {
    "conversations": (CLIENTS, conversations),
    "crowd": (2 * CLIENTS, conversations),
    "short": (CLIENTS, short),
    "hot": (CLIENTS, hot),
}


# What is measured --------------------------------------------------------------------------------------------


@dataclass
class Told:
    """All rounds of one kind of traffic with one balance."""

    first: list[float] = field(default_factory=list)  # seconds to the first token
    requests: int = 0
    seconds: float = 0.0
    queried: float = 0.0  # tokens of prompts
    hit: float = 0.0  # of those, found in a cache
    imbalances: list[float] = field(default_factory=list)

    @property
    def p50(self) -> float:
        return statistics.median(self.first)

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.first, n=100)[98]

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds

    @property
    def hits(self) -> float:
        """Share of the prompts' tokens that were found in a cache."""
        return self.hit / self.queried

    @property
    def imbalance(self) -> float:
        return statistics.mean(self.imbalances)

    def __str__(self) -> str:
        return (
            f"first token {self.p50:.3f} s (p99 {self.p99:.3f}), {100 * self.hits:.0f} % hits, "
            f"{self.rate:.2f} requests/s, imbalance {self.imbalance:.2f}"
        )


class Bench:
    """The proxy, and the engines behind it for their metrics."""

    def __init__(self, proxy: str, engines: Sequence[str]) -> None:
        self.proxy, self.engines = proxy, engines

    def round(self, clients: int, traffic: Traffic, seed: str, told: Told) -> None:
        """One round of traffic by so many clients. Raises BenchError when a request is not answered."""
        problems: list[str] = []
        firsts: list[float] = []

        def ask(messages: list[Message], counts: bool) -> str:
            answer, first = self.complete(messages)
            told.requests += 1
            if counts:
                firsts.append(first)
            return answer

        def client(number: int) -> None:
            try:
                traffic(seed, number, ask)
            except (OSError, http.client.HTTPException, BenchError) as error:
                problems.append(repr(error))

        before, begin = [self.metrics(engine) for engine in self.engines], time.monotonic()
        threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        told.seconds += time.monotonic() - begin
        if problems:
            raise BenchError(f"requests failed: {problems[0]}")
        told.first += firsts
        after = [self.metrics(engine) for engine in self.engines]
        grown = [{name: b[name] - a[name] for name in a} for a, b in zip(before, after, strict=True)]
        told.queried += sum(one["prefix_cache_queries_total"] for one in grown)
        told.hit += sum(one["prefix_cache_hits_total"] for one in grown)
        answered = [one["request_success_total"] for one in grown]
        told.imbalances.append(max(answered) * len(answered) / sum(answered))

    def complete(self, messages: list[Message]) -> tuple[str, float]:
        """One streamed completion through the proxy: its text, and the seconds until its first token."""
        body = {"model": "llama", "messages": messages, "max_tokens": ANSWER, "temperature": 0, "stream": True}
        connection = http.client.HTTPConnection(self.proxy, timeout=300)
        begin, first, said = time.monotonic(), None, ""
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        for event in _events(answer):
            content = event["choices"][0]["delta"].get("content") if event["choices"] else None
            if content:
                first = first or time.monotonic() - begin
                said += content
        connection.close()
        if answer.status != 200 or first is None:
            raise BenchError(f"status {answer.status} without a token")
        return said, first

    def metrics(self, engine: str) -> dict[str, float]:
        """Counters of one engine, read from itself."""
        with urllib.request.urlopen(f"http://{engine}/metrics", timeout=30) as answer:
            lines = answer.read().decode()
        names = ("prefix_cache_queries_total", "prefix_cache_hits_total", "request_success_total")
        return {n: sum(float(v) for v in re.findall(rf"^vllm:{n}{{.*}} (\S+)$", lines, re.MULTILINE)) for n in names}


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, list[dict[str, dict[str, str]]]]]:
    for line in answer:
        data = line.removeprefix(b"data: ").strip()
        if line.startswith(b"data: ") and data != b"[DONE]":
            yield json.loads(data)


def figures_of(told: dict[tuple[str, str], Told]) -> dict[str, Figure]:
    """Every figure of every kind; goals are on what prefix changes."""
    figures = {}
    for (kind, balance), one in told.items():
        figures |= {
            f"{kind}_{balance}_first_token_p50_s": Figure(round(one.p50, 4), "s"),
            f"{kind}_{balance}_first_token_p99_s": Figure(round(one.p99, 4), "s"),
            f"{kind}_{balance}_hit_rate": Figure(round(one.hits, 3), "share"),
            f"{kind}_{balance}_requests_per_s": Figure(round(one.rate, 2), "1/s"),
            f"{kind}_{balance}_imbalance": Figure(round(one.imbalance, 3), "x"),
        }
    kinds = [kind for kind, balance in told if balance == "prefix"]
    ratio = {kind: told[kind, "prefix"].p50 / told[kind, "leastconn"].p50 for kind in kinds}
    if "conversations" in kinds:
        gain = told["conversations", "prefix"].hits - told["conversations", "leastconn"].hits
        figures["conversations_hit_rate_gain"] = at_least(gain, 0.1, "share")
        figures["conversations_first_token_p50_ratio"] = at_most(ratio["conversations"], 0.9, "x")
    if "short" in kinds:
        figures["short_first_token_p50_ratio"] = at_most(ratio["short"], 1.1, "x")
    if "hot" in kinds:
        figures["hot_imbalance"] = at_most(told["hot", "prefix"].imbalance, 5 / 3, "x")
    return figures


if __name__ == "__main__":
    sys.exit(main())
