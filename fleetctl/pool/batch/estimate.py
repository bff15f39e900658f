"""What a job takes: tokens before it has run, cost, and the time that is left. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetctl.errors import SpecError

BYTES_A_TOKEN = 4.0
"""Of English text, for most tokenizers; of code and other scripts it is less. Replaced by what engines count."""
ANSWER = 256
"""Tokens of an answer where a request sets no limit."""
WINDOW = 60.0
"""Seconds of the recent past that a rate is taken from."""


def tokens_of(path: str, body: Mapping[str, Any], size: int) -> tuple[int, int]:
    """Tokens that a request may take, of its prompt and of its answer, from the bytes of its body."""
    prompt = int(size / BYTES_A_TOKEN) + 1
    if path not in ("/v1/chat/completions", "/v1/completions"):
        return prompt, 0
    limit = next((body[key] for key in ("max_completion_tokens", "max_tokens") if body.get(key)), ANSWER)
    several = body.get("n") or 1
    return prompt, (limit if isinstance(limit, int) else ANSWER) * (several if isinstance(several, int) else 1)


@dataclass(frozen=True)
class Price:
    """What a million tokens cost, of prompts and of answers, in whatever currency it was given."""

    prompt: float
    answer: float

    def of(self, prompt: int, answer: int) -> float:
        """What so many tokens cost."""
        return (prompt * self.prompt + answer * self.answer) / 1e6


def parse_price(text: str) -> Price:
    """``0.10/0.40``, or one number for both. Raises SpecError."""
    parts = text.split("/")
    try:
        found = [float(part) for part in parts]
        if len(found) > 2 or not all(0 <= one < 1e9 for one in found):
            raise ValueError
    except ValueError:
        raise SpecError(
            f"--price {text}: it is what a million tokens cost, of prompts and of answers, like 0.10/0.40"
        ) from None
    return Price(found[0], found[-1])


@dataclass(frozen=True)
class Tally:
    """What has been answered so far."""

    answered: int = 0
    failed: int = 0
    """Of these, with a status of 400 or more."""
    prompt: int = 0
    """Tokens of prompts, as engines counted them."""
    answer: int = 0
    """Tokens of answers."""

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.prompt + self.answer

    def plus(self, *, failed: bool, prompt: int, answer: int) -> Tally:
        """With one more answer."""
        return Tally(self.answered + 1, self.failed + failed, self.prompt + prompt, self.answer + answer)


@dataclass
class Pace:
    """How fast it goes. Answers that were there already when somebody began to look say nothing of it."""

    seen: deque[tuple[float, int, int]] = field(default_factory=deque)

    def add(self, now: float, tally: Tally) -> None:
        """Note how far it is, at a time of a clock that only goes forward."""
        self.seen.append((now, tally.answered, tally.tokens))
        while len(self.seen) > 2 and now - self.seen[1][0] > WINDOW:
            self.seen.popleft()

    def rates(self) -> tuple[float, float]:
        """Lines and tokens a second, lately; 0 where nothing was answered yet."""
        if len(self.seen) < 2 or self.seen[-1][0] <= self.seen[0][0]:
            return 0.0, 0.0
        took = self.seen[-1][0] - self.seen[0][0]
        return (self.seen[-1][1] - self.seen[0][1]) / took, (self.seen[-1][2] - self.seen[0][2]) / took

    def left(self, remaining: int) -> float | None:
        """Seconds until so many more are answered; None where nothing tells it."""
        rate, _ = self.rates()
        return remaining / rate if rate > 0 else None
