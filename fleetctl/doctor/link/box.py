"""What is wrong with one end of the link: address, interface, speed, errors. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.doctor.finding import Finding
from fleetctl.doctor.link import kinds
from fleetctl.doctor.link.told import Interface, LinkTold
from fleetctl.spec.fleet import Fleet

PER_MILLION = 1e-6  # errors per packet that a good cable does not reach


def of_box(fleet: Fleet, box: str, told: LinkTold) -> Iterator[Finding]:
    """Findings about one box, whatever the others say."""
    settings = fleet.boxes[box]
    link = settings.link or settings.address
    own = told.own
    if own is None or told.interface is None:
        yield _absent(box, link, told, settings.interface)
        return
    yield from _named(fleet, box, told)
    if not own.carrier:
        yield _down(box, told.interface, own)
        return
    yield from _slow(fleet, box, told, told.interface, own)
    yield from _errors(box, told.interface, own)


def lasting(line: str) -> str:
    """A setting as a command, and a reminder that a reboot takes it back."""
    return f"`{line}`, and the same in /etc/netplan (or where the box has its network settings), so that it lasts"


def _absent(box: str, link: str, told: LinkTold, interface: str | None) -> Finding:
    have = [
        f"{name}: {address}/{bits}" for name, one in told.interfaces.items() for address, bits in one.addresses.items()
    ]
    if told.address is None:
        says = f"the link address {link} is a name that the box itself does not know"
        return kinds.ABSENT.found(
            box, link, says, fix=f"write the IP address into fleet.yaml: boxes: {{{box}: {{link: ADDRESS}}}}"
        )
    name = interface if interface in told.interfaces else "INTERFACE"
    return kinds.ABSENT.found(
        box,
        link,
        f"no interface has the link address {told.address}",
        *have[:8],
        fix=f"{lasting(f'ip address add {told.address}/24 dev {name}')}; or, where the box has another address on "
        f"the link, write that one: boxes: {{{box}: {{link: ADDRESS}}}}",
    )


def _named(fleet: Fleet, box: str, told: LinkTold) -> Iterator[Finding]:
    """``interface:`` of fleet.yaml against the interface that has the address."""
    settings, mine = fleet.boxes[box], told.interface
    if settings.interface is None:
        if mine is not None and _has_own_link(fleet, box, told) and (model := _split_without_name(fleet, box)):
            yield kinds.UNNAMED.found(
                box,
                model,
                f"the split of {model} is not told that its link is {mine}",
                f"{mine} has {told.address}, and not {settings.address}",
                fix=f"write into fleet.yaml: boxes: {{{box}: {{interface: {mine}}}}}, and `fleetctl apply`",
            )
        return
    wanted = settings.interface.split(",")
    missing = [name for name in wanted if name not in told.interfaces]
    if missing or mine not in wanted:
        why = (
            f"the box has no interface {missing[0]}"
            if missing
            else f"{settings.interface} does not have {told.address}"
        )
        seen = [f"{name}: {', '.join(one.addresses)}" for name, one in told.interfaces.items() if one.addresses]
        yield kinds.OTHER_INTERFACE.found(
            box,
            f"interface: {settings.interface}",
            f"fleet.yaml says that the link is {settings.interface}, and {why}: it is {mine}",
            *seen[:8],
            fix=f"write into fleet.yaml: boxes: {{{box}: {{interface: {mine}}}}}, and `fleetctl apply`",
        )


def _has_own_link(fleet: Fleet, box: str, told: LinkTold) -> bool:
    """The link is another interface than the one that the proxy and SSH use."""
    own = told.own
    return fleet.boxes[box].link is not None and own is not None and fleet.boxes[box].address not in own.addresses


def _split_without_name(fleet: Fleet, box: str) -> str | None:
    """A model that is split over the box and whose environment does not name an interface either."""
    for models in fleet.layouts.values():
        for name, placement in models.items():
            if placement.split is None or box not in placement.split:
                continue
            layers = (fleet.models[name].environment, placement.environment, placement.split[box].environment)
            if not any("NCCL_SOCKET_IFNAME" in layer for layer in layers):
                return name
    return None


def _down(box: str, name: str, own: Interface) -> Finding:
    off = not own.up
    return kinds.DOWN.found(
        box,
        name,
        f"{name}, the interface of the link, {'is switched off' if off else 'has no carrier'}",
        f"{name}: {'UP' if own.up else 'DOWN'}, {'carrier' if own.carrier else 'NO-CARRIER'}",
        fix=f"`ip link set {name} up`"
        if off
        else f"look at the cable and at the other end; `ethtool {name}` shows the state",
    )


def _slow(fleet: Fleet, box: str, told: LinkTold, name: str, own: Interface) -> Iterator[Finding]:
    if own.duplex == "half":
        yield kinds.SLOW.found(
            box,
            name,
            f"{name} runs at half duplex",
            f"{name}: {own.speed} Mbit/s, half duplex",
            fix=f"`ethtool -s {name} autoneg on`; set the other end to negotiate too",
        )
    other = next(
        (one for other, one in told.interfaces.items() if other != name and fleet.boxes[box].address in one.addresses),
        None,
    )
    if other is not None and own.speed and other.speed and own.speed < other.speed:
        yield kinds.SLOW.found(
            box,
            name,
            f"{name}, the link, runs at {own.speed} Mbit/s, and the network of {fleet.boxes[box].address} at "
            f"{other.speed}",
            f"{name}: speed {own.speed}; the other: speed {other.speed}",
            fix=f"change the cable of {name} (`ethtool {name}` shows what it can), or take `link:` and `interface:` "
            f"of {box} out of fleet.yaml",
        )


def _errors(box: str, name: str, own: Interface) -> Iterator[Finding]:
    counted = {key: number for key, number in own.errors.items() if number}
    total = sum(own.errors.get(key, 0) for key in ("rx_errors", "tx_errors"))
    if own.packets and total / own.packets > PER_MILLION and total >= 10:
        yield kinds.ERRORS.found(
            box,
            name,
            f"{name} counted {total} errors in {own.packets} packets since it came up",
            " ".join(f"{key}={number}" for key, number in counted.items()),
            fix=f"change or seat the cable, then see whether `ethtool -S {name}` still grows",
        )
