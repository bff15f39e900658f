"""Who goes round the proxy, by what the boxes told; and that nobody else is blamed."""

from __future__ import annotations

from typing import Any

import pytest
from planned import layout
from scenes import scene

from fleetctl.doctor.clients import CLIENTS
from fleetctl.facts.clients import question, words
from fleetctl.facts.direct import ClientsTold

A, B = "10.0.0.1", "10.0.0.2"  # the boxes; b has the engine that everybody talks to, a the proxy
STRANGER = ("192.0.2.7", 53210)
JOB = {"pid": 41, "comm": "python3", "unit": "batch.service", "command": "python3 /opt/batch.py"}


def connection(**more: Any) -> dict[str, Any]:
    """One that a stranger has open to the engine of b."""
    usual = {"local": (B, 8000), "remote": STRANGER, "incoming": True, "first": 1.0, "last": 3.0, "open": True}
    return {**usual, **more}


def outgoing(process: dict[str, Any], port: int = 40000) -> dict[str, Any]:
    """One that a process of a has open to the engine of b."""
    return connection(local=(A, port), remote=(B, 8000), incoming=False, process=process)


def log(address: str = STRANGER[0], **counts: Any) -> dict[int, Any]:
    return {8000: {"lines": 100, "clients": {address: {"last": 3.0, "worked": 3.0, **counts}}}}


def findings(told: dict[str, dict[str, Any]], **more: Any) -> list[tuple[str, str, str | None, str]]:
    return [
        (f.code, f.severity.value, f.box, f.where)
        for f in CLIENTS.find(scene(**more), {box: ClientsTold.model_validate(one) for box, one in told.items()})
    ]


CASES = [
    ("nobody", {"b": {}}, []),
    ("a stranger with an open connection", {"b": {"seen": [connection()]}}, [("C01", "warning", "b", STRANGER[0])]),
    ("one who has just left", {"b": {"seen": [connection(open=False)]}}, [("C01", "warning", "b", STRANGER[0])]),
    ("a process of a box", {"a": {"seen": [outgoing(JOB)]}}, [("C01", "warning", "a", "batch.service")]),
    (
        "the same process once, however many connections, and not once more as an address",
        {"a": {"seen": [outgoing(JOB), outgoing(JOB, 40001)]}, "b": {"seen": [connection(remote=(A, 40000))]}},
        [("C01", "warning", "a", "batch.service")],
    ),
    (
        "a container that is seen from both sides",
        {
            "b": {
                "seen": [
                    connection(remote=("172.17.0.2", 40000)),
                    connection(remote=("172.17.0.2", 40001), open=False),
                    connection(local=("172.17.0.2", 40000), remote=(B, 8000), incoming=False, process=JOB),
                ],
                "asked": log("172.17.0.2", work=50),
            }
        },
        [("C01", "warning", "b", "batch.service")],
    ),
    ("short connections, by the log alone", {"b": {"asked": log(work=50)}}, [("C01", "warning", "b", STRANGER[0])]),
    ("a person who tried something", {"b": {"asked": log(work=2)}}, []),
    ("a monitor, by the log alone", {"b": {"asked": log(reads=5000)}}, []),
    ("a monitor that is connected now", {"b": {"seen": [connection()], "asked": log(reads=500)}}, []),
    ("a monitor on a box, by its name", {"a": {"seen": [outgoing({**JOB, "comm": "prometheus"})]}}, []),
    (
        "a monitor on a box, by what it asked for",
        {"a": {"seen": [outgoing(JOB)]}, "b": {"asked": {8000: {"connections": {f"{A} 40000": "reads"}}}}},
        [],
    ),
    (
        "a process of a box that asked for work",
        {"a": {"seen": [outgoing(JOB)]}, "b": {"asked": {8000: {"connections": {f"{A} 40000": "work"}}}}},
        [("C01", "warning", "a", "batch.service")],
    ),
    ("the proxy in the log", {"b": {"asked": log(A, work=5000)}}, []),
    (
        "engines that others reach, without a firewall",
        {"a": {"listens": {8000: ["0.0.0.0"]}}, "b": {"listens": {8000: [B]}}},
        [("C03", "note", None, "firewall:")],
    ),
    ("engines that only their box reaches", {"a": {"listens": {8000: ["127.0.0.1"]}}}, []),
    (
        "a unit with an engine's address",
        {
            "a": {
                "settings": [
                    {
                        "path": "/etc/systemd/system/x.service",
                        "line": 7,
                        "address": f"{B}:8000",
                        "engine": "replicas/qwen@b",
                    }
                ]
            }
        },
        [("C05", "warning", "a", "/etc/systemd/system/x.service:7")],
    ),
]


