"""Steady traffic through the proxy, as clients of the fleet would make it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import httpx

BETWEEN = 0.5  # seconds from one request to the next
LONGEST = 600.0  # seconds until a client gives up; longer than the proxy holds a request for any move here


@dataclass(frozen=True)
class Asked:
    """One request: when it was sent and answered (seconds since the epoch), and why it failed, if it did."""

    sent: float
    answered: float
    failure: str | None

    @property
    def waited(self) -> float:
        return self.answered - self.sent


def ask(url: str, model: str, *, timeout: float = LONGEST) -> Asked:
    """A completion of four tokens; an answer without text counts as a failure."""
    sent = time.time()
    question = {"model": model, "prompt": "Say hello.", "max_tokens": 4}
    try:
        with httpx.Client(timeout=timeout, trust_env=False) as client:
            answer = client.post(f"{url}/v1/completions", json=question)
        failure = None if answer.status_code == 200 else f"status {answer.status_code}: {answer.text[:200]}"
        if failure is None and not answer.json()["choices"][0]["text"]:
            failure = f"no text in {answer.text[:200]}"
    except (httpx.HTTPError, ValueError, LookupError) as error:
        failure = f"{type(error).__name__}: {error}"
    return Asked(sent, time.time(), failure)


class Traffic:
    """Context manager: one request after another at a steady pace, answered or not, until it is left.

    Leaving it waits for every request that is still out.
    """

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url, model
        self._asked: list[Asked] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._clients: list[threading.Thread] = []
        self._pace = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> Traffic:
        self._pace.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._pace.join()
        if kind is None:
            for client in self._clients:
                client.join()

    def _send(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due += BETWEEN
            client = threading.Thread(target=self._one, daemon=True)
            self._clients.append(client)
            client.start()

    def _one(self) -> None:
        asked = ask(self._url, self._model)
        with self._lock:
            self._asked.append(asked)

    @property
    def asked(self) -> list[Asked]:
        """Requests that have ended, in the order in which they were sent."""
        with self._lock:
            return sorted(self._asked, key=lambda one: one.sent)

    @property
    def failed(self) -> list[Asked]:
        return [one for one in self.asked if one.failure is not None]

    def first_answer(self, since: float) -> Asked | None:
        """The first good answer that came after ``since`` (seconds since the epoch)."""
        good = [one for one in self.asked if one.failure is None and one.answered >= since]
        return min(good, key=lambda one: one.answered, default=None)

    def longest_silence(self) -> float:
        """Seconds of the longest time in which no request was answered."""
        times = sorted(one.answered for one in self.asked if one.failure is None)
        return max((b - a for a, b in zip(times, times[1:], strict=False)), default=0.0)


def until(what: Callable[[], object], why: Callable[[], str], patience: float) -> None:
    """Wait until ``what`` is true; ``patience`` (seconds) is only ever spent by a test that fails."""
    end = time.monotonic() + patience
    while not what():
        assert time.monotonic() < end, why()
        time.sleep(0.2)
