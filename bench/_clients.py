"""The clients of bench/traffic.py: a process of their own that asks, and what is made of the record it returns.

The process runs under the Python that has fleetctl installed (its load is `fleetctl.lab.traffic.Crowd`); the script
that measures needs nothing but the standard library.
"""

from __future__ import annotations

import json
import math
import select
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

from _common import BenchError, environment

CALM = 2.5
"""Seconds of traffic before anything happens, and without a failure before a scenario is over."""

Record = dict[str, Any]
Baseline = Mapping[bool, float]
"""Streamed or not → seconds until the first byte when the copies are called directly and nothing happens."""


@dataclass(frozen=True)
class Tally:
    """What the clients of a scenario saw. Times in seconds but for ``added_*``, which are in milliseconds.

    - ``max_wait_s``: from sending a request to the first byte of its answer (or to its failure), the longest.
    - ``silence_s``: the longest time in which no answer began.
    - ``retried``: why clients asked once more → how often, where they do that at all.
    - ``added_p50_ms``, ``added_p99_ms``, ``added_max_ms``: of the waits of answers that began, less the median
      of direct calls when nothing happens.
    """

    requests: int
    failed_before_first_byte: int
    broken_streams: int
    max_wait_s: float
    silence_s: float
    added_p50_ms: float
    added_p99_ms: float
    added_max_ms: float
    retried: Mapping[str, int]
    errors: Mapping[str, int] = field(default_factory=dict)


def tally(requests: Sequence[Record], baseline: Baseline) -> Tally:
    """Sum up the requests of a scenario. Raises BenchError when none was answered."""
    begun = sorted(one["first_byte"] for one in requests if one["first_byte"] and one["error"] is None)
    if len(begun) < 2:
        raise BenchError(f"no request was answered: {Counter(one['error'] for one in requests).most_common(3)}")
    waits = [(one["first_byte"] or one["end"]) - one["start"] for one in requests]
    added = [
        1000 * (one["first_byte"] - one["start"] - baseline.get(one["streamed"], 0.0))
        for one in requests
        if one["first_byte"] and one["begun"]
    ]
    return Tally(
        requests=len(requests),
        failed_before_first_byte=sum(one["failed_before_first_byte"] for one in requests),
        broken_streams=sum(one["broken"] for one in requests),
        max_wait_s=round(max(waits), 3),
        silence_s=round(max(after - before for before, after in pairwise(begun)), 3),
        added_p50_ms=round(statistics.median(added), 2),
        added_p99_ms=round(percentile(added, 0.99), 2),
        added_max_ms=round(max(added), 2),
        retried=dict(Counter(one["retried"] for one in requests if one["retried"])),
        errors=dict(Counter(_kind(one["error"]) for one in requests if one["error"]).most_common(5)),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of all does not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _kind(error: str) -> str:
    """What an error says without what differs from one to the next."""
    return error.split(":")[0] if not error.startswith("a stream that broke off") else "a stream that broke off"


class Clients:
    """Context manager: the clients ask inside, and on leaving every request sent has come to its end."""

    def __init__(self, python: Path, url: str, model: str, **options: Any) -> None:
        self._argv = [str(python), str(Path(__file__).resolve()), json.dumps({"url": url, "model": model, **options})]
        self._process: subprocess.Popen[str] | None = None
        self._moments: list[tuple[float, Record]] = []
        self.requests: list[Record] = []

    def __enter__(self) -> Clients:
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,  # Ctrl-C is for the script, which ends this
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._until(lambda: self.counts.get("answered", 0) > 0, 30, "no request is answered")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process and self._process.stdin
        if kind is not None:
            self._process.kill()
        self._process.stdin.close()
        self._reader.join(240)
        self._process.kill()
        if self._process.wait() != 0 and kind is None:
            raise BenchError(f"the clients ended with status {self._process.returncode}")

    def _read(self) -> None:
        assert self._process and self._process.stdout
        for line in self._process.stdout:
            told = json.loads(line)
            if "requests" in told:
                self.requests = told["requests"]
            else:
                self._moments.append((time.monotonic(), told))

    @property
    def counts(self) -> Record:
        """How many requests were sent, answered, are waiting and failed, a quarter of a second ago at most."""
        return self._moments[-1][1] if self._moments else {}

    def calm(self) -> None:
        """Let them ask for a while."""
        time.sleep(CALM)

    def settle(self, limit: float = 90.0) -> bool:
        """Wait for a while in which nothing fails and answers come; False when ``limit`` seconds bring none."""
        end = time.monotonic() + limit
        since = time.monotonic()
        while time.monotonic() < end:
            time.sleep(0.25)
            seen = [told for at, told in self._moments if at >= max(since, time.monotonic() - CALM - 0.5)]
            well = len(seen) > 2 and seen[0]["failed"] == seen[-1]["failed"]
            if well and time.monotonic() - since > CALM and seen[-1]["answered"] - seen[0]["answered"] >= 20:
                return True
        return False

    def _until(self, condition: Any, limit: float, what: str) -> None:
        assert self._process
        end = time.monotonic() + limit
        while not condition():
            if time.monotonic() > end or self._process.poll() is not None:
                self._process.kill()
                raise BenchError(f"{what} at the beginning: {self.counts}")
            time.sleep(0.05)


def ask(options: Record) -> None:
    """The process: traffic until standard input ends; counts meanwhile, then every request."""
    from fleetctl.lab.traffic import Crowd

    with Crowd(options.pop("url"), options.pop("model"), **options) as crowd:
        while not select.select([sys.stdin], [], [], 0.25)[0]:
            print(json.dumps(vars(crowd.counts())), flush=True)
    told = [
        {**vars(one), "broken": one.broken, "failed_before_first_byte": one.failed_before_first_byte}
        for one in crowd.requests()
    ]
    print(json.dumps({"requests": told}), flush=True)


if __name__ == "__main__":
    ask(json.loads(sys.argv[1]))