@pytest.mark.parametrize(("told", "found"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_who_goes_round_the_proxy(told: dict[str, Any], found: list[Any]) -> None:
    assert findings(told) == found


def test_a_client_that_was_there_hours_ago_is_a_note() -> None:
    assert findings({"b": {"asked": log(work=50)}}, facts={"b": {"time": 4 * 3600.0}}) == [
        ("C01", "note", "b", STRANGER[0])
    ]


WALLED = {"firewall": {}}
ALLOWED = {"firewall": {"allow": [STRANGER[0]]}}


def firewall(file: dict[str, Any], box: str, **more: Any) -> dict[str, Any]:
    """Facts of a box whose firewall is loaded as the file wants it."""
    from fleetctl.render.firewall import mark_of

    release = layout("replicas", **file)
    seen = {"loaded": True, "intact": True, "mark": mark_of(release.files[box]), **more}
    units = {**scene(file=file).observed[box].units}
    units["fleetctl-firewall.service"] = next(iter(units.values())).model_copy(
        update={"active": "active", "enabled": "enabled", "engine": None}
    )
    return {"firewall": seen, "units": units}


@pytest.mark.parametrize(
    ("file", "a", "told", "found"),
    [
        (WALLED, {}, {}, []),
        (WALLED, {"refused": [STRANGER[0]]}, {}, [("C02", "note", "a", "table inet fleetctl")]),
        (WALLED, {"intact": False}, {}, [("C04", "error", "a", "table inet fleetctl")]),
        (WALLED, {"loaded": False, "mark": None}, {}, [("C04", "error", "a", "table inet fleetctl")]),
        # Requests of the time before it was loaded; what is connected goes on.
        (WALLED, {}, {"b": {"asked": log(work=50)}}, []),
        (WALLED, {}, {"b": {"seen": [connection()]}}, [("C01", "warning", "b", STRANGER[0])]),
        (ALLOWED, {}, {"b": {"seen": [connection()], "asked": log(work=50)}}, []),
    ],
)
def test_what_the_firewall_refused_and_whether_it_is_there(
    file: dict[str, Any], a: dict[str, Any], told: dict[str, Any], found: list[Any]
) -> None:
    facts = {"a": firewall(file, "a", **a), "b": firewall(file, "b")}
    assert findings(told, file=file, facts=facts) == found


def test_a_firewall_that_the_file_wants_and_no_box_has_yet_is_an_error() -> None:
    assert findings({}, live=layout("replicas"), file=WALLED) == [("C04", "error", None, "firewall:")]


def test_the_fix_names_the_proxy_and_the_words_to_write() -> None:
    told = {"b": ClientsTold.model_validate({"seen": [connection()]})}
    (found,) = CLIENTS.find(scene(), told)
    assert found.says == f"{STRANGER[0]} talks to replicas/qwen@b directly, not through the proxy"
    assert f"http://{A}:8080/v1" in found.fix and "firewall: {allow: [192.0.2.7]}" in found.fix
    assert found.evidence == (f"{STRANGER[0]} → {B}:8000: 1 connection in the last minute, 1 open",)


def test_who_measured_an_engine_a_moment_ago_is_told_that_this_is_seen_too() -> None:
    (found,) = CLIENTS.find(scene(), {"b": ClientsTold.model_validate({"asked": log(work=50)})})
    assert "`bench`, `tune` and `eval` of fleetctl ask engines directly too" in found.fix


def test_a_fleet_without_a_layout_asks_nothing() -> None:
    from planned import BEFORE

    assert question(scene().fleet, BEFORE, scene().observed, "a") is None
    assert list(CLIENTS.find(scene(BEFORE), {})) == []


def test_engines_are_looked_for_by_address_link_and_name_and_the_proxy_is_not() -> None:
    fleet = scene().fleet
    found = words(fleet, scene().releases)
    assert {(host, port) for host, port, _ in found} == {
        (host, 8000) for host in ("a", "b", A, B, "10.1.0.1", "10.1.0.2")
    }
