"""What the other workers of the pool have: asked before a model is loaded here that they may have already."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from fleetctl.pool import wire
from fleetctl.pool.worker.engine import Engine

OTHERS = 0.15
"""Seconds that the other workers have to say what they have loaded."""
SAME_MOMENT = 0.02
"""Seconds between two thoughts that cannot be told apart, as it takes time to hear of them."""


async def elsewhere(client: Client, box: str, engine: Engine) -> bool:
    """Whether another box has an engine's model loaded, or loads it, or has begun earlier to think of it."""
    found = False

    async def hear(message: Msg) -> None:
        nonlocal found
        with suppress(ValueError, KeyError, TypeError):
            said = json.loads(message.data)
            if said["box"] != box and not said["draining"]:
                others = said["models"].get(engine.config.model, {}).get("engines", [])
                found = found or any(precedes(box, engine, said["box"], other) for other in others)

    try:
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox, cb=hear)
        await client.publish(wire.STATE, b"", reply=inbox)
        await asyncio.sleep(OTHERS)
        await subscription.unsubscribe()
    except nats.errors.Error:
        return False
    return found


def precedes(box: str, engine: Engine, other_box: str, other: dict[str, Any]) -> bool:
    """Whether another box's engine makes it needless to load this one. Of two that think of it at the same moment the
    box whose name comes first goes on."""
    if other["phase"] in ("loaded", "loading"):
        return True
    if other["considered"] is None or engine.considered is None:
        return False
    earlier = float(other["considered"]) - (time.monotonic() - engine.considered)
    return other_box < box if abs(earlier) < SAME_MOMENT else earlier > 0
