"""Faults of a pool under load, for `bench/pool.py`: what was accepted is answered, and once.

Two gateways behind HAProxy (as fleetctl renders it: a request's id comes from HAProxy, and a gateway that dies is asked
again through the other one), one nats-server, four boxes with a worker and two engines each. 40 clients, each with one
request at a time, go on while something happens:

- a worker is killed in the middle of its batches, and started again 3 s later;
- a gateway is killed, and started again 3 s later;
- nats-server is killed, and started again 1 s later;
- a box vanishes: its worker and its engines are stopped with SIGSTOP, so that their connections stay open and silent.
  They go on (SIGCONT) once all clients have their answers, and say then what nobody waits for any more.

*Lost* is a request that has no answer, or one that says that it failed. *Refused* is one that was not accepted (429 or
503, with Retry-After). *Wrong* is an answer to another request, or a second answer. What was done or sent twice is
counted too: the queue delivers at least once, and a client sees one answer.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from _common import BenchError, Figure, at_most, say
from _engines import free_port
from _pool_contenders import Process, await_answer, engines, process
from _pool_crowd import Crowd, Listener, Seen
from _pool_load import Engines, request, settle
from _pool_programs import Program, boxes, gateway, merged, nats, prepare, worker

from fleetctl.pool import wire

CLIENTS, PAUSE = 40, 0.3  # and the longest time, in seconds, between an answer and the next request
CALM = 2.0  # seconds before something happens, and after
HAPROXY = """global
    nbthread 1
    maxconn 2000
    tune.bufsize 1048576
defaults
    mode http
    option http-server-close
    timeout connect 1s
    timeout client 120s
    timeout server 120s
    timeout http-request 30s
    unique-id-format %[uuid()]
frontend clients
    bind 127.0.0.1:{port}
    http-request wait-for-body time 30s if METH_POST
    default_backend gateways
backend gateways
    balance leastconn
    http-request set-header x-request-id %[unique-id]
    option redispatch 1
    option httpchk GET /health
    retries 3
    retry-on conn-failure empty-response 500
    default-server check inter 500ms fall 2 rise 1
{servers}
"""


@dataclass
class Member:
    """A program that runs, and can be killed and started again."""

    program: Program
    running: Process
    scope: AbstractContextManager[Process]

    @classmethod
    def begin(cls, program: Program) -> Member:
        """Start it and wait until it is ready."""
        scope = program.start()
        one = cls(program, scope.__enter__(), scope)
        try:
            await_answer(one.running, program.ready)
        except BenchError:
            one.end()
            raise
        return one

    def again(self) -> None:
        """Start it once more after it was killed."""
        self.end()
        new = Member.begin(self.program)
        self.running, self.scope = new.running, new.scope

    def end(self) -> None:
        """It is over."""
        self.scope.__exit__(None, None, None)


@dataclass
class Pool:
    """All that runs."""

    url: str
    access: wire.NatsAccess
    nats: Member
    gateways: list[Member]
    workers: list[Member]
    engines: Engines
    boxes: list[Process]
    """The engines' processes, one for each box."""


@contextmanager
def running(folder: Path, pace: float) -> Iterator[Pool]:
    """A pool with two gateways behind HAProxy."""
    program = shutil.which("haproxy")
    if program is None:
        raise BenchError("haproxy is not installed: apt-get install haproxy")
    prepare(folder)
    port = free_port()
    access = wire.NatsAccess((f"nats://127.0.0.1:{port}",))
    with ExitStack() as stack:
        behind, processes = stack.enter_context(engines(folder, 4, 2, 8, pace))

        def begin(one: Program) -> Member:
            member = Member.begin(one)
            stack.callback(member.end)
            return member

        server = begin(nats(folder, port))
        entries = [gateway(folder, name, access) for name in ("g1", "g2")]
        gateways = [begin(one) for one, _ in entries]
        workers = [begin(worker(folder, box, access, ports, merged(behind.batch))) for box, ports in boxes(behind)]
        entry = free_port()
        servers = "\n".join(
            f"    server g{number} {url.removeprefix('http://')}" for number, (_, url) in enumerate(entries, start=1)
        )
        file = folder / "haproxy.cfg"
        file.write_text(HAPROXY.format(port=entry, servers=servers))
        proxy = stack.enter_context(process([program, "-db", "-f", str(file)], folder / "haproxy.log"))
        url = f"http://127.0.0.1:{entry}"
        await_answer(proxy, f"{url}/v1/embeddings", request(0.002).body)
        yield Pool(url, access, server, gateways, workers, behind, processes)


