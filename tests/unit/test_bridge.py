"""The bridge in fleet.yaml, in the proxy's files, in plans and in status."""

from __future__ import annotations

from typing import Any

import pytest
from planned import boxes_in, layout, office, plan

from fleetctl.errors import SpecError
from fleetctl.facts.assess import assess
from fleetctl.facts.types import ServerFacts
from fleetctl.plan.difference import compare
from fleetctl.render.proxy import haproxy_config, proxy_config, proxy_files
from fleetctl.run.fill import Filler
from fleetctl.spec.load import parse_fleet
from fleetctl.spec.problems import FleetFileError, dotted

FILE = """\
fleet: office
boxes:
  spark1: {address: 10.0.0.1, memory: 100GiB, reserve: 20GiB}
models:
  qwen: {weights: /models/qwen, context: 8192, launch: {venv: /opt/vllm}}
layouts:
  one: {qwen: {copies: [spark1]}}
proxy:
  box: spark1
"""
HOSTED: dict[str, Any] = {
    "url": "https://api.example.com/v1",
    "model": "org/small",
    "api_key": {"env": "BRIDGE_KEY"},
}
OFFICE: dict[str, Any] = {"url": "http://10.0.0.9:8000/v1", "model": {"qwen": "small"}}


def found(bridge: str, proxy: str = "") -> list[tuple[str, str]]:
    """Path and message of every problem of a file with this bridge, in YAML's flow style."""
    try:
        parse_fleet(f"{FILE}{proxy}  bridge: {{{bridge}}}\n", "fleet.yaml")
    except FleetFileError as error:
        return [(dotted(problem.path), problem.message) for problem in error.problems]
    return []


URL = "url: https://api.example.com/v1"
BROKEN = [
    ("model: m", "", "proxy.bridge", "url"),
    (URL, "", "proxy.bridge", "model"),
    ("url: api.example.com/v1, model: m", "", "proxy.bridge.url", "does not begin with https://"),
    ("url: ftp://api.example.com/v1, model: m", "", "proxy.bridge.url", "does not begin with https://"),
    ("url: https://api.example.com, model: m", "", "proxy.bridge.url", "write https://api.example.com/v1, or"),
    ("url: 'https://api.example.com/v1?x=1', model: m", "", "proxy.bridge.url", "a query"),
    ("url: 'https://me:hunter2@api.example.com/v1', model: m", "", "proxy.bridge.url", "under api_key:"),
    ("url: 'https://api.example.com/a b', model: m", "", "proxy.bridge.url", "plain words"),
    ("url: 'https://api.example.com/%[env(x)]', model: m", "", "proxy.bridge.url", "plain words"),
    ("url: 'https://api.example.com:70000/v1', model: m", "", "proxy.bridge.url", "no URL"),
    ("url: 'http://ex_ample$x/v1', model: m", "", "proxy.bridge.url", "an IP address or a host name"),
    ("url: https://10.0.0.9/v1, model: m", "", "proxy.bridge.url", "write the name that is in it"),
    ("url: 'http://10.0.0.1:8080/v1', model: m", "", "proxy.bridge.url", "the proxy itself"),
    ("url: 'http://10.0.0.1:99/v1', model: m", "  port: 99\n", "proxy.bridge.url", "the proxy itself"),
    (f"{URL}, model: ''", "", "proxy.bridge.model", "no name of a model"),
    (f"{URL}, model: {{}}", "", "proxy.bridge.model", "this is empty"),
    (f"{URL}, model: {{qewn: m}}", "", "proxy.bridge.model.qewn", "did you mean qwen?"),
    (f"{URL}, model: {{qwen: 7}}", "", "proxy.bridge.model.qwen", "in quotes"),
    (f"{URL}, model: m, api_key: sk-123", "", "proxy.bridge.api_key", "does not belong in this file"),
    (f"{URL}, model: m, after: 30s", "  hold: 20s\n  drain: 1s\n", "proxy.bridge.after", "longer than hold"),
    (f"{URL}, model: m", "  hold: 1s\n  drain: 1s\n", "proxy.bridge", "after (2.0 s) is longer than hold (1.0 s)"),
    (f"{URL}, model: m, concurrency: 0", "", "proxy.bridge.concurrency", "from 1 up"),
    (f"{URL}, model: m, ca: ca.pem", "", "proxy.bridge.ca", "not an absolute path"),
    (f"{URL}, model: m, ca: /root/ca.pem", "", "proxy.bridge.ca", "ProtectHome="),
    ("url: 'http://10.0.0.9/v1', model: m, ca: /etc/ssl/ca.pem", "", "proxy.bridge.ca", "no certificate to check"),
]


