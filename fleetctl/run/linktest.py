"""Measuring the link between boxes: one box listens, another drives, for every pair and both networks."""

from __future__ import annotations

import contextlib
import ipaddress
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from fleetctl.doctor.link.family import links
from fleetctl.doctor.link.measured import End, Latency, Measured, flow_of, write_rate
from fleetctl.doctor.link.told import LinkTold
from fleetctl.errors import BoxError, FleetError, SpecError
from fleetctl.facts.gather import gather_some, questions
from fleetctl.remote.connection import BoxConnection
from fleetctl.remote.listening import Listener
from fleetctl.run.planning import Subject
from fleetctl.spec.fleet import Fleet

PORT_WAIT = 15.0  # seconds until the listening box has named its port
MARGIN = 30.0  # seconds beyond the phases themselves
ECHO = 1.0  # seconds of round trips
RDMA_SECONDS, RDMA_LIMIT = 2, 15.0
RDMA_PORTS = (20000, 30000)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Load:
    """How much is measured: seconds of each flow, and streams of the one with several (1: no such flow)."""

    seconds: float = 3.0
    streams: int = 4


GENTLE = Load(1.0, 1)
"""What does little harm to engines that use the link: a second each way, with one stream."""


@dataclass(frozen=True)
class Failed:
    """A pair that could not be measured, and why."""

    network: Literal["link", "address"]
    first: str
    second: str
    error: FleetError


def pairs(fleet: Fleet, boxes: list[str] | None = None) -> list[tuple[str, str]]:
    """Pairs of boxes to measure: those with a link, or all where none has one.

    Raises SpecError when there are fewer than two, or when a box is not in the fleet.
    """
    known = list(links(fleet)) or list(fleet.boxes)
    if unknown := sorted(set(boxes or ()) - set(fleet.boxes)):
        raise SpecError(f"no box {', '.join(unknown)} in the fleet", hint=f"boxes: {', '.join(fleet.boxes)}")
    wanted = [name for name in fleet.boxes if name in (boxes or known)]
    if len(wanted) < 2:
        raise SpecError("a link has two ends, and this is one box", hint=f"boxes: {', '.join(fleet.boxes)}")
    return list(combinations(wanted, 2))


def users_of_link(subject: Subject) -> list[str]:
    """Engines that serve over several boxes now: a measurement takes bandwidth from them."""
    observed, _ = gather_some(subject.boxes, questions(subject.fleet))
    release = next((facts.release for facts in observed.values() if facts.release is not None), None)
    return [
        engine.id
        for engine in (release.engines if release else ())
        if engine.kind == "split"
        and any(
            rank.unit in observed[rank.box].units and not observed[rank.box].units[rank.unit].down
            for rank in engine.ranks
            if rank.box in observed
        )
    ]


def measure(subject: Subject, wanted: list[tuple[str, str]], load: Load, say: Say) -> Iterator[Measured | Failed]:
    """Measure pair after pair, over the link and, where that is another address, over the boxes' own."""
    fleet = subject.fleet
    for first, second in wanted:
        for network in _networks(fleet, first, second):
            try:
                missing = [box for box in (first, second) if box not in subject.boxes]
                if missing:
                    raise subject.unreachable.get(missing[0]) or BoxError(missing[0], "it cannot be reached")
                say(f"{first} and {second} over {'the link' if network == 'link' else 'their own addresses'}")
                yield _pair(subject.boxes[first], subject.boxes[second], fleet, network, load)
            except FleetError as error:
                yield Failed(network, first, second, error)


def _networks(fleet: Fleet, *boxes: str) -> list[Literal["link", "address"]]:
    other = any(fleet.boxes[box].link not in (None, fleet.boxes[box].address) for box in boxes)
    return ["link", "address"] if other else ["address"]


