"""Requests that were given up, kept for whoever looks into it: in the stream DEAD, with the reason."""

from __future__ import annotations

import logging

import nats.errors
from nats.js import JetStreamContext
from nats.js.errors import APIError

from fleetctl.pool import wire

log = logging.getLogger(__name__)

REASON = "Fleetctl-Reason"
"""Header: why it was given up."""


async def keep(js: JetStreamContext, model: str, data: bytes, reason: str, identity: str) -> None:
    """Keep a message as it came. That it cannot be kept is no reason to keep a client waiting."""
    headers = {REASON: reason} | ({"Nats-Msg-Id": f"{identity}.dead"} if identity else {})
    try:
        await js.publish(wire.dead_subject(model), data, stream=wire.DEAD, headers=headers)
    except (nats.errors.Error, APIError) as error:
        log.warning("a request that was given up could not be kept: %s", error)
