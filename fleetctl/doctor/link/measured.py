"""What was measured between two boxes, and what limits it. Pure. Rates are bit/s, times microseconds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from fleetctl.doctor.link.told import Interface, RdmaPort
from fleetctl.facts.types import Seen

NEAR = 0.85  # of the negotiated speed: headers and acknowledgements are the rest
MORE = 1.05  # of it: no real link brings more than it has
ONE_CPU = 0.85  # share of a CPU that a stream takes when the CPU is its limit
FULL_CPU = 0.95  # how busy the busiest CPU of a box is when it is full
GAIN = 1.4  # how much more several streams bring when one is limited by its CPU
# A ConnectX-7 of a DGX Spark that came up badly: 200 Gbit/s are negotiated, 8 to 25 get through.
BAD_START = (8e9, 25e9)
FAST = 100_000  # Mbit/s
JUMBO = 9000
# What a PCIe lane carries of data, by its signalling rate, in bit/s.
_LANE = {"2.5": 2.0e9, "5.0": 4.0e9, "8.0": 7.88e9, "16.0": 15.75e9, "32.0": 31.5e9, "64.0": 60.5e9}


class Flow(Seen):
    """Bytes in one direction. ``cpu``: share of one CPU that a stream took at its busier end, the most of all streams;
    ``busiest``: how busy the busiest CPU was."""

    streams: int
    rate: float
    cpu: float = 0.0
    busiest: float | None = None


class Latency(Seen):
    """Round trips of 64 bytes over TCP."""

    least: float
    median: float
    p99: float
    count: int


class End(Seen):
    """One end: its address, its interface there, and its RDMA ports on it."""

    box: str
    address: str
    name: str | None = None
    interface: Interface | None = None
    rdma: tuple[RdmaPort, ...] = ()
    cpus: int = 1


class Measured(Seen):
    """Two boxes on one network. Flows have one stream, and then several; ``there`` is from first to second."""

    network: Literal["link", "address"]
    first: End
    second: End
    latency: Latency
    there: tuple[Flow, ...]
    back: tuple[Flow, ...]
    rdma: float | None = None
    rdma_unknown: str = ""

    @property
    def speed(self) -> float | None:
        """What both ends negotiated, in bit/s; None where neither says."""
        told = [end.interface.speed for end in (self.first, self.second) if end.interface and end.interface.speed]
        return min(told) * 1e6 if told else None

    @property
    def best(self) -> Flow:
        """The fastest flow of the slower direction."""
        return min((max(flows, key=lambda flow: flow.rate) for flows in (self.there, self.back)), key=lambda f: f.rate)


def flow_of(told: dict[str, Any]) -> Flow:
    """A phase of the op ``bandwidth_drive``."""
    streams = told["streams"]
    ends = [end for stream in streams for end in (stream["here"], stream["there"]) if end]
    busy = [end["busiest"] for end in ends if end["busiest"] is not None]
    return Flow(
        streams=len(streams),
        rate=sum(8 * stream["received"]["bytes"] / stream["received"]["seconds"] for stream in streams),
        cpu=max(end["cpu"] for end in ends),
        busiest=max(busy, default=None),
    )


def pcie_rate(interface: Interface | None) -> float | None:
    """What the PCIe way of an interface carries in bit/s; None where it is not known."""
    if interface is None or not interface.pci_width:
        return None
    generation = re.match(r"([\d.]+) GT/s", interface.pci_speed)
    lane = _LANE.get(generation[1]) if generation else None
    return lane * interface.pci_width if lane else None


def limits(measured: Measured) -> Iterator[str]:
    """What the measured bandwidth ends at, a sentence each, the most likely first."""
    best, speed = measured.best, measured.speed
    fastest = max(flow.rate for flow in (*measured.there, *measured.back))
    if speed is not None and fastest > MORE * speed:
        speed = None  # interfaces without hardware name a speed that means nothing
    if speed is not None and best.rate >= NEAR * speed:
        yield f"the link itself: {best.rate / speed:.0%} of the {speed / 1e9:g} Gbit/s that were negotiated"
        return
    slow_ways = [rate for end in (measured.first, measured.second) if (rate := pcie_rate(end.interface))]
    if slow_ways and best.rate >= 0.75 * min(slow_ways):
        yield f"the PCIe way of the interface, which carries {min(slow_ways) / 1e9:.0f} Gbit/s{_twins(measured)}"
        return
    busy = best.busiest is not None and best.busiest >= FULL_CPU
    if speed is not None and speed >= FAST * 1e6 and BAD_START[0] <= best.rate <= BAD_START[1] and not busy:
        yield (
            "not a CPU: if these are ConnectX-7 ports of DGX Sparks, this is what a bad start of the adapter looks "
            "like (the speed is negotiated, 8 to 25 Gbit/s get through). Shut both boxes down, take them off mains "
            "for a minute, and measure again"
        )
        return
    one = [flow for flow in (*measured.there, *measured.back) if flow.streams == 1]
    if busy:
        yield "a CPU: the busiest one was full while it was measured"
    elif any(flow.cpu >= ONE_CPU for flow in one):
        yield "a CPU: one stream takes all of one"
    several = max((flow.rate for flow in measured.there), default=0.0)
    alone = max((flow.rate for flow in measured.there if flow.streams == 1), default=0.0)
    if alone and several >= GAIN * alone:
        yield f"for one stream a CPU: several together bring {several / alone:.1f} times as much"
    yield from _mtu(measured, speed)


def _mtu(measured: Measured, speed: float | None) -> Iterator[str]:
    ends = [end for end in (measured.first, measured.second) if end.interface is not None]
    mtus = sorted({end.interface.mtu for end in ends if end.interface})
    if len(mtus) > 1:
        yield f"different MTUs: {', '.join(f'{end.box} {end.interface.mtu}' for end in ends if end.interface)}"
    elif mtus and mtus[0] < JUMBO and speed is not None and speed >= 10e9:
        yield f"perhaps the MTU of {mtus[0]}: with {JUMBO} at both ends each packet carries six times as much"


def _twins(measured: Measured) -> str:
    more = [port.device for port in measured.first.rdma if port.active]
    if len(more) < 2:
        return ""
    return f": the port has two, RDMA over both ({', '.join(more)}) carries more"


def write_rate(said: str) -> float | None:
    """The average of ``ib_write_bw --report_gbits`` in bit/s; None where it says none."""
    rows = [line.split() for line in said.splitlines()]
    found = [row[3] for row in rows if len(row) in (4, 5) and row[0].isdigit() and row[1].isdigit()]
    try:
        return float(found[-1]) * 1e9 if found else None
    except ValueError:
        return None
