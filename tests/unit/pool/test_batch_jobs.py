"""Batch jobs on a real nats-server: nothing that was accepted is lost, and nothing is answered twice."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from batchworker import Worker, openai, prepare, working
from natsserver import NatsServer, needs_nats, running

from fleetctl.errors import FleetError, RefusedError, SpecError
from fleetctl.pool import wire
from fleetctl.pool.batch import complete as completing
from fleetctl.pool.batch import quota
from fleetctl.pool.batch import submit as submitting
from fleetctl.pool.batch.books import Standing
from fleetctl.pool.batch.complete import Progress
from fleetctl.pool.batch.estimate import Tally
from fleetctl.pool.batch.job import Job
from fleetctl.pool.batch.lines import BatchFile, Targets, read
from fleetctl.pool.batch.output import Written, paths
from fleetctl.pool.nats import QueueError, connect
from fleetctl.run import batch_jobs
from fleetctl.run.batching import Way

pytestmark = needs_nats


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NatsServer]:
    monkeypatch.setattr(batch_jobs, "ANSWERS_IN", 1.0)  # what was asked of a server that is killed is not waited for
    monkeypatch.setattr(batch_jobs, "LISTS_IN", 1.0)
    with running(tmp_path) as server:
        prepare(server.access)
        yield server


class Heard:
    """Hears of a job; ``on`` is called with each state of it."""

    def __init__(self, on: Callable[[Progress], None] = lambda _: None) -> None:
        self.on = on
        self.job: Job | None = None
        self.before: Standing | None = None
        self.lines: int | None = None
        self.away = 0.0
        self.full: set[str] = set()
        self.tally = Tally()
        self.cancelled = False

    def begun(self, job: Job, standing: Standing) -> None:
        self.job, self.before = job, standing

    def hear(self, progress: Progress) -> None:
        self.away = max(self.away, progress.away)
        self.full.add(progress.full)
        self.on(progress)

    def submitted(self, job: Job, lines: int) -> None:
        self.lines = lines

    def written(self, job: Job, done: Written, tally: Tally, *, cancelled: bool) -> None:
        self.tally, self.cancelled = tally, cancelled


def way(server: NatsServer) -> Way:
    return Way(server.access, None)


def file_of(count: int, name: str = "in.jsonl") -> BatchFile:
    return read(name, openai(*(f"text {number}" for number in range(count))), Targets({}, {}))


def submitted(server: NatsServer, file: BatchFile) -> Heard:
    heard = Heard()
    assert batch_jobs.carry_out(way(server), file, None, heard) is None
    return heard


def finished(server: NatsServer, file: BatchFile, folder: Path, heard: Heard | None = None) -> list[dict[str, Any]]:
    done = batch_jobs.carry_out(way(server), file, paths("x", folder / "out.jsonl"), heard or Heard())
    assert done is not None and done.failed == 0
    rows = [json.loads(row) for row in done.output.read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == [line.custom_id for line in file.lines]
    asked = [row["response"]["body"]["asked"] for row in rows]
    assert asked == [file.body(line) for line in file.lines]
    return rows


def standing(server: NatsServer, job: Job | None) -> Standing:
    assert job is not None
    return batch_jobs.look(way(server), job.name)[0]


def test_answers_come_in_the_order_of_the_file_and_the_same_command_asks_nothing_again(
    server: NatsServer, tmp_path: Path
) -> None:
    heard = Heard()
    with working(server.access) as worker:
        rows = finished(server, file_of(120), tmp_path, heard)
        assert rows[0]["response"]["status_code"] == 200
        assert heard.tally == Tally(answered=120, prompt=360, answer=240)
        again = Heard()
        assert finished(server, file_of(120, "moved/elsewhere.jsonl"), tmp_path, again) == rows
        assert again.before is not None and again.before.state == "finished"
    assert len(worker.worked) == len(set(worker.worked)) == 120
    assert [one.job.file for one in batch_jobs.jobs(way(server))] == ["in.jsonl"]


def test_what_is_accepted_is_not_accepted_a_second_time_however_long_it_waits(server: NatsServer) -> None:
    first = submitted(server, file_of(50))
    assert first.lines == 50
    assert submitted(server, file_of(50)).lines == 0

    async def forced() -> None:
        client = await connect(server.access, "test", wait=10)
        subject = wire.batch_subject("m", first.job.name if first.job else "", 7)
        with pytest.raises(Exception, match="maximum messages per subject"):
            await client.jetstream().publish(subject, b"again", headers={"Nats-Msg-Id": "of-another-day"})
        await client.close()

    asyncio.run(forced())
    assert standing(server, first.job).waiting == 50


def test_a_submission_that_was_cut_off_goes_on_where_it_was(server: NatsServer, tmp_path: Path) -> None:
    class PulledPlugError(Exception):
        pass

    def cut(progress: Progress) -> None:
        if progress.submitted >= 100:
            raise PulledPlugError

    heard = Heard(cut)
    with pytest.raises(ExceptionGroup):
        batch_jobs.carry_out(way(server), file_of(300), None, heard)
    half = standing(server, heard.job)
    assert half.state == "partly submitted" and 100 <= half.waiting < 300
    with working(server.access) as worker:
        finished(server, file_of(300), tmp_path)
    assert sorted(worker.worked) == sorted(f"{half.job.name}.{number}" for number in range(1, 301))


def test_nats_that_is_killed_in_the_middle_loses_nothing(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completing, "ROUNDS", 1)  # nothing is lost and submitted again
    killed = threading.Event()

    def kill(progress: Progress) -> None:
        far = progress.submitted >= 150 if progress.phase == "submitting" else progress.tally.answered >= 100
        if far and not killed.is_set():
            killed.set()
            server.stop(signal.SIGKILL)
            threading.Timer(0.7, server.start).start()

    heard = Heard(kill)
    with working(server.access, pace=0.002):
        finished(server, file_of(300), tmp_path, heard)
        assert killed.is_set() and heard.away > 0
        killed.clear()
        submitted(server, file_of(301))
        again = Heard(kill)
        finished(server, file_of(301), tmp_path, again)
    assert killed.is_set()


def test_a_power_cut_that_takes_the_last_lines_and_answers_is_made_good(server: NatsServer, tmp_path: Path) -> None:
    store, before = tmp_path / "store", tmp_path / "before"
    cuts = iter((20, 60))
    due = next(cuts)

    def cut(progress: Progress) -> None:
        nonlocal due
        if progress.tally.answered < due:
            return
        server.stop(signal.SIGKILL)
        if not before.exists():
            shutil.copytree(store, before)
        else:
            shutil.rmtree(store)
            before.rename(store)
        due = next(cuts, 1_000)
        server.start()

    with working(server.access, pace=0.01):
        finished(server, file_of(120), tmp_path, Heard(cut))
    assert due == 1_000


def test_a_worker_that_is_gone_in_the_middle_is_followed_by_another(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completing, "ROUNDS", 1)
    first = Worker(server.access, pace=0.005)
    others: list[Worker] = []

    def change(progress: Progress) -> None:
        if progress.tally.answered >= 30 and not others:
            first.over.set()
            others.append(Worker(server.access))

    finished(server, file_of(200), tmp_path, Heard(change))
    others[0].end()
    assert others[0].worked and first.worked
    assert len({*first.worked, *others[0].worked}) == 200


def test_a_line_that_leaves_the_queue_without_an_answer_is_submitted_again(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completing, "LOOK_EVERY", 0.1)

    async def taken() -> None:
        client = await connect(server.access, "test", wait=10)
        pull = await client.jetstream().pull_subscribe_bind(durable=wire.consumer("m", "batch"), stream=wire.BATCH)
        for message in await pull.fetch(2, timeout=10):
            await message.ack_sync()
        await client.close()

    submitted(server, file_of(5))
    asyncio.run(taken())
    with working(server.access):
        finished(server, file_of(5), tmp_path)


def test_lines_that_vanish_again_and_again_end_it_with_their_number(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completing, "LOOK_EVERY", 0.1)
    over = threading.Event()

    async def swallow() -> None:
        client = await connect(server.access, "test", wait=10)
        pull = await client.jetstream().pull_subscribe_bind(durable=wire.consumer("m", "batch"), stream=wire.BATCH)
        while not over.is_set():
            try:
                for message in await pull.fetch(5, timeout=0.1):
                    await message.ack()
            except TimeoutError:
                continue
        await client.close()

    thread = threading.Thread(target=lambda: asyncio.run(swallow()))
    thread.start()
    try:
        with pytest.raises(FleetError, match=r"2 lines of b-\w+ left the queue 3 times without an answer, line 1"):
            finished(server, file_of(2), tmp_path)
    finally:
        over.set()
        thread.join()


def test_cancel_removes_what_waits_and_the_same_command_goes_on(server: NatsServer, tmp_path: Path) -> None:
    job = submitted(server, file_of(40)).job
    other = submitted(server, file_of(41)).job
    assert job is not None
    with working(server.access, pace=0.01) as worker:
        while len(worker.worked) < 5:
            time.sleep(0.01)
    was, removed = batch_jobs.cancel(way(server), job.name)
    now = standing(server, job)
    assert now.state == "cancelled" and now.waiting == 0 and now.answered >= 5
    assert removed == 40 - now.answered and was.answered == now.answered
    assert standing(server, other).waiting == 41
    done = batch_jobs.fetch(way(server), job.name, tmp_path / "part.jsonl", partial=False)
    assert (done.answered, done.failed) == (now.answered, 40 - now.answered)
    with working(server.access):
        finished(server, file_of(40), tmp_path)
    assert standing(server, job).state == "finished"


def test_a_command_that_waits_hears_that_its_job_was_cancelled(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completing, "LOOK_EVERY", 0.1)
    job = submitted(server, file_of(3)).job
    assert job is not None
    threading.Timer(0.5, lambda: batch_jobs.cancel(way(server), job.name)).start()
    heard = Heard()
    done = batch_jobs.carry_out(way(server), file_of(3), paths("x", tmp_path / "out.jsonl"), heard)
    assert heard.cancelled and done is not None and (done.answered, done.failed) == (0, 3)


def test_a_job_that_is_removed_leaves_nothing_and_may_come_again_at_once(server: NatsServer, tmp_path: Path) -> None:
    for _ in range(2):
        with working(server.access):
            finished(server, file_of(5), tmp_path)
        (only,) = batch_jobs.jobs(way(server))
        batch_jobs.remove(way(server), only.job.name)
        assert batch_jobs.jobs(way(server)) == []
    with pytest.raises(SpecError, match="there is no job"):
        batch_jobs.look(way(server), only.job.name)


def test_long_bodies_and_long_answers_lie_aside_and_come_back_whole(server: NatsServer, tmp_path: Path) -> None:
    file = read("in.jsonl", openai("x" * 1_500_000, "short"), Targets({}, {}))
    with working(server.access, long=1_200_000):
        finished(server, file, tmp_path)
    (only,) = batch_jobs.jobs(way(server))
    batch_jobs.remove(way(server), only.job.name)

    async def left() -> list[Any]:
        client = await connect(server.access, "test", wait=10)
        bucket = await client.jetstream().object_store(wire.BODIES)
        try:
            return [info.name for info in await bucket.list(ignore_deletes=True)]
        finally:
            await client.close()

    with pytest.raises(Exception, match="NotFound"):
        asyncio.run(left())


def test_a_queue_that_is_full_takes_more_as_lines_are_answered(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitting, "ROOM_AGAIN", 0.05)
    monkeypatch.setattr(quota, "ANSWER", 500)
    monkeypatch.setattr(completing, "ROUNDS", 1)  # nothing is lost and submitted again
    heard = Heard()
    bounded = Way(server.access, None, store=400_000)
    with working(server.access, pace=0.002) as worker:
        done = batch_jobs.carry_out(bounded, file_of(250), paths("x", tmp_path / "out.jsonl"), heard)
    assert done is not None and done.answered == 250 and "queue" in heard.full
    assert len(worker.worked) == 250


def test_without_room_for_answers_lines_are_held_back_until_there_is_some(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitting, "ROOM_AGAIN", 0.05)
    bounded = Way(server.access, None, store=500_000)
    threads: list[threading.Thread] = []
    with working(server.access, long=15_000):
        batch_jobs.carry_out(bounded, file_of(9), paths("x", tmp_path / "old.jsonl"), Heard())
        (old,) = batch_jobs.jobs(bounded)

        def make_room(progress: Progress) -> None:
            if progress.full == "answers" and not threads:
                threads.append(threading.Thread(target=lambda: batch_jobs.remove(bounded, old.job.name)))
                threads[0].start()

        done = batch_jobs.carry_out(bounded, file_of(8), paths("x", tmp_path / "new.jsonl"), Heard(make_room))
    assert done is not None and done.answered == 8 and threads
    threads[0].join()


def test_answers_that_are_errors_are_counted_and_fetched_apart(server: NatsServer, tmp_path: Path) -> None:
    heard = Heard()
    with working(server.access, status=422):
        done = batch_jobs.carry_out(way(server), file_of(3), paths("x", tmp_path / "o.jsonl"), heard)
    assert done is not None and (done.answered, done.failed, heard.tally.failed) == (0, 3, 3)
    assert heard.job is not None and batch_jobs.look(way(server), heard.job.name)[1].failed == 3


def test_fetch_takes_part_of_a_job_only_when_it_is_asked_to(server: NatsServer, tmp_path: Path) -> None:
    job = submitted(server, file_of(3)).job
    assert job is not None
    with pytest.raises(RefusedError, match=r"0 of 3 lines of b-\w+ are answered"):
        batch_jobs.fetch(way(server), job.name, tmp_path / "out.jsonl", partial=False)
    done = batch_jobs.fetch(way(server), job.name, tmp_path / "out.jsonl", partial=True)
    assert (done.answered, done.failed) == (0, 0)


def test_a_model_that_nobody_takes_lines_for_is_refused_before_anything_is_kept(server: NatsServer) -> None:
    file = read("in.jsonl", b'{"model": "elsewhere", "input": "x"}', Targets({}, {}))
    with pytest.raises(RefusedError, match="nobody takes batch lines for elsewhere"):
        batch_jobs.carry_out(way(server), file, None, Heard())
    assert batch_jobs.jobs(way(server)) == []


def test_a_server_without_a_pool_is_said_to_be_one(tmp_path: Path) -> None:
    with running(tmp_path) as server, pytest.raises(QueueError, match="NATS has no stream BATCH"):
        batch_jobs.jobs(way(server))
