"""What is kept of batch jobs in NATS, and how far each is. Streams are on file, so all of it outlives every program."""

from __future__ import annotations

from dataclasses import dataclass

from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, ObjectStoreConfig, StorageType
from nats.js.errors import BucketNotFoundError, KeyNotFoundError, NoKeysError, NotFoundError
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore

from fleetctl.errors import SpecError
from fleetctl.pool import wire
from fleetctl.pool.batch import job as kept
from fleetctl.pool.batch.job import Job
from fleetctl.pool.nats import QueueError

JOBS = "jobs"
"""Bucket of the key-value store with one entry per job, and of the object store with the names of its lines."""


@dataclass(frozen=True)
class Standing:
    """How far a job is. A line is answered, or waits (or is worked on), or has not been submitted."""

    job: Job
    answered: int
    waiting: int

    @property
    def missing(self) -> int:
        """Lines that were never accepted, or were removed."""
        return self.job.lines - self.answered - self.waiting

    @property
    def state(self) -> str:
        """In one word."""
        if self.answered >= self.job.lines:
            return "finished"
        if self.job.cancelled:
            return "cancelled"
        return "running" if self.missing <= 0 else "partly submitted"


class Books:
    """Jobs by their names. Every method raises nats' own errors when the server does not answer."""

    def __init__(
        self,
        js: JetStreamContext,
        lists: JetStreamContext,
        jobs: KeyValue | None,
        names: ObjectStore | None,
        store: int = 0,
    ) -> None:
        self.js = js
        self._lists = lists
        self.store = store
        self._jobs = jobs
        self._names = names

    async def put(self, job: Job) -> None:
        """Keep a job, in place of what was kept of it."""
        await self._kv().put(job.name, job.pack())

    async def put_names(self, job: str, names: bytes) -> None:
        """Keep what :func:`fleetctl.pool.batch.job.pack_names` gave."""
        await self._objects().put(job, names)

    async def get(self, name: str) -> Job | None:
        """A job; None: there is none of that name."""
        if self._jobs is None:
            return None
        try:
            entry = await self._jobs.get(name)
        except KeyNotFoundError:
            return None
        return kept.unpack(entry.value or b"")

    async def need(self, name: str) -> Job:
        """A job. Raises SpecError when there is none of that name."""
        found = await self.get(kept.checked(name))
        if found is None:
            raise SpecError(f"there is no job {name}", hint="`fleetctl batch list` has all of them")
        return found

    async def names(self, name: str) -> dict[int, str]:
        """Line → ``custom_id``, in the order of the file."""
        found = await self._objects().get(name)
        return kept.unpack_names(found.data or b"")

    async def all(self) -> list[Job]:
        """Every job, the oldest first."""
        if self._jobs is None:
            return []
        try:
            keys = await self._jobs.keys()
        except NoKeysError:
            return []
        found = [await self.get(key) for key in keys]
        return sorted((one for one in found if one is not None), key=lambda one: one.created)

    async def standing(self, job: Job) -> Standing:
        """How far a job is, now."""
        waiting = await self.waiting(job.name)
        answered = await self.answered(job.name)
        return Standing(job, len(answered), len(waiting - answered))

    async def answered(self, job: str) -> set[int]:
        """Lines of a job that have their answers."""
        return await self._numbers(wire.RESULTS, f"result.{wire.token(job)}.*")

    async def waiting(self, job: str) -> set[int]:
        """Lines of a job that were accepted and are not acknowledged: those that wait, and those at work."""
        return await self._numbers(wire.BATCH, f"batch.*.{wire.token(job)}.*")

    async def missing(self, job: str, lines: set[int]) -> set[int]:
        """Lines that have to be submitted. What waits is asked first: an answer is stored before its line leaves."""
        waiting = await self.waiting(job)
        return lines - waiting - await self.answered(job)

    async def stop(self, job: str) -> int:
        """Remove the lines that wait. Returns how many they were; those at work are still answered."""
        waiting = await self.waiting(job)
        await self.js.purge_stream(wire.BATCH, subject=f"batch.*.{wire.token(job)}.*")
        await self._remove_bodies([f"{job}.{line}" for line in waiting])
        return len(waiting - await self.answered(job))

    async def forget(self, job: str) -> None:
        """Remove a job with everything that is kept of it."""
        await self.stop(job)
        lines = await self.answered(job)
        await self._remove_bodies([f"{job}.{line}{kind}" for line in lines for kind in ("", ".answer")])
        await self.js.purge_stream(wire.RESULTS, subject=f"result.{wire.token(job)}.*")
        await self._objects().delete(job)
        await self._kv().purge(job)

    async def _remove_bodies(self, names: list[str]) -> None:
        try:
            bucket = await self.js.object_store(wire.BODIES)
            there = {info.name for info in await bucket.list(ignore_deletes=True)}
        except NotFoundError:  # no bucket, or nothing in it
            return
        for name in there.intersection(names):
            await bucket.delete(name)

    async def _numbers(self, stream: str, subjects: str) -> set[int]:
        info = await self._lists.stream_info(stream, subjects_filter=subjects)
        return {int(subject.rsplit(".", 1)[-1]) for subject in info.state.subjects or {}}

    def _kv(self) -> KeyValue:
        assert self._jobs is not None
        return self._jobs

    def _objects(self) -> ObjectStore:
        assert self._names is not None
        return self._names


async def open_books(js: JetStreamContext, lists: JetStreamContext, *, make: bool = False, store: int = 0) -> Books:
    """The books of a pool's NATS; with ``make`` they are begun where there are none.

    ``lists`` is asked for all lines of a job, some megabytes for the largest, and has time for it. ``store``: bytes
    that the server keeps at most, of which the batch lane takes its part; 0: not known, no limit.
    Raises QueueError when no program of a pool has made its streams there.
    """
    try:
        replicas = (await js.stream_info(wire.BATCH)).config.num_replicas or 1
    except NotFoundError:
        raise QueueError(
            "NATS has no stream BATCH: no worker of a pool has run with it",
            hint="`fleetctl cutover` to a layout that has models in a pool starts them",
        ) from None
    if make:
        jobs = await js.create_key_value(KeyValueConfig(bucket=JOBS, storage=StorageType.FILE, replicas=replicas))
        names = ObjectStoreConfig(storage=StorageType.FILE, replicas=replicas)
        return Books(js, lists, jobs, await js.create_object_store(JOBS, names), store)
    try:
        return Books(js, lists, await js.key_value(JOBS), await js.object_store(JOBS))
    except (BucketNotFoundError, NotFoundError):
        return Books(js, lists, None, None)