@pytest.mark.parametrize(
    ("bridge", "proxy", "path", "part"), BROKEN, ids=[row[2] + ":" + row[3][:20] for row in BROKEN]
)
def test_what_cannot_work_is_told_once_at_its_place(bridge: str, proxy: str, path: str, part: str) -> None:
    ((told, message),) = found(bridge, proxy)
    assert told == path
    assert part in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    "bridge",
    [
        f"{URL}, model: org/small, api_key: {{env: KEY}}",
        "url: 'http://box3:8000/', model: {qwen: small}, after: 0",
        "url: 'http://[fd00::9]:8000/openai/v1/', model: m",
        "url: 'http://10.0.0.1:9000/v1', model: m",
    ],
)
def test_what_is_right_is_let_through(bridge: str) -> None:
    assert found(bridge) == []


@pytest.mark.parametrize(
    ("proxy", "host"),
    [
        ("{boxes: [a, b], floating: {address: 10.0.0.50}, ", "10.0.0.50"),
        ("{boxes: [a, b], floating: {address: 10.0.0.50}, ", "10.0.0.2"),
        ("{box: a, address: 0.0.0.0, ", "10.0.0.1"),
        ("{box: a, address: 10.9.0.1, ", "10.9.0.1"),
    ],
)
def test_no_address_of_the_proxy_itself_is_a_bridge(proxy: str, host: str) -> None:
    boxes = "a: {address: 10.0.0.1, memory: 9GiB, reserve: 1GiB}, b: {address: 10.0.0.2, memory: 9GiB, reserve: 1GiB}"
    text = (
        f"fleet: office\nboxes: {{{boxes}}}\nmodels: {{qwen: {{weights: /m, context: 8, launch: {{venv: /v}}}}}}\n"
        f"layouts: {{one: {{qwen: {{copies: [a]}}}}}}\n"
        f"proxy: {proxy}bridge: {{url: 'http://{host}:8080/v1', model: m}}}}\n"
    )
    with pytest.raises(FleetFileError, match="this is the proxy itself"):
        parse_fleet(text, "fleet.yaml")
    parse_fleet(text.replace(":8080/v1", ":8000/v1"), "fleet.yaml")


def test_the_key_is_in_a_file_that_only_root_reads_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_KEY", "sk-of-the-bridge")
    files = {file.path: file for file in proxy_files(proxy_config(office(proxy__bridge=HOSTED), "split"))}
    filled = {path: Filler()(file) for path, file in files.items()}
    (path,) = [path for path, text in filled.items() if "sk-of-the-bridge" in text]
    assert path == "/etc/fleetctl/proxy/bridge-key"
    assert (files[path].mode, files[path].content) == (0o600, "key @secret:bridge@\n")
    plain = proxy_files(proxy_config(office(proxy__bridge=OFFICE), "split"))
    assert not any(file.secrets for file in plain)


