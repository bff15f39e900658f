"""Which servers a move has to take out of the proxy: all that may get a request, whatever their engine does now."""

from __future__ import annotations

from typing import Any

import pytest
from planned import TWO_PROXIES, boxes_in, layout

from fleetctl.facts.proxies import servers_not_closed
from fleetctl.plan.difference import compare

LIVE, OLD = layout("replicas", proxy=TWO_PROXIES), "qwen/replicas-b"


@pytest.mark.parametrize(
    ("server", "closed"),
    [
        ({"status": "UP", "weight": 1, "admin": "ready"}, False),
        ({"status": "UP", "weight": 0, "admin": "ready"}, False),
        ({"status": "DOWN", "weight": 1, "admin": "ready"}, False),
        ({"status": "MAINT (resolution)", "weight": 1, "admin": "ready"}, False),
        # `disable health` by hand: it gets requests, and nothing would take it out
        ({"status": "no check", "weight": 1, "admin": "ready"}, False),
        ({"status": "DRAIN", "weight": 1, "admin": "drain"}, True),
        ({"status": "DOWN", "weight": 1, "admin": "drain"}, True),
        ({"status": "MAINT", "weight": 1, "admin": "maint"}, True),
        # told by an earlier version, which does not say what it was told to be
        ({"status": "DRAIN (agent)", "weight": 1}, True),
        ({"status": "MAINT", "weight": 1}, True),
        ({"status": "DOWN", "weight": 1}, False),
    ],
)
@pytest.mark.parametrize("box", ["a", "b"])
def test_a_server_that_may_get_a_request_of_one_proxy_is_closed_before_its_engine_stops(
    server: dict[str, Any], closed: bool, box: str
) -> None:
    seen = boxes_in(LIVE)
    for name in ("a", "b"):  # on the other box it is closed
        proxy = seen[name].proxy
        assert proxy is not None
        told = server if name == box else {"status": "MAINT", "weight": 1, "admin": "maint"}
        servers = {key: one.model_dump() for key, one in proxy.servers.items()}
        servers |= {OLD: told, "qwen/again": {"status": "no check", "weight": 1}}
        changed = proxy.model_validate({**proxy.model_dump(), "servers": servers})
        seen[name] = seen[name].model_copy(update={"proxy": changed})
    found = servers_not_closed(LIVE.proxy, seen)
    assert (OLD in found, "qwen/again" in found) == (not closed, False)
    move = compare(LIVE, layout("split", proxy=TWO_PROXIES), seen, 2)
    assert (OLD in move.close, any("again" in name for name in move.close)) == (not closed, False)
