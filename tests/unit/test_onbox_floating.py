"""What another keepalived of a box is told to do."""

from __future__ import annotations

from fleetctl.onbox.floating import mentioned

CONF = """
! an office gateway
vrrp_instance one {
    interface eth0
    virtual_router_id 7   # not 51
    priority 100
    virtual_ipaddress { 10.0.0.60/24 dev eth0 label eth0:1 }
}
vrrp_instance two {
    virtual_router_id 8
    unicast_peer { fd00::2 }
    virtual_ipaddress { fd00::60/64 }
    # virtual_ipaddress { 10.0.0.50 }
}
"""


def test_router_ids_and_addresses_are_found_and_comments_are_not() -> None:
    assert mentioned(CONF) == {"router_ids": [7, 8], "addresses": ["10.0.0.60", "fd00::2", "fd00::60"]}


def test_a_keepalived_that_was_never_told_anything_does_nothing() -> None:
    assert mentioned("") == {"router_ids": [], "addresses": []}
