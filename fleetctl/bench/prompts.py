"""Prompts of a wanted length, each unlike all others from its first word on.

Engines keep the beginnings of prompts in a cache. A generator that sends one prompt again and again measures that cache
and not the engine. What a mix or ``--shared-prefix`` says is shared is the same in all prompts, and comes first.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from fleetctl.bench.exchange import Request
from fleetctl.bench.mix import Mix

# Short common words, which nearly every tokenizer has as one token each.
_TEXT = (
    "the of and to in is you that it he was for on are as with his they at be this have from or one had by "
    "word but not what all were we when your can said there use an each which she do how their if will up "
    "other about out many then them these so some her would make like him into time has look two more write go "
    "see number no way could people my than first water been call who oil its now find long down day did get "
    "come made may part over new sound take only little work know place year live me back give most very after "
    "thing our just name good sentence man think say great where help through much before line right too mean "
    "old any same tell boy follow came want show also around form three small set put end does another well "
    "large must big even such because turn here why ask went men read need land different home us move try "
    "kind hand picture again change off play spell air away animal house point page letter mother answer found "
    "study still learn should world"
)
_WORDS = _TEXT.split()
_LONGEST = 1 << 15  # words of random text; a longer prompt takes it several times
_PROBES = (24, 424)  # words of the two prompts that show how the engine counts
_MOST_PER_WORD = 8  # tokens; a small vocabulary has several for a word


@dataclass(frozen=True)
class Counting:
    """How an engine counts: tokens per word, and tokens that it adds to every prompt (its chat template)."""

    per_word: float = 1.0
    added: float = 8.0

    @classmethod
    def learned(cls, short: tuple[int, int], long: tuple[int, int]) -> Counting:
        """From two prompts, each as its words and the tokens that the engine counted for it."""
        per_word = max(0.2, (long[1] - short[1]) / (long[0] - short[0]))
        return cls(per_word, max(0.0, short[1] - per_word * short[0]))

    def words(self, tokens: float) -> int:
        """Words that make about so many tokens."""
        return max(4, round((tokens - self.added) / self.per_word))


def probe_words(context: int | None) -> tuple[int, int]:
    """Words of two prompts that show how an engine counts, and that its context has room for."""
    short, long = _PROBES
    return short, long if context is None else max(short + 16, min(long, context // _MOST_PER_WORD))


@dataclass(frozen=True)
class Dialect:
    """What requests look like. ``exact``: the engine knows ``ignore_eos`` and makes as many tokens as are asked for."""

    model: str
    exact: bool = True
    usage: bool = True


class Prompts:
    """Endless requests of a mix. The same seed gives the same ones but for the words that make each unlike others.

    Those differ from run to run, so that a second run does not find the prompts of the first in the cache.
    """

    def __init__(self, mix: Mix, dialect: Dialect, counting: Counting, *, seed: int = 0, stream: bool = True) -> None:
        self.mix = mix
        self.dialect = dialect
        self.counting = counting
        self.stream = stream
        self._rng = random.Random(f"fleetctl-bench {seed}")
        words = [self._rng.choice(_WORDS) for _ in range(_LONGEST)]
        self._text = " ".join(words)
        # Where each word begins, so that any stretch of words is one slice of the text.
        self._at = [0, *itertools.accumulate(len(word) + 1 for word in words)]
        self._names = self._unlike()
        self._shared = self._stretch(counting.words(mix.shared + counting.added)) + " " if mix.shared else ""

    def __iter__(self) -> Iterator[Request]:
        return self

    def __next__(self) -> Request:
        answer = self.mix.answer.draw(self._rng) if self.mix.answer else 0
        return self.request(self.mix.prompt.draw(self._rng), answer)

    def answering(self, answer_tokens: int) -> Request:
        """One request with a prompt of the mix, and an answer of a given length where the mix has answers."""
        return self.request(self.mix.prompt.draw(self._rng), answer_tokens if self.mix.answer else 0)

    def request(self, prompt_tokens: int, answer_tokens: int) -> Request:
        """One request with a prompt of its own; ``prompt_tokens`` are those beside the shared ones."""
        text = f"{self._shared}{next(self._names)} {self._stretch(self.counting.words(prompt_tokens))}"
        return self._request(text, prompt_tokens + self.mix.shared, answer_tokens, stream=self.stream)

    def probe(self, words: int) -> Request:
        """A request whose prompt has so many words."""
        return self._request(f"{next(self._names)} {self._stretch(words - 3)}", 0, 1, stream=False)

    def _request(self, text: str, prompt_tokens: int, answer_tokens: int, *, stream: bool) -> Request:
        model = json.dumps(self.dialect.model)
        if self.mix.kind == "embeddings":
            body = f'{{"model":{model},"input":"{text}"}}'
            return Request("/embeddings", body.encode("ascii"), False, 0, prompt_tokens)
        more = ',"ignore_eos":true' if self.dialect.exact else ""
        if stream:
            more += ',"stream":true' + (',"stream_options":{"include_usage":true}' if self.dialect.usage else "")
        body = (
            f'{{"model":{model},"messages":[{{"role":"user","content":"{text}"}}],"max_tokens":{answer_tokens}{more}}}'
        )
        return Request("/chat/completions", body.encode("ascii"), stream, answer_tokens, prompt_tokens)

    def _stretch(self, words: int) -> str:
        parts = []
        while words > 0:
            count = min(words, _LONGEST // 2)
            first = self._rng.randrange(_LONGEST - count)
            parts.append(self._text[self._at[first] : self._at[first + count] - 1])
            words -= count
        return " ".join(parts)

    def _unlike(self) -> Iterator[str]:
        """Three words that no other prompt begins with, of this run or (nearly surely) of another."""
        size = len(_WORDS)
        at = random.SystemRandom().randrange(size**3)
        step = 7_368_787  # a prime that does not divide the number of combinations: all are used before one returns
        while True:
            at = (at + step) % size**3
            yield f"{_WORDS[at // size**2]} {_WORDS[at // size % size]} {_WORDS[at % size]}"
