"""Checks of ``proxy``."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from fleetctl.spec.checks.boxes import wrong_address
from fleetctl.spec.checks.view import View
from fleetctl.spec.fleet_proxy import Proxy, wrong_kind
from fleetctl.spec.problems import Path, Problem, did_you_mean, nearest, shown
from fleetctl.spec.units import seconds


def box(view: View) -> Iterator[Problem]:
    """The proxy runs on boxes that exist, and on each once."""
    boxes, name = view.mapping("boxes"), view.text("proxy", "box")
    named: list[tuple[Path, str]] = [] if name is None else [(("proxy", "box"), name)]
    seen: set[str] = set()
    for path, one in named + view.texts("proxy", "boxes"):
        if boxes and one not in boxes:
            yield view.problem(path, f"there is no box {shown(one)}; {did_you_mean(one, boxes)}")
        elif one in seen and path[1] == "boxes" and one != name:
            yield view.problem(path, f"{one} is already in this list; keep one")
        seen.add(one)


def kind(view: View) -> Iterator[Problem]:
    """A proxy has either ``box``, or ``boxes`` (two or more) with ``floating``, the address that is on one of them."""
    given = view.mapping("proxy")
    several = given.get("boxes")
    misspelt = any(
        nearest(key, ["box", "boxes", "floating"]) for key in given if key not in ("box", "boxes", "floating")
    )
    if not given or misspelt or not (several is None or (isinstance(several, list) and several)):
        return
    wrong = wrong_kind(given.get("box") is not None, several, floating=given.get("floating") is not None)
    if wrong:
        yield view.problem(("proxy",), wrong)


def floating(view: View) -> Iterator[Problem]:
    """The floating address is an IP address that is no box's own, of the same kind as those of the proxy's boxes."""
    where: Path = ("proxy", "floating", "address")
    value = view.text(*where)
    if value is None:
        return
    version = ip_version(value)
    if version is None:
        alone = "; write it without the prefix length" if "/" in value else ""
        yield view.problem(where, f"{shown(value)} is not an IP address{alone}")
        return
    for box in view.mapping("boxes"):
        for key in ("address", "link"):
            if view.text("boxes", box, key) == value:
                message = f"{value} is the {key} of {box}; a floating address is one that no machine has for itself"
                yield view.problem(where, message)
                return
    for _, box in view.texts("proxy", "boxes"):
        own = view.text("boxes", box, "address")
        if own is not None and ip_version(own) != version:
            message = (
                f"VRRP between the proxy's boxes needs their IP addresses, of the same kind as {value}, and that of "
                f"{box} is {shown(own)}"
            )
            yield view.problem(("boxes", box, "address"), message)
    address = view.text("proxy", "address")
    if address is not None and address != value:
        yield view.problem(("proxy", "address"), f"clients use the floating address {value}; take this key out")


def ip_version(value: str) -> int | None:
    """4 or 6 for an IP address that a machine can have; None for anything else."""
    try:
        parsed = ipaddress.ip_address(value)
    except ValueError:
        return None
    return None if parsed.is_unspecified or parsed.is_multicast or parsed.is_loopback else parsed.version


def address(view: View) -> Iterator[Problem]:
    """The proxy's address is an IP address or a host name alone; its port is a key of its own."""
    value = view.text("proxy", "address")
    wrong = wrong_address(value, any_address=True) if value is not None and value != "*" else None
    if wrong:
        yield view.problem(("proxy", "address"), f"{shown(value)} is not right: {wrong}")


