"""A run in figures. Pure.

Tokens are counted when they arrive, so that a window of some seconds needs no whole number of answers in it. What one
piece of a stream has in tokens is what the server counted for the answer, divided by its pieces.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fleetctl.bench.exchange import Exchange
from fleetctl.bench.health import Generator
from fleetctl.bench.load import Run
from fleetctl.bench.percentiles import Spread, spread
from fleetctl.errors import SpecError
from fleetctl.spec.units import parse_duration


@dataclass(frozen=True)
class Target:
    """What an answer has to keep to count as good; seconds, None: whatever it takes.

    ``ttft``: time to first token, ``tpot``: time per output token after the first, ``total``: the whole answer.
    """

    ttft: float | None = None
    tpot: float | None = None
    total: float | None = None

    def met(self, latency: Latency) -> bool:
        """An answer keeps it."""
        pairs = ((self.ttft, latency.ttft), (self.tpot, latency.tpot), (self.total, latency.total))
        return all(limit is None or took is None or took <= limit for limit, took in pairs)


def parse_target(text: str) -> Target:
    """``ttft=2s,tpot=100ms`` as a target. Raises SpecError."""
    found: dict[str, float] = {}
    for part in text.replace(",", " ").split():
        key, equals, value = part.partition("=")
        try:
            if key not in ("ttft", "tpot", "total") or not equals:
                raise ValueError("a target is ttft=, tpot= or total=")
            found[key] = parse_duration(value)
        except ValueError as error:
            raise SpecError(f"--target {text}: {error}", hint="write like ttft=2s,tpot=100ms") from error
    return Target(**found)


@dataclass(frozen=True)
class Latency:
    """Of one answer, in seconds; None for what it does not have."""

    ttft: float | None
    tpot: float | None
    total: float


@dataclass(frozen=True)
class Summary:
    """Figures of the window. Times are seconds, rates per second unless the name says otherwise.

    ``requests`` are those that count, well or not; ``unanswered`` those that were cut off at the end of an open loop.
    """

    seconds: float
    concurrency: int | None
    rate: float | None
    requests: int
    answered: int
    unanswered: int
    errors: dict[str, int]
    requests_per_minute: float
    tokens_in_rate: float
    tokens_out_rate: float
    ttft: Spread | None
    tpot: Spread | None
    total: Spread | None
    good_per_minute: float | None
    good_share: float | None
    prompt_tokens: Spread | None
    answer_tokens: Spread | None
    generator: Generator | None = field(default=None)

    @property
    def failed(self) -> int:
        """Requests that got no answer, or a broken one."""
        return sum(self.errors.values())


def summarize(run: Run, target: Target | None = None) -> Summary:
    """The figures of a run."""
    window = run.window
    seconds = window.end - window.begin
    opened = run.concurrency is None
    counted = [e for e in run.exchanges if window.has(e.intended if opened else e.ended or 0.0)]
    good = [e for e in counted if e.error is None]
    errors = Counter(e.error for e in counted if e.error is not None)
    cut = [e for e in run.cut if opened and window.has(e.intended)]
    if cut:
        errors["unanswered at the end"] = len(cut)
    latencies = [latency_of(e) for e in good]
    # What was cut off has waited at least so long: leaving it out would hide the slowest of all.
    waited = [max((x.ended or window.end) for x in (*run.exchanges, *cut)) - e.intended for e in cut]
    first_waits = [wait for e, wait in zip(cut, waited, strict=True) if e.first is None]
    met = sum(target.met(latency) for latency in latencies) if target else None
    wanted = len(counted) + len(cut)
    return Summary(
        seconds=seconds,
        concurrency=run.concurrency,
        rate=run.rate,
        requests=wanted,
        answered=len(good),
        unanswered=len(cut),
        errors=dict(errors.most_common()),
        requests_per_minute=60 * len(good) / seconds,
        tokens_in_rate=sum(e.tokens_in for e in good) / seconds,
        tokens_out_rate=_tokens_inside(run) / seconds,
        ttft=spread([one.ttft for one in latencies if one.ttft is not None] + first_waits),
        tpot=spread([one.tpot for one in latencies if one.tpot is not None]),
        total=spread([one.total for one in latencies] + waited),
        good_per_minute=None if met is None else 60 * met / seconds,
        good_share=None if met is None or not wanted else met / wanted,
        prompt_tokens=spread([e.tokens_in for e in good]),
        answer_tokens=spread([made for e in good if (made := tokens_out(e))]),
        generator=run.generator,
    )


def latency_of(exchange: Exchange) -> Latency:
    """Times of an answered request; an answer in one piece has no first token of its own."""
    assert exchange.ended is not None
    total = exchange.ended - exchange.intended
    if not exchange.request.stream or exchange.first is None or exchange.last is None:
        return Latency(None, None, total)
    made = tokens_out(exchange)
    tpot = (exchange.last - exchange.first) / (made - 1) if made > 1 else None
    return Latency(exchange.first - exchange.intended, tpot, total)


def tokens_out(exchange: Exchange) -> int:
    """Tokens of an answer; where the server does not tell, one for each piece."""
    if exchange.output_tokens is not None:
        return exchange.output_tokens
    return exchange.chunks if exchange.request.tokens else 0


def _tokens_inside(run: Run) -> float:
    """Output tokens that arrived in the window, of whole, broken and cut answers alike."""
    whole = [e for e in run.exchanges if e.chunks and e.output_tokens is not None]
    made, chunks = sum(tokens_out(e) for e in whole), sum(e.chunks for e in whole)
    usual = made / chunks if chunks else 1.0
    return sum(_inside(e, usual) for e in (*run.exchanges, *run.cut))


def _inside(exchange: Exchange, usual: float) -> float:
    if not exchange.inside or not exchange.request.tokens:
        return 0.0
    if exchange.output_tokens is None:
        return exchange.inside * usual
    return exchange.output_tokens * exchange.inside / exchange.chunks