def _pair(
    first: BoxConnection, second: BoxConnection, fleet: Fleet, network: Literal["link", "address"], load: Load
) -> Measured:
    ends = [_end(box, fleet, network) for box in (first, second)]
    phases: list[dict[str, Any]] = [{"mode": "echo", "seconds": ECHO}]
    counts = [1, load.streams] if load.streams > 1 else [1]
    phases += [{"mode": mode, "seconds": load.seconds, "streams": n} for mode in ("sink", "source") for n in counts]
    whole = sum(phase["seconds"] for phase in phases) + MARGIN
    token = secrets.token_hex(32)
    with _serving(second, ends[1].address, token, whole) as port:
        told = first.call_with(
            "bandwidth_drive",
            {"own": ends[0].address, "peer": ends[1].address, "port": port, "token": token, "phases": phases},
            timeout=whole + MARGIN,
        )
    flows = [flow_of(one) for one in told[1:]]
    rate, unknown = _rdma(first, second, ends) if network == "link" and load is not GENTLE else (None, "not measured")
    return Measured(
        network=network,
        first=ends[0],
        second=ends[1],
        latency=Latency.model_validate(told[0]),
        there=tuple(flows[: len(counts)]),
        back=tuple(flows[len(counts) :]),
        rdma=rate,
        rdma_unknown=unknown,
    )


def _end(box: BoxConnection, fleet: Fleet, network: Literal["link", "address"]) -> End:
    settings = fleet.boxes[box.name]
    name = (settings.link or settings.address) if network == "link" else settings.address
    told = box.call("link_interfaces", timeout=30, addresses=[name])
    address = told["resolved"].get(name)
    if address is None:
        raise BoxError(box.name, f"it does not know the address of {name}", hint="write the IP address into fleet.yaml")
    view = LinkTold.model_validate({**told, "address": address})
    own = next((one for one, interface in view.interfaces.items() if address in interface.addresses), None)
    view = view.model_copy(update={"interface": own})
    return End(
        box=box.name,
        address=address,
        name=own,
        interface=view.own,
        rdma=tuple(view.rdma_of_link()) if "ib_write_bw" in told["tools"] else (),
        cpus=told["cpus"],
    )


@contextlib.contextmanager
def _serving(box: BoxConnection, address: str, token: str, limit: float) -> Iterator[int]:
    """A listener on a box for the length of the block; its port. Raises what kept it from listening."""
    args = {"address": address, "token": token, "limit": limit}
    listener = Listener(box, "bandwidth_serve", args, on=address, wait=PORT_WAIT, timeout=limit + MARGIN)
    try:
        yield listener.port
    finally:
        listener.cancel(5)


def _rdma(first: BoxConnection, second: BoxConnection, ends: list[End]) -> tuple[float | None, str]:
    """What ib_write_bw measures from first to second in bit/s, or why that is not known."""
    ports = [next((port for port in end.rdma if port.active and end.name in port.netdevs), None) for end in ends]
    if ports[0] is None or ports[1] is None:
        return None, "no active RDMA port with ib_write_bw (package perftest) on both boxes"
    number = random.SystemRandom().randint(*RDMA_PORTS)
    words = []
    for end, port in zip(ends, ports, strict=True):
        assert port is not None
        gid = next((gid.index for gid in port.gids if "v2" in gid.type and _same(gid.gid, end.address)), None)
        index = ["-x", str(gid)] if gid is not None else []
        shared = ["-F", "--report_gbits", "-D", str(RDMA_SECONDS), "-p", str(number)]
        words.append(["ib_write_bw", "-d", port.device, "-i", str(port.port), *index, *shared])

    def serve() -> None:
        with contextlib.suppress(FleetError):  # the other end says what is wrong
            second.run(*words[1], timeout=RDMA_LIMIT, check=False)

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    time.sleep(1.0)
    try:
        ran = first.run(*words[0], ends[1].address, timeout=RDMA_LIMIT, check=False)
    except FleetError as error:
        return None, error.message
    server.join(RDMA_LIMIT)
    rate = write_rate(ran.out)
    return rate, "" if rate is not None else f"ib_write_bw: {(ran.err or ran.out).strip()[-200:]}"


def _same(gid: str, address: str) -> bool:
    """A GID is that of an IP address."""
    try:
        wanted = ipaddress.ip_address(address)
        mapped = ipaddress.IPv6Address(f"::ffff:{wanted}") if wanted.version == 4 else wanted
        return ipaddress.ip_address(gid) == mapped
    except ValueError:
        return False
