"""Checks of ``proxy.bridge``."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from fleetctl.spec.checks.boxes import wrong_address
from fleetctl.spec.checks.view import View
from fleetctl.spec.endpoint import Endpoint, parse_endpoint
from fleetctl.spec.problems import Path, Problem, did_you_mean, shown
from fleetctl.spec.units import seconds

_BRIDGE = ("proxy", "bridge")
ANYWHERE = ("0.0.0.0", "::", "*")


def url(view: View) -> Iterator[Problem]:
    """The bridge is a base URL with http or https, host and path, and not the proxy itself; https needs a name."""
    path: Path = (*_BRIDGE, "url")
    value = view.text(*path)
    if value is None:
        return
    try:
        found = parse_endpoint(value)
    except ValueError as error:
        # Not repeated: a password could be in it.
        yield view.problem(path, f"this URL is not right: {error}")
        return
    wrong = wrong_address(found.host)
    if wrong:
        yield view.problem(path, f"the host in {shown(value)} is not right: {wrong}")
    elif found.tls and _is_ip(found.host):
        message = f"HAProxy cannot check a certificate for {found.host}, an address; write the name that is in it"
        yield view.problem(path, message)
    elif _is_proxy(view, found):
        yield view.problem(path, "this is the proxy itself, which would wait for itself; write another endpoint")


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_proxy(view: View, found: Endpoint) -> bool:
    """The endpoint is where the proxy listens, on any of its boxes."""
    boxes = [view.text("proxy", "box"), *(name for _, name in view.texts("proxy", "boxes"))]
    own = {view.text("boxes", box, "address") for box in boxes if box is not None}
    floating, address = view.text("proxy", "floating", "address"), view.text("proxy", "address")
    if floating is not None:
        own.add(floating)
    elif address is not None and address not in ANYWHERE:
        own = {address}
    return found.host in own and found.port == (view.number("proxy", "port") or 8080)


def model(view: View) -> Iterator[Problem]:
    """The name of the bridge's model is not empty; a mapping names models of the fleet, at least one."""
    path: Path = (*_BRIDGE, "model")
    models, value = view.mapping("models"), view.get(*path)
    names = {(*path, name): other for name, other in value.items()} if isinstance(value, dict) else {path: value}
    if value == {}:
        yield view.problem(path, "this is empty; write the name of the model, or {MODEL OF THE FLEET: NAME}")
    for where, other in names.items():
        name = where[-1]
        if where != path and models and name not in models:
            yield view.problem(where, f"there is no model {shown(name)}; {did_you_mean(str(name), models)}", key=True)
        elif isinstance(other, str) and (not other.strip() or not other.isprintable()):
            yield view.problem(where, f"{shown(other)} is no name of a model; write it as the endpoint has it")


def after(view: View) -> Iterator[Problem]:
    """A request goes to the bridge before it is given up: ``after`` is at most ``hold``."""
    hold = view.duration("proxy", "hold") if "hold" in view.mapping("proxy") else 1200.0
    value = view.duration(*_BRIDGE, "after")
    value = 2.0 if "after" not in view.mapping(*_BRIDGE) else value
    if view.mapping(*_BRIDGE) and hold is not None and value is not None and value > hold:
        path: Path = (*_BRIDGE, "after") if "after" in view.mapping(*_BRIDGE) else _BRIDGE
        message = f"after ({seconds(value)}) is longer than hold ({seconds(hold)}), so nothing would go there"
        yield view.problem(path, f"{message}; write at most {seconds(hold)}")


def ca(view: View) -> Iterator[Problem]:
    """The CA certificates of the bridge are an absolute path on the proxy's box, not in a home folder; https only."""
    path: Path = (*_BRIDGE, "ca")
    value = view.text(*path)
    if value is None:
        return
    if not value.startswith("/") or any(character < " " for character in value):
        yield view.problem(path, f"{shown(value)} is not an absolute path; write like /etc/ssl/office-ca.pem")
    elif value.startswith(("/home/", "/root/", "/run/user/")):
        message = f"the proxy's unit cannot read {shown(value)}: it has ProtectHome=; write like /etc/ssl/office-ca.pem"
        yield view.problem(path, message)
    elif (view.text(*_BRIDGE, "url") or "").startswith("http://"):
        yield view.problem(path, "plain http has no certificate to check; write https:// in url:, or take ca: out")


CHECKS = (url, model, after, ca)
