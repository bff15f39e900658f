"""Measuring between two ends on this machine, what limits a link, and what ib_write_bw says."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from planned import office

from fleetctl.doctor.link.measured import Flow, Measured, flow_of, limits, pcie_rate, write_rate
from fleetctl.doctor.link.told import Interface
from fleetctl.errors import SpecError
from fleetctl.onbox.bandwidth import bandwidth_drive, bandwidth_serve, busiest
from fleetctl.onbox.main import Call, OpError
from fleetctl.run.linktest import pairs

TOKEN = "7" * 64
HOME = "127.0.0.1"


@contextmanager
def serving(limit: float = 60.0) -> Iterator[tuple[int, Call, queue.SimpleQueue[dict[str, Any]]]]:
    """A listener as on a box: its port, its call, and its result once it has ended."""
    said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    ended: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    call = Call(1, said.put)
    thread = threading.Thread(target=lambda: ended.put(bandwidth_serve(call, HOME, TOKEN, limit)), daemon=True)
    thread.start()
    try:
        yield said.get(timeout=30)["event"]["port"], call, ended
    finally:
        call.cancelled.set()
        thread.join(30)
        assert not thread.is_alive()


def drive(port: int, *phases: dict[str, Any], token: str = TOKEN) -> list[dict[str, Any]]:
    return bandwidth_drive(Call(2, lambda message: None), HOME, HOME, port, token, list(phases))


def test_round_trips_and_flows_in_both_directions_are_measured_and_the_listener_ends() -> None:
    with serving() as (port, _, ended):
        echo, there, back, several = drive(
            port,
            {"mode": "echo", "seconds": 0.2},
            {"mode": "sink", "seconds": 0.3, "streams": 1},
            {"mode": "source", "seconds": 0.3, "streams": 1},
            {"mode": "sink", "seconds": 0.3, "streams": 3},
        )
        assert ended.get(timeout=30) == {"refused": [], "ended": True}
    assert echo["count"] > 0 and 0 < echo["least"] <= echo["median"] <= echo["p99"]
    for told, streams in ((there, 1), (back, 1), (several, 3)):
        flow = flow_of(told)
        assert flow.streams == streams and flow.rate > 1e6


def test_whoever_does_not_know_the_token_gets_nothing() -> None:
    with serving() as (port, _, ended):
        with pytest.raises(OpError):
            drive(port, {"mode": "sink", "seconds": 0.2, "streams": 1}, token="8" * 64)
        for said in (b"GET / HTTP/1.1\r\n", b"x" * 4000, b"\n"):
            assert answer_to(port, said) == b""
        drive(port, {"mode": "echo", "seconds": 0.1})
        assert len(ended.get(timeout=30)["refused"]) >= 4


def answer_to(port: int, said: bytes) -> bytes:
    """What the listener says to some bytes before it closes."""
    with socket.create_connection((HOME, port), timeout=30) as sock:
        sock.sendall(said)
        with contextlib.suppress(ConnectionError):  # it does not read what is too long
            return sock.recv(100)
    return b""


def test_a_listener_that_nobody_calls_ends_by_itself() -> None:
    with serving(limit=0.5) as (_, _, ended):
        assert ended.get(timeout=30) == {"refused": [], "ended": False}


def test_a_port_that_nobody_listens_on_is_an_error_that_names_both_ends() -> None:
    with socket.create_server((HOME, 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(OpError, match=f"cannot reach port {port} of {HOME} from {HOME}"):
        drive(port, {"mode": "echo", "seconds": 0.1})


def test_how_busy_the_busiest_cpu_was() -> None:
    assert busiest([[100, 50], [100, 90]], [[200, 60], [200, 180]]) == 0.9
    assert busiest([], []) is None
    assert busiest([[1, 1]], [[1, 1]]) is None


def test_no_pair_without_two_boxes() -> None:
    assert pairs(office()) == [("a", "b")]
    with pytest.raises(SpecError, match="no box c"):
        pairs(office(), ["a", "c"])
    with pytest.raises(SpecError, match="two ends"):
        pairs(office(), ["a"])


def pair(one: float, several: float, speed: int | None = 200000, mtu: int = 9000, **more: Any) -> Measured:
    """Two ends of a link, with rates in Gbit/s, the same both ways."""
    pci = more.pop("pci", {})
    end = {"interface": {"mtu": mtu, "speed": speed, **pci}}
    flows = [
        {"streams": 1, "rate": one * 1e9, "cpu": more.pop("cpu", 0.5)},
        {"streams": 4, "rate": several * 1e9, **more},
    ]
    latency = {"least": 20, "median": 25, "p99": 60, "count": 900}
    return Measured.model_validate(
        {
            "network": "link",
            "first": {"box": "a", "address": "10.1.0.1", "name": "enp1", **end},
            "second": {"box": "b", "address": "10.1.0.2", "name": "enp1", **end},
            "latency": latency,
            "there": flows,
            "back": flows,
        }
    )


def faster_back(there: float, back: float) -> Measured:
    """A link whose interfaces say 10 Gbit/s, with another rate each way in Gbit/s."""
    first, second = (pair(rate, rate, speed=10000) for rate in (there, back))
    return first.model_copy(update={"back": second.back})


X4 = {"pci_speed": "32.0 GT/s PCIe", "pci_width": 4}
LIMITS: dict[str, tuple[Measured, tuple[str, ...]]] = {
    "the link itself": (pair(9.4, 9.4, speed=10000), ("the link itself: 94%",)),
    "one CPU for one stream": (pair(30, 90, cpu=0.99), ("one stream takes all of one", "3.0 times")),
    "a box whose CPU is full": (pair(20, 21, busiest=0.99), ("a CPU: the busiest",)),
    "a ConnectX-7 that came up badly": (pair(12.9, 13.2, busiest=0.3), ("bad start",)),
    "PCIe x4": (pair(40, 98, pci=X4), ("the PCIe way", "126 Gbit/s")),
    "a small MTU": (pair(60, 62, mtu=1500), ("MTU of 1500",)),
    "a speed that means nothing": (pair(16, 18, speed=10000), ()),
    "a speed that one way was faster than": (faster_back(9.7, 14.2), ()),
    "nothing that is known": (pair(0.4, 0.5, speed=None), ()),
}


@pytest.mark.parametrize("what", LIMITS)
def test_what_limits_a_link(what: str) -> None:
    measured, words = LIMITS[what]
    said = " | ".join(limits(measured))
    for word in words:
        assert word in said, said
    assert bool(said) == bool(words)


def test_pcie_ways() -> None:
    assert pcie_rate(Interface(mtu=1500, pci_speed="32.0 GT/s PCIe", pci_width=4)) == pytest.approx(126e9)
    assert pcie_rate(Interface(mtu=1500)) is None
    assert pcie_rate(Interface(mtu=1500, pci_speed="Unknown", pci_width=4)) is None


def test_the_slower_direction_counts() -> None:
    measured = pair(9.0, 9.4, speed=10000)
    slow = measured.model_copy(update={"back": (Flow(streams=1, rate=1e9),)})
    assert slow.best.rate == 1e9


def test_what_ib_write_bw_says() -> None:
    said = """
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 1500.000000 != 3300.016000. CPU Frequency is not max.
 65536      560845           0.00               98.02                0.186950
---------------------------------------------------------------------------------------
"""
    assert write_rate(said) == pytest.approx(98.02e9)
    assert write_rate("Couldn't connect to 10.1.0.2:20123") is None
