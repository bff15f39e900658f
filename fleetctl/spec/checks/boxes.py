"""Checks of ``boxes`` and ``superseded``."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from fleetctl.spec.checks.view import View
from fleetctl.spec.problems import Path, Problem, did_you_mean, shown
from fleetctl.spec.units import gib

_HOST = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?"
)
_INTERFACE = re.compile(r"[^\s/,:=]{1,15}(,[^\s/,:=]{1,15})*")
_NO_UNIT = 1 << 20


def wrong_address(value: str, *, any_address: bool = False) -> str | None:
    """What is wrong with an address, or None. ``any_address``: 0.0.0.0 and :: will do."""
    try:
        parsed = ipaddress.ip_address(value)
    except ValueError:
        if re.fullmatch(r"[0-9.]+", value) or not _HOST.fullmatch(value):
            return "an address is an IP address or a host name alone, without scheme, port or path"
        return None
    if parsed.is_unspecified and not any_address:
        return "other boxes cannot reach this address; write the address of the box itself"
    return None


def addresses(view: View) -> Iterator[Problem]:
    """Every address is an IP address or a host name alone, and no two boxes share one."""
    seen: dict[str, Path] = {}
    for box in view.mapping("boxes"):
        mine = set()
        for key in ("address", "link"):
            path: Path = ("boxes", box, key)
            value = view.text(*path)
            if value is None:
                continue
            wrong = wrong_address(value)
            if wrong:
                yield view.problem(path, f"{shown(value)} is not right: {wrong}")
            elif value in seen:
                other = seen[value]
                yield view.problem(
                    path, f"{value} is already the {other[2]} of {other[1]}; boxes do not share addresses"
                )
            else:
                mine.add((value, path))
        seen.update(mine)


def logins(view: View) -> Iterator[Problem]:
    """No two boxes are reached by the same SSH host and port."""
    seen: dict[tuple[str, object], str] = {}
    for box in view.mapping("boxes"):
        alias = view.text("boxes", box, "ssh", "host")
        host = alias or view.text("boxes", box, "address")
        if host is None:
            continue
        target = (host, view.number("boxes", box, "ssh", "port") or 22)
        other = seen.setdefault(target, box)
        same_address = view.text("boxes", box, "address") == view.text("boxes", other, "address")
        if other != box and not same_address:
            path: Path = ("boxes", box, "ssh", "host") if alias else ("boxes", box, "address")
            yield view.problem(
                path, f"SSH to {target[0]}:{target[1]} already leads to {other}; two boxes are two machines"
            )


def ssh_hosts(view: View) -> Iterator[Problem]:
    """An SSH host or user is one word that does not begin with a dash."""
    for box in view.mapping("boxes"):
        for key in ("host", "user"):
            path: Path = ("boxes", box, "ssh", key)
            value = view.text(*path)
            if value is not None and not re.fullmatch(r"[^\s\-@/][^\s@/]*", value):
                hint = "; write the user under user:" if "@" in value else ""
                yield view.problem(path, f"{shown(value)} is not one word for {key}{hint}")


def interfaces(view: View) -> Iterator[Problem]:
    """A network interface has at most 15 characters, as the kernel names it."""
    for box in view.mapping("boxes"):
        path: Path = ("boxes", box, "interface")
        value = view.text(*path)
        if value is not None and not _INTERFACE.fullmatch(value):
            yield view.problem(path, f"{shown(value)} is no interface name; `ip -brief address` on {box} lists them")


def memory(view: View) -> Iterator[Problem]:
    """The reserve of a box is less than its memory, and a size of more than 0 has a unit."""
    for box in view.mapping("boxes"):
        sizes = {key: view.size("boxes", box, key) for key in ("memory", "reserve")}
        unitless = False
        for key, size in sizes.items():
            least = 1 if key == "reserve" else 0
            if size is not None and least <= size < _NO_UNIT:
                unitless = True
                written = view.get("boxes", box, key)
                hint = f"; did you mean {written}GiB?" if isinstance(written, int) and written else ""
                yield view.problem(("boxes", box, key), f"{shown(written)} is only {size} bytes{hint}")
        total, reserve = sizes["memory"], sizes["reserve"]
        if not unitless and total is not None and reserve is not None and reserve >= total:
            left = f"memory {gib(total)} - reserve {gib(reserve)} leaves nothing for an engine"
            yield view.problem(("boxes", box, "reserve"), f"{left}; write less")


def superseded(view: View) -> Iterator[Problem]:
    """A superseded unit is not one of fleetctl's own, is listed once, and names boxes that exist."""
    boxes = list(view.mapping("boxes"))
    seen: dict[tuple[str, str], int] = {}
    for index, entry in enumerate(view.items("superseded")):
        path: Path = ("superseded", index)
        unit = entry if isinstance(entry, str) else view.text(*path, "unit")
        place = path if isinstance(entry, str) else (*path, "unit")
        named = view.texts(*path, "boxes")
        for where, box in named:
            if boxes and box not in boxes:
                yield view.problem(where, f"there is no box {shown(box)}; {did_you_mean(box, boxes)}")
        if unit is None:
            continue
        if unit.startswith("fleetctl-") or unit.startswith("fleetctl."):
            yield view.problem(
                place, f"{shown(unit)} is a unit of fleetctl itself; list only units that came before it"
            )
        elif len(unit) > 255:
            yield view.problem(place, f"a unit name has at most 255 characters, and this has {len(unit)}")
        on = boxes if view.get(*path, "boxes") is None else [box for _, box in named]
        twice = [box for box in on if seen.setdefault((unit, box), index) != index]
        if twice:
            first = seen[unit, twice[0]]
            yield view.problem(place, f"{shown(unit)} on {twice[0]} is already in superseded[{first}]; keep one")


CHECKS = (addresses, logins, ssh_hosts, interfaces, memory, superseded)
