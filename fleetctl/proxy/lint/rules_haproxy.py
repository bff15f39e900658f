"""All rules for HAProxy, in the order of their codes."""

from __future__ import annotations

from fleetctl.proxy.lint import haproxy_around, haproxy_health, haproxy_queue, haproxy_retries, haproxy_timeouts
from fleetctl.proxy.lint.findings import Rule
from fleetctl.proxy.lint.haproxy_reader import Config

RULES: tuple[Rule[Config], ...] = tuple(
    rule
    for part in (haproxy_health, haproxy_retries, haproxy_timeouts, haproxy_queue, haproxy_around)
    for rule in part.RULES.rules
)
