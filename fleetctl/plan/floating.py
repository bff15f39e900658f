"""What stands in the way of a floating address: pure checks of facts."""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.facts.proxies import holders
from fleetctl.facts.types import Observed
from fleetctl.render.release import Release


def floating_refusals(target: Release, observed: Observed) -> Iterable[str]:
    """One sentence each, with the box and what to do."""
    proxy = target.proxy
    if proxy is None or proxy.floating is None:
        return
    address, router_id = proxy.floating.address, proxy.floating.router_id
    for box in proxy.boxes:
        facts = observed[box]
        if facts.keepalived is None:
            yield f"{box}: keepalived is not installed: fleetctl setup {box} --only packages"
        if proxy.own[box] not in facts.addresses:
            yield (
                f"{box}: it does not have the address {proxy.own[box]} that fleet.yaml says, so that VRRP cannot speak "
                "from there: write the one that `ip -brief address` shows"
            )
        other = facts.vrrp
        if other is not None and router_id in other.router_ids:
            yield (
                f"{box}: its own keepalived.service has virtual_router_id {router_id} too: write another router_id: "
                "under floating:"
            )
        if other is not None and address in other.addresses:
            yield (
                f"{box}: its own keepalived.service has {address} in its configuration: take it out there, or write "
                "another address under floating:"
            )
    taken = {observed[box].answering.get(address) for box in proxy.boxes} - {None}
    if taken and not holders(proxy, observed):
        yield (
            f"{', '.join(proxy.boxes)}: a machine that is not of this fleet has the floating address {address} "
            f"(hardware address {taken.pop()}): take it off there, or write another one under floating:"
        )
    for box in holders(proxy, observed):
        if box not in proxy.boxes:
            yield f"{box}: it has the floating address {address} for itself: take it off there, or write another one"
