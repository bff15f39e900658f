"""All rules for nginx, in the order of their codes."""

from __future__ import annotations

from fleetctl.proxy.lint import nginx_balance, nginx_content, nginx_outage, nginx_retries, nginx_streams
from fleetctl.proxy.lint.findings import Rule
from fleetctl.proxy.lint.nginx_reader import Config

RULES: tuple[Rule[Config], ...] = tuple(
    rule
    for part in (nginx_outage, nginx_retries, nginx_streams, nginx_content, nginx_balance)
    for rule in part.RULES.rules
)