def worker_killed(pool: Pool) -> Callable[[], None]:
    """kill -9 of the first box's worker."""
    pool.workers[0].running.kill()
    time.sleep(3)
    pool.workers[0].again()
    return lambda: None


def gateway_killed(pool: Pool) -> Callable[[], None]:
    """kill -9 of the first gateway."""
    pool.gateways[0].running.kill()
    time.sleep(3)
    pool.gateways[0].again()
    return lambda: None


def nats_restarted(pool: Pool) -> Callable[[], None]:
    """kill -9 of nats-server, and a new one a second later."""
    pool.nats.running.kill()
    time.sleep(1)
    pool.nats.again()
    return lambda: None


def box_vanished(pool: Pool) -> Callable[[], None]:
    """Everything on the second box stands still; what is returned lets it go on."""
    box = (pool.workers[1].running, pool.boxes[1])
    for one in box:
        one.send(signal.SIGSTOP)

    def back() -> None:
        for one in box:
            one.send(signal.SIGCONT)
        time.sleep(2)

    return back


FAULTS: dict[str, Callable[[Pool], Callable[[], None]]] = {
    "worker killed": worker_killed,
    "gateway killed": gateway_killed,
    "NATS restarted": nats_restarted,
    "box vanished": box_vanished,
}


def faults(folder: Path, pace: float, _: Path | None) -> dict[str, Figure]:
    """Each of the faults, one after the other, in one pool."""
    figures: dict[str, Figure] = {}
    with running(folder, pace) as pool:
        for name, fault in FAULTS.items():
            figures |= {f"faults_{name}_{key}": figure for key, figure in one(pool, name, fault).items()}
    return figures


def one(pool: Pool, name: str, fault: Callable[[Pool], Callable[[], None]]) -> dict[str, Figure]:
    """One of them: clients ask before, while and after it happens."""
    crowd, listener = Crowd(pool.url, CLIENTS, PAUSE * pool.engines.pace), Listener(pool.access.servers[0])
    before = begun(pool.engines)
    with listener.hearing() as answers:
        with crowd.asking() as seen:
            time.sleep(CALM)
            back = fault(pool)
            time.sleep(CALM)
        back()
        settle(pool.engines)
        time.sleep(0.3)
        sent_twice = sum(times > 1 for times in answers.values())
    done = begun(pool.engines) - before
    done_twice = sum(done[str(number)] > 1 for number in seen.numbers)
    say(f"{name}: {in_words(seen)}; {done_twice} done twice, {sent_twice} answers sent twice")
    return {
        "requests": Figure(seen.sent, "requests"),
        "refused": Figure(sum(seen.refused.values()), "requests"),
        "lost": at_most(sum(seen.lost.values()), 0, "requests"),
        "wrong": at_most(sum(seen.wrong.values()), 0, "answers"),
        "longest": Figure(round(seen.longest, 2), "s"),
        "done_twice": Figure(done_twice, "requests"),
        "sent_twice": Figure(sent_twice, "answers"),
    }


def in_words(seen: Seen) -> str:
    """What clients saw."""
    told = f"{seen.sent} requests, {seen.answered} answered, the slowest after {seen.longest:.1f} s"
    for kind, counted in (("refused", seen.refused), ("lost", seen.lost), ("wrong", seen.wrong)):
        told += f"; {sum(counted.values())} {kind}"
        told += f" ({', '.join(f'{times} x {what}' for what, times in counted.most_common(3))})" if counted else ""
    return told


def begun(engines: Engines) -> Counter[str]:
    """How often each request was begun, by all engines together."""
    total: Counter[str] = Counter()
    for port in engines.ports:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/begun", timeout=10) as answer:
            total.update(json.load(answer))
    return total