def times(view: View) -> Iterator[Problem]:
    """Held requests outlast a drain: ``drain`` is at most ``hold``, unless ``hold`` is 0; checks are shorter still."""
    hold, drain = view.duration("proxy", "hold"), view.duration("proxy", "drain")
    hold = 1200.0 if "hold" not in view.mapping("proxy") else hold
    if hold and drain is not None and drain > hold:
        message = (
            f"drain ({seconds(drain)}) is longer than hold ({seconds(hold)}): requests that wait would be given up "
            f"before those that run have finished; write at most {seconds(hold)}"
        )
        yield view.problem(("proxy", "drain"), message)
    for key, least in (("check_interval", 0.05), ("stream_limit", 1.0), ("silence_limit", 1.0), ("keepalive", 1.0)):
        value = view.duration("proxy", key)
        if value is not None and value < least:
            message = f"{value:g} s is too short; write at least {least:g}s"
            yield view.problem(("proxy", key), message)
    silence, stream = view.duration("proxy", "silence_limit"), view.duration("proxy", "stream_limit")
    stream = 3600.0 if "stream_limit" not in view.mapping("proxy") else stream
    if silence is not None and stream is not None and silence >= stream:
        message = (
            f"silence_limit ({seconds(silence)}) is not shorter than stream_limit ({seconds(stream)}): requests on a "
            "hung engine would be given up before another could answer them; write less, or a longer stream_limit"
        )
        yield view.problem(("proxy", "silence_limit"), message)
    interval = view.duration("proxy", "check_interval")
    if interval is not None and interval > 60:
        yield view.problem(
            ("proxy", "check_interval"), "an engine would be seen after more than a minute; write like 0.5s"
        )


def health_checks(view: View) -> Iterator[Problem]:
    """One lost packet takes no engine out, and one that is gone is out within a minute: `fall` and `check_interval`."""
    interval, fall = view.duration("proxy", "check_interval"), view.number("proxy", "fall")
    interval = _default("check_interval") if interval is None else interval
    fall = _default("fall") if fall is None else fall
    if fall == 1 and interval < 0.1:
        message = f"one check that fails within {interval:g} s takes an engine out, and a busy box misses one; write 2"
        yield view.problem(("proxy", "fall"), message)
    if interval <= 60 and 1 <= fall <= 10 and fall * interval > 60:
        message = f"an engine that is gone would get requests for {seconds(fall * interval)}; write a smaller fall"
        yield view.problem(("proxy", "fall"), f"{message}, or a shorter check_interval")


def limits(view: View) -> Iterator[Problem]:
    """`timeout_connect` is 100ms to 30s, `timeout_http_keep_alive` 1s to 1h."""
    ranges = (
        ("timeout_connect", 0.1, "100ms", "a busy box needs longer"),
        ("timeout_http_keep_alive", 1.0, "1s", "clients would connect anew for every request"),
    )
    for key, least, written, why in ranges:
        value = view.duration("proxy", key)
        if value is not None and value < least:
            yield view.problem(("proxy", key), f"{value:g} s is too short: {why}; write at least {written}")
    connect, idle = view.duration("proxy", "timeout_connect"), view.duration("proxy", "timeout_http_keep_alive")
    if connect is not None and connect > 30:
        message = f"every request to a box that is gone would wait {seconds(connect)}; write at most 30s"
        yield view.problem(("proxy", "timeout_connect"), message)
    if idle is not None and idle > 3600:
        message = f"connections that nobody uses would stay for {seconds(idle)}; write at most 1h"
        yield view.problem(("proxy", "timeout_http_keep_alive"), message)


def _default(key: str) -> float:
    return float(Proxy.model_fields[key].default)


def certificate(view: View) -> Iterator[Problem]:
    """The certificate is an absolute path on the proxy's box, outside home folders, which its unit cannot read."""
    path = view.text("proxy", "tls", "certificate")
    if path is None:
        return
    where = ("proxy", "tls", "certificate")
    if not path.startswith("/") or any(character < " " for character in path):
        yield view.problem(where, f"{shown(path)} is not an absolute path; write like /etc/ssl/private/fleet.pem")
    elif path.startswith(("/home/", "/root/", "/run/user/")):
        message = (
            f"the proxy's unit cannot read {shown(path)}: it has ProtectHome=; write like /etc/ssl/private/fleet.pem"
        )
        yield view.problem(where, message)


def keys(view: View) -> Iterator[Problem]:
    """``api_keys`` names at least one key; without the key itself everybody may call."""
    given = view.get("proxy", "api_keys")
    if "api_keys" in view.mapping("proxy") and not given:
        message = "no key is named, which would let everybody call; name one, or take api_keys out if that is meant"
        yield view.problem(("proxy", "api_keys"), message, key=True)


CHECKS = (box, kind, floating, address, times, health_checks, limits, certificate, keys)
