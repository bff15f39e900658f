"""The direct link of a box as a part of its setup, or why there is none."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from fleetctl.facts.setup import InterfaceState, SetupFacts
from fleetctl.plan.setup_wish import Draft, Remark, Wish
from fleetctl.render.link import Link, link_part


def link_drafts(box: str, wish: Wish, facts: SetupFacts) -> Iterator[Draft | Remark]:
    """The part, where the file wants a link and nothing is in its way."""
    link, seen = wish.link, facts.link
    if link is None or seen is None:
        return
    if seen.state is None:
        there = ", ".join(seen.interfaces)
        yield Remark(box, "link", f"there is no interface {link.interface} on {box}: it has {there}")
        return
    bare = link.address.split("/")[0]
    has = [one for one in seen.state.addresses if one.split("/")[0] == bare]
    if has and (link.mtu is None or link.mtu == seen.state.mtu) and not _ours(facts, link):
        mtu = f", MTU {seen.state.mtu}"
        yield Remark(box, "link", f"{link.interface} has {has[0]} already{mtu}, and not by fleetctl: it is left alone")
        return
    why = _in_the_way(box, link, facts)
    if why is not None:
        yield Remark(box, "link", f"{why}: nothing was changed")
        return
    assert seen.kind is not None
    uses = _used_before(facts, link, seen.uses)
    part = link_part(link, seen.kind, uses)
    lines = [f"{link.interface} has {link.address}{f' and MTU {link.mtu}' if link.mtu else ''} ({seen.kind})"]
    lines += [f"{part['file']['path']}:", *(f"  {line}" for line in part["file"]["content"].splitlines()[1:])]
    lines += ["on trial first: it goes by itself unless a new SSH connection and the neighbours prove it"]
    yield Draft(box, "link", part, tuple(lines))


def _ours(facts: SetupFacts, link: Link) -> bool:
    return f"link {link.interface}" in facts.record


def _used_before(facts: SetupFacts, link: Link, uses: str | None) -> str | None:
    """The file or connection that the interface had without ours."""
    if uses is None or "fleetctl-link" not in uses:
        return uses
    wanted = facts.record.get(f"link {link.interface}", {}).get("wanted", {})
    path = wanted.get("file", {}).get("path", "")
    return path.rsplit("/", 1)[0].removesuffix(".d") if path.endswith("/fleetctl-link.conf") else None


def _by_hand(link: Link, state: InterfaceState) -> str:
    """The commands for what is not so yet: an address that is there already cannot be added once more."""
    commands = []
    if all(one.split("/")[0] != link.address.split("/")[0] for one in state.addresses):
        commands.append(f"ip address add {link.address} dev {link.interface}")
    if link.mtu not in (None, state.mtu):
        commands.append(f"ip link set dev {link.interface} mtu {link.mtu}")
    return "; ".join(commands)


def _in_the_way(box: str, link: Link, facts: SetupFacts) -> str | None:
    seen = facts.link
    assert seen is not None and seen.state is not None
    if seen.kind is None:
        by_hand = _by_hand(link, seen.state)
        return f"nothing that is known here manages {link.interface}; by hand, until the next boot: {by_hand}"
    if link.mtu is not None and link.mtu > seen.state.most:
        return f"{link.interface} takes an MTU of {seen.state.most} at most, and not {link.mtu}"
    if any(one.default and one.interface == link.interface for one in facts.addresses):
        return f"{link.interface} is where the default route of {box} leaves, and no direct link"
    network = ipaddress.ip_interface(link.address).network
    for one in facts.addresses:
        other = ipaddress.ip_interface(f"{one.address}/{one.prefix}").network
        if one.interface != link.interface and other.overlaps(network):
            return f"{network} overlaps with {other} of {one.interface}: a link needs a network of its own"
    return None
