"""A job from its file to its last answer, however often it is cut off on the way."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from fleetctl.errors import FleetError
from fleetctl.pool.batch.away import Hear as Away
from fleetctl.pool.batch.away import Patience
from fleetctl.pool.batch.books import Books
from fleetctl.pool.batch.estimate import Pace, Tally
from fleetctl.pool.batch.follow import Clock, answers, there
from fleetctl.pool.batch.job import Job
from fleetctl.pool.batch.lines import BatchFile
from fleetctl.pool.batch.output import Spool
from fleetctl.pool.batch.quota import Full
from fleetctl.pool.batch.results import Answer
from fleetctl.pool.batch.submit import submit

LOOK_EVERY = 5.0
"""Seconds between two looks at what else became of a job of which no answers come."""
ROUNDS = 3
"""How often lines are submitted that leave the queue without an answer, while no others are answered."""


@dataclass(frozen=True)
class Progress:
    """How far it is, for a person."""

    phase: Literal["submitting", "answering"]
    submitted: int
    """Lines that were accepted, of ``to_submit``."""
    to_submit: int
    tally: Tally
    lines: int
    rate: float = 0.0
    """Lines a second, lately."""
    token_rate: float = 0.0
    left: float | None = None
    """Seconds to the end, as it goes now."""
    away: float = 0.0
    """Seconds for which NATS has not answered."""
    full: Full = ""
    """What has no room now."""


Hear = Callable[[Progress], None]


class Teller:
    """Puts together what a person hears, from what happens."""

    def __init__(self, lines: int, hear: Hear, look_after: Away | None = None) -> None:
        self._hear = hear
        self._look_after = look_after
        self._now = Progress("submitting", 0, 0, Tally(), lines)
        self._pace = Pace()
        self.patience = Patience(self._away)

    @property
    def tally(self) -> Tally:
        """What is answered so far."""
        return self._now.tally

    def accepted(self, done: int, of: int, full: Full) -> None:
        """So many lines were accepted; ``full``: what has no room for more now."""
        self._say(replace(self._now, phase="submitting", submitted=done, to_submit=of, full=full))

    def counted(self, tally: Tally, *, new: bool) -> None:
        """So many are answered; ``new``: not only read now, as those are that were there before."""
        if new:
            self._pace.add(time.monotonic(), tally)
        rate, tokens = self._pace.rates()
        left = self._pace.left(self._now.lines - tally.answered)
        self._say(replace(self._now, phase="answering", tally=tally, rate=rate, token_rate=tokens, left=left))

    async def _away(self, seconds: float) -> None:
        self._say(replace(self._now, away=seconds))
        if self._look_after is not None:
            await self._look_after(seconds)

    def _say(self, progress: Progress) -> None:
        self._now = progress
        self._hear(progress)


async def complete(books: Books, file: BatchFile, job: Job, spool: Spool, teller: Teller) -> bool:
    """Submit what is missing and collect all answers. Returns False when somebody cancelled the job meanwhile.

    Raises FleetError when lines leave the queue again and again without an answer.
    """
    tally, lines = Tally(), {line.number for line in file.lines}
    known = await _known(books, job, teller)
    rounds, had = 0, 0
    while rounds < ROUNDS:
        rounds, had = (rounds + 1, had) if len(spool) == had else (1, len(spool))
        await submit(books, file, job, teller.patience, teller.accepted)
        if await _cancelled(books, job, teller):
            await teller.patience.call(lambda: books.stop(job.name))  # also what came in after it was cancelled
            return False
        look = Clock(LOOK_EVERY)
        async with contextlib.aclosing(answers(books.js, job.name, teller.patience)) as stream:
            async for found in stream:
                tally = counted(found, spool.keep, tally)
                teller.counted(tally, new=len(spool) > known)
                if len(spool) >= len(lines):
                    return True
                if not found and look.strikes():
                    if await _cancelled(books, job, teller):
                        return False
                    if await teller.patience.call(lambda: books.missing(job.name, lines)):
                        break
    raise FleetError(
        f"{len(spool.missing)} lines of {job.name} left the queue {ROUNDS} times without an answer, line "
        f"{spool.missing[0]} first",
        hint="the workers' logs say why; the same command tries it again",
    )


async def collected(books: Books, job: Job, keep: Callable[[Answer], bool], patience: Patience) -> Tally:
    """Hand over the answers that are there now."""
    tally = Tally()
    async with contextlib.aclosing(there(books.js, job.name, patience)) as stream:
        async for found in stream:
            tally = counted(found, keep, tally)
    return tally


def counted(found: list[Answer], keep: Callable[[Answer], bool], tally: Tally) -> Tally:
    """Hand answers over, and count those that are kept."""
    for answer in found:
        if keep(answer):
            prompt, completion = answer.tokens()
            tally = tally.plus(failed=answer.failed, prompt=prompt, answer=completion)
    return tally


async def _known(books: Books, job: Job, teller: Teller) -> int:
    return len(await teller.patience.call(lambda: books.answered(job.name)))


async def _cancelled(books: Books, job: Job, teller: Teller) -> bool:
    found = await teller.patience.call(lambda: books.get(job.name))
    return found is None or bool(found.cancelled)
