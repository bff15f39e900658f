"""How a measurement of the link is shown."""

from __future__ import annotations

from typing import Any

from fleetctl.cli.output import console
from fleetctl.doctor.link.measured import End, Flow, Measured, limits
from fleetctl.run.linktest import Failed


def told(one: Measured | Failed) -> dict[str, Any]:
    """A measurement as the fields of an event: rates in bit/s, times in microseconds."""
    if isinstance(one, Failed):
        return {"measured": False, "network": one.network, "boxes": [one.first, one.second], "why": one.error.message}
    return {
        "measured": True,
        "network": one.network,
        "boxes": [one.first.box, one.second.box],
        "ends": [_end(one.first), _end(one.second)],
        "latency_us": one.latency.model_dump(),
        "there": [flow.model_dump() for flow in one.there],
        "back": [flow.model_dump() for flow in one.back],
        "negotiated": one.speed,
        "rdma": one.rdma,
        "rdma_unknown": one.rdma_unknown or None,
        "limits": list(limits(one)),
    }


def _end(end: End) -> dict[str, Any]:
    interface = end.interface
    return {
        "box": end.box,
        "address": end.address,
        "interface": end.name,
        "speed_mbit": interface.speed if interface else None,
        "mtu": interface.mtu if interface else None,
    }


def show(one: Measured | Failed) -> None:
    """Print a measurement for people."""
    out = console()
    if isinstance(one, Failed):
        out.print(
            f"{one.first} and {one.second} ({_network(one.network)}): not measured", style="bold red", markup=False
        )
        out.print(f"  {one.error.message}", markup=False)
        if one.error.hint:
            out.print(f"  {one.error.hint}", markup=False)
        out.print("  `fleetctl doctor` looks for the reason (L01 to L09)", markup=False)
        return
    out.print(f"{one.first.box} and {one.second.box} ({_network(one.network)})", style="bold", markup=False)
    for end in (one.first, one.second):
        mtu = f"MTU {end.interface.mtu}" if end.interface else "interface unknown"
        speed = f"{end.interface.speed / 1000:g} Gbit/s" if end.interface and end.interface.speed else "speed unknown"
        out.print(f"  {end.box}: {end.address} on {end.name or '?'}, {speed}, {mtu}", markup=False)
    latency = one.latency
    out.print(
        f"  round trip   least {latency.least:.0f} µs, median {latency.median:.0f} µs, p99 {latency.p99:.0f} µs "
        f"({latency.count} of 64 bytes)",
        markup=False,
    )
    for flows, first, second in ((one.there, one.first, one.second), (one.back, one.second, one.first)):
        out.print(f"  {first.box} → {second.box}   {', '.join(map(_flow, flows))}", markup=False)
    if one.network == "link":
        rdma = f"{one.rdma / 1e9:.1f} Gbit/s" if one.rdma is not None else f"unknown: {one.rdma_unknown}"
        out.print(f"  RDMA         {rdma}", markup=False)
    for limit in limits(one):
        out.print(f"  limited by {limit}", style="cyan", markup=False)


def _flow(flow: Flow) -> str:
    return f"{flow.rate / 1e9:.2f} Gbit/s with {flow.streams} stream{'' if flow.streams == 1 else 's'}"


def _network(network: str) -> str:
    return "the link" if network == "link" else "their own addresses"
