"""Weights from one box to another over the link: one end listens, the other calls, both with a key made for this."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fleetctl.errors import BoxError, FleetError
from fleetctl.remote.connection import BoxConnection
from fleetctl.remote.listening import Listener
from fleetctl.steps.base import Record

END_WAIT = 30.0  # seconds until it has noticed that all is sent
MOST_STREAMS = 8


@dataclass(frozen=True)
class Ends:
    """The address of either end on the network between them."""

    source: str
    target: str
    cpus: int

    @property
    def streams(self) -> int:
        """Connections at once: one for each four CPUs of the smaller box, for a stream is one thread at each end."""
        return max(1, min(MOST_STREAMS, self.cpus // 4))


def ends_of(source: BoxConnection, target: BoxConnection, names: dict[str, str]) -> Ends:
    """IP addresses of the two ends. Raises BoxError where a box does not know its own."""
    found, cpus = [], []
    for box in (source, target):
        told = box.call("link_interfaces", timeout=30, addresses=[names[box.name]])
        address = told["resolved"].get(names[box.name])
        if address is None:
            raise BoxError(
                box.name, f"it does not know the address of {names[box.name]}", hint="write the IP address as link:"
            )
        found.append(address)
        cpus.append(int(told["cpus"]))
    return Ends(found[0], found[1], min(cpus))


def transfer(
    source: BoxConnection,
    target: BoxConnection,
    ends: Ends,
    what: dict[str, Any],
    hear: Callable[[Record], None],
) -> Record:
    """Send the parts that a begun transfer wants. ``what``: both places, the goal in short, streams, parts and limit.

    Raises OpFailed when it breaks off; what came until then stays and is not sent again.
    """
    key, streams = secrets.token_hex(32), max(1, min(what["streams"] or ends.streams, what["parts"]))
    serve = {
        "place": what["place_from"],
        "own": ends.source,
        "peer": ends.target,
        "key": key,
        "streams": streams,
        "limit": what["limit"],
    }
    serving = Listener(source, "weights_serve", serve, on=ends.source)
    try:
        got = target.call_with(
            "weights_receive",
            {
                "place": what["place"],
                "goal": what["goal"],
                "ends": {
                    "own": ends.target,
                    "peer": ends.source,
                    "port": serving.port,
                    "gentle": what["limit"] is not None,
                },
                "key": key,
                "streams": streams,
            },
            on_event=hear,
        )
    except FleetError:
        serving.cancel(END_WAIT)
        raise
    serving.end(END_WAIT)
    return {
        "received": got["received"],
        "sent": serving.told["sent"] if serving.told is not None else None,
        "streams": streams,
    }