def test_over_https_the_certificate_is_always_checked_against_the_name() -> None:
    def server_line(**bridge: Any) -> str:
        text = haproxy_config(proxy_config(office(proxy__bridge=bridge), "split"))
        (line,) = [line for line in text.splitlines() if line.startswith("    server bridge ")]
        return line

    hosted = server_line(**HOSTED)
    assert " ssl verify required ca-file @system-ca sni str(api.example.com) " in hosted
    assert " check-sni api.example.com verifyhost api.example.com" in hosted
    assert " ca-file '/etc/ssl/our ca.pem' " in server_line(**HOSTED, ca="/etc/ssl/our ca.pem")
    assert "ssl" not in server_line(**OFFICE)


def test_only_models_with_a_name_there_go_to_the_bridge() -> None:
    models = office().model_dump(exclude_none=True)["models"]
    more = {**models, "tiny": {**models["qwen"], "weights": "/models/tiny"}}
    layouts = {"one": {"qwen": {"copies": ["a"]}, "tiny": {"copies": ["b"]}}}
    fleet = office(models=more, layouts=layouts, proxy__bridge={**OFFICE, "model": {"tiny": 'a "b"'}})
    text = haproxy_config(proxy_config(fleet, "one"))
    assert 'setenv bridge_model_tiny \'"a \\"b\\""\'\n' in text
    assert "bridge_model_qwen" not in text
    both = {**more, "tiny": {**more["tiny"], "served_as": ["qwen"]}}
    layouts = {"one": {"qwen": {"copies": ["a"]}}, "two": {"tiny": {"copies": ["b"]}}}
    with pytest.raises(SpecError, match="cannot tell them apart"):
        proxy_config(
            office(models=both, layouts=layouts, proxy__bridge={**OFFICE, "model": {"qwen": "x", "tiny": "y"}}), "one"
        )


@pytest.mark.parametrize(
    ("bridge", "told"),
    [
        (HOSTED, "while no engine is up, prompts leave the fleet: they go to api.example.com (the proxy's bridge)"),
        (OFFICE, "they go to 10.0.0.9:8000 (the proxy's bridge), unencrypted"),
        ({**OFFICE, "api_key": {"env": "K"}}, "unencrypted, and its key with them"),
    ],
)
def test_a_plan_warns_that_prompts_leave_the_fleet(bridge: dict[str, Any], told: str) -> None:
    source, target = layout("split"), layout("replicas", proxy__bridge=bridge)
    (warning,) = plan(source, target, boxes_in(source)).warnings
    assert warning.endswith(told)
    assert plan(source, layout("replicas"), boxes_in(source)).warnings == ()


BRIDGED = layout("split", proxy__bridge=HOSTED)


def with_bridge(**bridge: Any) -> Any:
    """The boxes of the office, the bridge as given."""
    observed = boxes_in(BRIDGED)
    facts = observed["a"]
    assert facts.proxy is not None
    proxy = facts.proxy.model_copy(update={"bridge": ServerFacts.model_validate({"weight": 1, **bridge})})
    return {**observed, "a": facts.model_copy(update={"proxy": proxy})}


@pytest.mark.parametrize(
    ("bridge", "notes"),
    [
        ({"status": "UP", "running": 0}, []),
        ({"status": "UP", "running": 3}, ["the bridge api.example.com is at work: 3 requests run there"]),
        (
            {"status": "DOWN", "check": "L6RSP"},
            [
                "the bridge api.example.com cannot be reached (DOWN L6RSP): requests that find no engine only wait",
            ],
        ),
    ],
)
def test_status_tells_of_a_bridge_at_work_and_of_one_that_would_not_be_there(
    bridge: dict[str, Any], notes: list[str]
) -> None:
    seen = assess(with_bridge(**bridge), "a", "office")
    assert (seen.notes, seen.problems) == (notes, [])


def test_no_move_has_to_do_with_the_bridge_and_no_plan_rests_on_it() -> None:
    up, down = with_bridge(status="UP"), with_bridge(status="DOWN")
    assert compare(BRIDGED, BRIDGED, up, 1).nothing()
    assert up["a"].digest() == down["a"].digest()
