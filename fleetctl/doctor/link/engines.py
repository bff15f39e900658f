"""What running engines were told of the link, and what RDMA on it is worth. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from fleetctl.doctor.finding import Finding, Severity
from fleetctl.doctor.link import kinds
from fleetctl.doctor.link.told import LinkTold, RdmaPort
from fleetctl.spec.fleet import Fleet

_NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES")


def of_engines(fleet: Fleet, box: str, told: LinkTold) -> Iterator[Finding]:
    """Findings about RDMA of the link, and about variables of the splits that run."""
    if told.own is None:
        return
    yield from _rdma(box, told)
    for unit, variables in told.environment.items():
        for name in _NAMES:
            value = variables.get(name)
            if value and value != fleet.boxes[box].interface:
                yield from _interface(fleet, box, told, unit, name, value)
        host = variables.get("VLLM_HOST_IP")
        if host and host not in (told.address, fleet.boxes[box].link or fleet.boxes[box].address):
            yield kinds.ENVIRONMENT.found(
                box,
                unit,
                f"{unit} runs with VLLM_HOST_IP={host}, and the link address is {told.address}",
                f"VLLM_HOST_IP={host}",
                fix=_take_out(unit, "VLLM_HOST_IP"),
            )
        yield from _hca(box, told, unit, variables)


def chosen(value: str, names: list[str]) -> list[str]:
    """What a list of NCCL's means: prefixes, ``=`` before the list for whole names, ``^`` for all but these."""
    exclude, rest = value.startswith("^"), value.removeprefix("^")
    exact, rest = rest.startswith("="), rest.removeprefix("=")
    words = [word.partition(":")[0] for word in rest.split(",") if word]
    named = [name for name in names if any(name == word if exact else name.startswith(word) for word in words)]
    return [name for name in names if name not in named] if exclude else named


def _interface(fleet: Fleet, box: str, told: LinkTold, unit: str, name: str, value: str) -> Iterator[Finding]:
    there = [*told.interfaces, "lo"]
    if name == "UCX_NET_DEVICES":
        devices = [port.device for port in told.rdma]
        found = chosen(value, [*there, *devices]) if value != "all" else [*told.of_link()]
        wanted = told.of_link() | {port.device for port in told.rdma_of_link()}
    else:
        found = (
            chosen(value, there) if name == "NCCL_SOCKET_IFNAME" else [one for one in value.split(",") if one in there]
        )
        wanted = told.of_link()
    if set(found) & wanted:
        return
    is_what = f"is {', '.join(found)}" if found else "is no interface of this box"
    name_it = None if fleet.boxes[box].interface else f"boxes: {{{box}: {{interface: {told.interface}}}}}"
    yield kinds.ENVIRONMENT.found(
        box,
        unit,
        f"{unit} runs with {name}={value}, which {is_what}; the link is {told.interface}",
        f"{name}={value}",
        *(f"{one}: {', '.join(told.interfaces[one].addresses)}" for one in found if one in told.interfaces),
        fix=_take_out(unit, name, name_it),
        severity=None if found else Severity.ERROR,
    )


def _take_out(unit: str, name: str, instead: str | None = None) -> str:
    more = f" and write {instead}" if instead else ""
    return (
        f"take {name} out of environment: of the model or placement that runs as {unit}{more}; then `fleetctl apply` "
        "(the split starts anew; requests are held)"
    )


def _rdma(box: str, told: LinkTold) -> Iterator[Finding]:
    for port in told.rdma_of_link():
        net = [name for name in port.netdevs if name in told.of_link()]
        carrier = any(told.interfaces[name].carrier for name in net if name in told.interfaces)
        if not port.active and carrier:
            yield kinds.RDMA_DOWN.found(
                box,
                port.device,
                f"{port.device}, the RDMA device of {net[0]}, is not active, and {net[0]} has a carrier",
                str(port),
                fix=f"`ibv_devinfo -d {port.device}` and `dmesg | grep mlx5` say why; `ip link set {net[0]} up`, or "
                "a reboot",
            )
        elif port.active and told.interface in port.netdevs and port.gids and _without_address(port, told.address):
            yield kinds.NO_GID.found(
                box,
                port.device,
                f"{port.device} has no RoCE v2 GID of {told.address}",
                *(f"GID {gid.index}: {gid.gid} {gid.type}" for gid in port.gids[:6]),
                fix=f"take {told.address} from {told.interface} and give it again (`ip address replace …`): the GID "
                "comes with the address; `show_gids` lists them",
            )


def _without_address(port: RdmaPort, address: str | None) -> bool:
    """A RoCE port that has no RoCE v2 entry for the link's address."""
    if port.link_layer != "Ethernet" or address is None:
        return False
    try:
        wanted = ipaddress.ip_address(address)
        mapped = ipaddress.IPv6Address(f"::ffff:{wanted}") if wanted.version == 4 else wanted
        return not any("v2" in gid.type and ipaddress.ip_address(gid.gid) == mapped for gid in port.gids)
    except ValueError:
        return False


def _hca(box: str, told: LinkTold, unit: str, variables: dict[str, str]) -> Iterator[Finding]:
    active = sorted({port.device for port in told.rdma_of_link() if port.active})
    if not active:
        return
    every = sorted({port.device for port in told.rdma})
    all_of_them = (
        f"environment: {{NCCL_IB_HCA: '{','.join(active)}'}} in the placement of fleet.yaml, then `fleetctl apply`"
    )
    if variables.get("NCCL_IB_DISABLE") == "1":
        yield kinds.IB_HCA.found(
            box,
            unit,
            f"{unit} runs with NCCL_IB_DISABLE=1, and the link has RDMA ({', '.join(active)})",
            "NCCL_IB_DISABLE=1",
            fix=f"take NCCL_IB_DISABLE out of environment:, and write {all_of_them}",
            severity=Severity.NOTE,
        )
        return
    value = variables.get("NCCL_IB_HCA")
    if value:
        named = set(chosen(value, every))
        missing = [device for device in active if device not in named]
        if missing:
            none = len(missing) == len(active)
            yield kinds.IB_HCA.found(
                box,
                unit,
                f"{unit} runs with NCCL_IB_HCA={value}, and the link has {', '.join(active)}",
                f"NCCL_IB_HCA={value}",
                *(str(port) for port in told.rdma_of_link()),
                fix=f"write {all_of_them}",
                severity=None if none else Severity.NOTE,
            )
    index = variables.get("NCCL_IB_GID_INDEX", "")
    for port in told.rdma_of_link() if index.isdigit() else []:
        gid = next((one for one in port.gids if one.index == int(index)), None)
        if port.active and port.gids and port.link_layer == "Ethernet" and (gid is None or "v2" not in gid.type):
            yield kinds.NO_GID.found(
                box,
                port.device,
                f"{unit} runs with NCCL_IB_GID_INDEX={index}, and entry {index} of {port.device} is "
                f"{gid.type if gid else 'empty'}",
                *(f"GID {one.index}: {one.gid} {one.type}" for one in port.gids[:6]),
                fix=_take_out(unit, "NCCL_IB_GID_INDEX") + "; NCCL 2.21 and later finds the right one by itself",
            )
