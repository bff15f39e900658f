"""What ``fleetctl batch`` does, once there is a way to NATS."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

import nats.errors
from nats.js.errors import APIError

from fleetctl.errors import RefusedError
from fleetctl.pool.batch.away import Patience
from fleetctl.pool.batch.books import Books, Standing, open_books
from fleetctl.pool.batch.complete import Progress, Teller, collected, complete
from fleetctl.pool.batch.estimate import Tally
from fleetctl.pool.batch.job import Job
from fleetctl.pool.batch.lines import BatchFile
from fleetctl.pool.batch.output import Spool, Written, paths, write
from fleetctl.pool.batch.results import Answer
from fleetctl.pool.batch.submit import begin, submit
from fleetctl.pool.nats import QueueError
from fleetctl.run.batching import Way, connected, renewing

Result = TypeVar("Result")

ANSWERS_IN = 3.0
"""Seconds that NATS has for one answer, before it is asked again."""
LISTS_IN = 10.0
"""The same for a list of all lines of a job."""


class Showing(Protocol):
    """Who hears of a job as it goes."""

    def begun(self, job: Job, standing: Standing) -> None:
        """It is kept, and so far; nothing of it is submitted by this command yet."""

    def hear(self, progress: Progress) -> None:
        """It goes on."""

    def submitted(self, job: Job, lines: int) -> None:
        """All of it is accepted, and nobody wants to wait."""

    def written(self, job: Job, done: Written, tally: Tally, *, cancelled: bool) -> None:
        """Its answers are in files."""


def carry_out(way: Way, file: BatchFile, where: tuple[Path, Path] | None, showing: Showing) -> Written | None:
    """Submit a file, or go on with it, collect its answers and write them.

    With ``where`` None it ends when all is accepted, and returns None. Raises QueueError when NATS cannot be reached at
    first or refuses something, FleetError when lines vanish.
    """

    async def work() -> Written | None:
        async with _books(way, make=True) as books:
            job = await begin(books, file, time.time())
            showing.begun(job, await books.standing(job))
            renew = renewing(way)
            teller = Teller(job.lines, showing.hear, renew)
            if where is None:
                showing.submitted(job, await submit(books, file, job, teller.patience, teller.accepted))
                return None
            names = {line.number: line.custom_id for line in file.lines}
            with Spool(where[0].parent, job.name, names) as spool:
                whole = await complete(books, file, job, spool, teller)
                done = write(spool, where, cancelled=not whole)
                showing.written(job, done, teller.tally, cancelled=not whole)
                return done

    return _ran(work)


def jobs(way: Way) -> list[Standing]:
    """Every job and how far it is, the oldest first."""

    async def work() -> list[Standing]:
        async with _books(way) as books:
            return [await books.standing(job) for job in await books.all()]

    return _ran(work)


def look(way: Way, name: str) -> tuple[Standing, Tally]:
    """One job: how far it is, and what its answers took. Raises SpecError when there is none of that name."""

    async def work() -> tuple[Standing, Tally]:
        async with _books(way) as books:
            job = await books.need(name)
            seen: set[int] = set()

            def keep(answer: Answer) -> bool:
                known = answer.line in seen
                seen.add(answer.line)
                return not known

            return await books.standing(job), await collected(books, job, keep, Patience())

    return _ran(work)


def fetch(way: Way, name: str, out: Path | None, *, partial: bool) -> Written:
    """Write the answers of a job. Raises RefusedError when some are to come and ``partial`` is not said."""

    async def work() -> Written:
        async with _books(way) as books:
            job = await books.need(name)
            standing = await books.standing(job)
            if standing.answered < job.lines and not job.cancelled and not partial:
                raise RefusedError(
                    f"{standing.answered} of {job.lines} lines of {name} are answered",
                    hint="--partial writes these; `fleetctl batch run` on its file waits for the rest",
                )
            where = paths(job.file, out)
            with Spool(where[0].parent, job.name, await books.names(job.name)) as spool:
                await collected(books, job, spool.keep, Patience())
                return write(spool, where, cancelled=bool(job.cancelled))

    return _ran(work)


def cancel(way: Way, name: str) -> tuple[Standing, int]:
    """Remove what waits of a job. Returns how far it was, and how many lines were removed."""

    async def work() -> tuple[Standing, int]:
        async with _books(way) as books:
            job = await books.need(name)
            standing = await books.standing(job)
            if standing.state == "finished":
                return standing, 0
            # First the note: a command that watches the job would submit again what is gone.
            await books.put(job.at(cancelled=time.time()))
            return standing, await books.stop(job.name)

    return _ran(work)


def remove(way: Way, name: str) -> None:
    """Remove a job and its answers."""

    async def work() -> None:
        async with _books(way) as books:
            job = await books.need(name)
            await books.put(job.at(cancelled=time.time()))
            await books.forget(job.name)

    _ran(work)


@contextlib.asynccontextmanager
async def _books(way: Way, *, make: bool = False) -> AsyncIterator[Books]:
    async with connected(way) as client:
        js, lists = client.jetstream(timeout=ANSWERS_IN), client.jetstream(timeout=LISTS_IN)
        yield await open_books(js, lists, make=make, store=way.store)


def _ran(work: Callable[[], Awaitable[Result]]) -> Result:
    async def main() -> Result:
        return await work()

    try:
        return asyncio.run(main())
    except (APIError, nats.errors.Error) as error:
        said = (error.description if isinstance(error, APIError) else None) or str(error) or type(error).__name__
        raise QueueError(f"NATS does not do as asked: {said}", hint="the job is as it was; try again") from None
