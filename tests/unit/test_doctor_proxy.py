"""What lengthens an outage, what differs, and where requests go: by what the boxes told of their proxies."""

from __future__ import annotations

from typing import Any

import pytest
from planned import BEFORE, TWO_PROXIES, layout
from scenes import scene

from fleetctl.doctor.finding import Finding
from fleetctl.doctor.proxy.family import PROXY, ask
from fleetctl.doctor.proxy.settings import CONFIG
from fleetctl.doctor.proxy.told import ProxyTold
from fleetctl.doctor.scene import Scene
from fleetctl.render.proxy import haproxy_config
from fleetctl.render.release import Release

NOW = 1_796_047_760.0


def found(of: Scene, told: dict[str, dict[str, Any]] | None = None) -> list[Finding]:
    return list(PROXY.find(of, {box: ProxyTold.model_validate(one) for box, one in (told or {}).items()}))


def codes(findings: list[Finding]) -> list[tuple[str, str, str | None, str]]:
    return [(f.code, f.severity.value, f.box, f.where) for f in findings]


def servers(release: Release, **changes: dict[str, Any]) -> list[dict[str, Any]]:
    """What HAProxy says where it runs what the release wants; ``b={…}`` changes the server of replicas on b."""
    assert release.proxy
    seen: list[dict[str, Any]] = [
        {
            "backend": backend.name,
            "server": server.name,
            "status": "UP" if server.layout == release.layout else "MAINT",
            "weight": 1,
            "changed": 5000.0,
            "maxconn": server.maxconn,
            "address": server.address,
            "port": server.port,
        }
        for backend in release.proxy.backends
        for server in backend.servers
    ]
    seen.append({"backend": "qwen", "server": "again", "status": "no check", "weight": 1, "address": "-"})
    return [row | changes.get(row["server"].removeprefix("replicas-"), {}) for row in seen]


def running(release: Release, sent: dict[str, int] | None = None, **changes: dict[str, Any]) -> dict[str, Any]:
    traffic = {"sent": {"qwen": {f"replicas-{box}": n for box, n in (sent or {}).items()}}, "now": NOW}
    return {"running": {"uptime": 6000.0, "servers": servers(release, **changes)}, "traffic": traffic}


REPLICAS = layout("replicas")


def test_what_fleetctl_renders_gives_no_finding() -> None:
    for file in ({}, {"proxy__balance": "prefix"}, {"proxy": TWO_PROXIES}):
        release = layout("replicas", **file)
        assert found(scene(release, file=file), {"a": running(release, {"a": 500, "b": 450})}) == []


@pytest.mark.parametrize(
    ("file", "where", "said"),
    [
        # "timeout server 60s" kills every long prompt.
        ({"proxy__stream_limit": "60s"}, "proxy: stream_limit", "prompts of more than about"),
        ({"proxy__timeout_connect": "8s"}, "proxy: timeout_connect", "waits 8 s"),
        ({"proxy__check_interval": "10s"}, "proxy: check_interval", "one that hangs for up to"),
        ({"proxy__retries": 0}, "proxy: retries", "each request for it fails with 503"),
        ({"proxy__hold": "20s"}, "proxy: hold", "get 503 after 20 s"),
        ({"proxy__timeout_queue": "10s"}, "proxy: timeout_queue", "get 503 after 10 s"),
    ],
)
def test_a_setting_that_lengthens_an_outage_is_told_by_its_key(file: dict[str, Any], where: str, said: str) -> None:
    (one,) = found(scene(layout("replicas", **file), file=file))
    assert (one.code, one.where, said in one.says) == ("X01", where, True), one
    assert f"take `{where.removeprefix('proxy: ')}` out of proxy:" in one.fix


def test_a_setting_that_the_file_has_mended_already_waits_for_an_apply() -> None:
    (one,) = found(scene(layout("replicas", proxy__stream_limit="60s")))
    assert (one.where, one.fix) == ("proxy: stream_limit", "`fleetctl apply`: fleet.yaml has another value already")
    assert "is 60s" in one.says


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("option redispatch 1", "no option redispatch", "H10"),
        ("balance leastconn", "balance roundrobin", "H30"),
        ("timeout server 3600000ms", "timeout server 60s", "H20"),
    ],
)
def test_an_edit_on_the_box_is_told_with_what_it_does(old: str, new: str, code: str) -> None:
    assert REPLICAS.proxy
    text = haproxy_config(REPLICAS.proxy)
    assert old in text
    seen = scene(facts={"a": {"drift": (CONFIG,)}})
    assert (ask(seen, "a") or {})["config"] == CONFIG and (ask(scene(), "a") or {})["config"] is None
    findings = found(seen, {"a": {"config": text.replace(old, new)}})
    assert code in "\n".join(line for f in findings for line in f.evidence), findings
    assert {f.code for f in findings} == {"X01"} and "systemctl reload fleetctl-proxy.service" in findings[0].fix


def test_an_edit_that_does_no_harm_is_left_to_others() -> None:
    assert REPLICAS.proxy
    assert found(scene(), {"a": {"config": haproxy_config(REPLICAS.proxy) + "\n# hello\n"}}) == []


def test_a_hold_that_is_shorter_than_a_load_is_told_with_what_to_write() -> None:
    end = {"loads": {"replicas/qwen@a": 700.0, "replicas/qwen@b": 650.0}}
    move = {"move": "1", "end": end, "operation": "cutover", "from_layout": None, "to_layout": "replicas", "who": "x"}
    moves = {"a": {"moves": ({**move, "started": 1.0},)}}
    file = {"proxy__hold": "10m"}
    (one,) = found(scene(layout("replicas", **file), facts=moves, file=file))
    assert (one.code, one.says) == ("X02", "`hold` is 10m, and replicas/qwen@a took 700 s to load last time")
    assert "`hold: 15m`" in one.fix
    assert found(scene(facts=moves)) == []


HAPROXY = """\
global
    server-state-file /var/lib/haproxy/state
defaults
    mode http
    retries 3
    load-server-state-from-file global
    timeout connect 5s
    timeout client 60s
    timeout server 60s
backend engines
    server one 10.0.0.1:8000 check init-addr none
    server two b:8000 check init-addr none
"""
NGINX = """\
# configuration file /etc/nginx/nginx.conf:
events {}
http {
  include /etc/nginx/conf.d/*.conf;
}

# configuration file /etc/nginx/conf.d/model.conf:
upstream model {
  server 10.0.0.1:8000 max_fails=3 fail_timeout=30s;
  server 10.0.0.2:8000 max_fails=3 fail_timeout=30s;
}
server { listen 80; location / { proxy_pass http://model; proxy_read_timeout 60s; } }

"""
OTHERS = "upstream shop { server 10.0.0.9:3000; }\nserver { listen 80; location / { proxy_pass http://shop; } }\n"


def other(program: str, text: str | None, **more: Any) -> dict[str, Any]:
    usual = {"program": program, "unit": f"{program}.service", "running": True, "enabled": True}
    return {"others": [{**usual, "path": f"/etc/{program}/{program}.conf", "text": text, **more}]}


@pytest.mark.parametrize(
    ("told", "rules"),
    [
        # retries without redispatch, a timeout that kills long prompts, names that are never resolved, an old address.
        (other("haproxy", HAPROXY), ["H10", "H20", "H40", "H41"]),
        # "no live upstreams while connecting to upstream" for 30 s after the engines were back.
        (other("nginx", NGINX, running=False), ["N"]),
        (other("nginx", OTHERS), None),
        (other("nginx", None), None),
        (other("nginx", "this { is no configuration"), None),
        (other("nginx", f"# {NGINX.splitlines()[7]}"), None),
    ],
)
def test_an_old_proxy_is_told_when_it_leads_to_the_boxes(told: dict[str, Any], rules: list[str] | None) -> None:
    findings = found(scene(), {"b": told})
    if rules is None:
        assert findings == []
        return
    unit = told["others"][0]["unit"]
    assert [(f.code, f.box, f.where) for f in findings] == [("X03", "b", unit)]
    seen = "\n".join(findings[0].evidence)
    assert all(rule in seen for rule in rules), seen
    assert f"systemctl disable --now {unit}" in findings[0].fix and "10.0.0.1:8080" in findings[0].fix


def test_before_the_first_layout_an_old_proxy_is_the_proxy_and_told_what_it_does_in_an_outage() -> None:
    (one,) = found(scene(BEFORE), {"b": other("nginx", NGINX)})
    assert "is the proxy as yet" in one.says and "superseded" in one.fix and "disable" not in one.fix


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"address": "10.0.0.9"}, "leads to 10.0.0.9:8000 instead of 10.0.0.2:8000"),
        ({"port": 8001}, "leads to 10.0.0.2:8001"),
        ({"maxconn": 2}, "takes 2 requests at once"),
        # "the server stays in MAINT": by both looks, and the engine runs.
        ({"status": "MAINT (resolution)"}, "is MAINT (resolution), although its engine runs"),
    ],
)
def test_a_server_that_is_not_as_the_layout_wants_it_is_told(change: dict[str, Any], said: str) -> None:
    of = scene()
    proxy = of.observed["a"].proxy
    assert proxy
    if "status" in change:
        before = proxy.servers["qwen/replicas-b"].model_copy(update={"status": "MAINT"})
        proxy = proxy.model_copy(update={"servers": {**proxy.servers, "qwen/replicas-b": before}})
    of.observed["a"] = of.observed["a"].model_copy(update={"proxy": proxy})
    (one,) = found(of, {"a": running(REPLICAS, b=change)})
    assert (one.code, one.box) == ("X04", "a")
    assert ("fleetctl apply" if "status" in change else "systemctl reload fleetctl-proxy.service") in one.fix
    assert said in one.evidence[0]


@pytest.mark.parametrize("check", ["L7STS/500", "L7STS/503"])
def test_a_dead_engine_answers_500_in_some_versions_and_503_in_others_and_is_started_anew(check: str) -> None:
    of = scene()
    proxy = of.observed["a"].proxy
    assert proxy
    before = proxy.servers["qwen/replicas-b"].model_copy(update={"status": "DOWN"})
    proxy = proxy.model_copy(update={"servers": {**proxy.servers, "qwen/replicas-b": before}})
    of.observed["a"] = of.observed["a"].model_copy(update={"proxy": proxy})
    (one,) = found(of, {"a": running(REPLICAS, b={"status": "DOWN", "check": check})})
    assert (one.code, one.fix) == ("X04", "`fleetctl restart b`")
    assert one.evidence == (f"qwen/replicas-b is DOWN ({check}), although its engine runs",)


@pytest.mark.parametrize(
    "facts",
    [
        {"b": {"drained": {"since": 1.0, "by": "anna"}}},
        {"b": {"guard_out": {"fleetctl-replicas-qwen.service": "memory is short"}}},
    ],
)
def test_a_server_that_somebody_took_out_is_told_elsewhere(facts: dict[str, Any]) -> None:
    of = scene(facts=facts)
    proxy = of.observed["a"].proxy
    assert proxy
    out = proxy.servers["qwen/replicas-b"].model_copy(update={"status": "MAINT"})
    seen = proxy.model_copy(update={"servers": {**proxy.servers, "qwen/replicas-b": out}})
    of.observed["a"] = of.observed["a"].model_copy(update={"proxy": seen})
    assert found(of, {"a": running(REPLICAS, b={"status": "MAINT"})}) == []


def test_a_configuration_of_another_time_and_servers_of_no_layout_are_told_unless_a_move_is_under_way() -> None:
    other_proxy = {"description": "fleetctl 0000", "servers": {}}
    told = {"a": running(REPLICAS)}
    told["a"]["running"]["servers"].append({"backend": "qwen", "server": "old", "status": "UP", "weight": 1})
    (one,) = found(scene(facts={"a": {"proxy": other_proxy}}), told)
    assert one.code == "X04" and len(one.evidence) == 2, one
    lock = {"token": "t", "who": "w", "host": "h", "pid": 1, "command": "c", "age": 1.0, "silent": 0.0}
    assert found(scene(facts={"a": {"proxy": other_proxy, "lock": lock}}), told) == []
    left = {**lock, "connected": False}  # whoever had it is gone, and has begun nothing
    assert found(scene(facts={"a": {"proxy": other_proxy, "lock": left}}), told) == [one]


def test_a_file_that_was_changed_and_not_applied_is_a_note() -> None:
    file = {"layouts__replicas__qwen__concurrency": 3}
    assert codes(found(scene(REPLICAS, file=file))) == [("X05", "note", None, "layouts:")]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        # "a server-state file brings an old address back after a restart"
        ({"address": "10.0.0.9", "port": 8000}, "would be at 10.0.0.9:8000"),
        ({"address": "10.0.0.2", "port": 8000, "admin": 1}, "would be out of service"),
        ({"address": "10.0.0.2", "port": 8000}, None),
    ],
)
def test_what_a_restart_of_the_proxy_would_bring_back(state: dict[str, Any], said: str | None) -> None:
    told = {**running(REPLICAS), "states": [{"backend": "qwen", "server": "replicas-b", **state}]}
    findings = found(scene(), {"a": told})
    assert [f.code for f in findings] == (["X06"] if said else [])
    if said:
        assert said in findings[0].evidence[0]
        assert findings[0].remedy and findings[0].remedy.undo


@pytest.mark.parametrize(
    ("sent", "changes", "code"),
    [
        ({"a": 40, "b": 38}, {}, None),
        ({"a": 40, "b": 1}, {}, None),
        ({"a": 40}, {}, "X08"),
        ({"a": 20}, {}, None),  # chance explains it, or nearly
        ({}, {}, None),
        ({"a": 400}, {"b": {"status": "DOWN"}}, None),
        ({"a": 400}, {"b": {"weight": 5}}, None),  # somebody wants it so
    ],
)
def test_one_copy_with_all_the_traffic(
    sent: dict[str, int], changes: dict[str, dict[str, Any]], code: str | None
) -> None:
    findings = found(scene(), {"a": running(REPLICAS, sent, **changes)})
    assert [f.code for f in findings] == ([code] if code else [])


def test_prefix_affinity_may_give_all_to_one_copy() -> None:
    file = {"proxy__balance": "prefix"}
    release = layout("replicas", **file)
    assert found(scene(release, file=file), {"a": running(release, {"a": 400})}) == []


def test_of_three_copies_the_idle_one_is_told() -> None:
    third = {"address": "10.0.0.3", "memory": "128GiB", "reserve": "16GiB"}
    file = {"boxes__c": third, "layouts__replicas__qwen__copies": ["a", "b", "c"]}
    release = layout("replicas", **file)
    (one,) = found(scene(release, file=file), {"a": running(release, {"a": 40, "b": 40})})
    assert (one.code, one.where) == ("X07", "qwen/replicas-c")


@pytest.mark.parametrize(
    ("scrape", "expected"),
    [
        ({"count": 240, "answered": 240, "servers": {"replicas-a": 120, "replicas-b": 120}}, "warning"),
        ({"count": 240, "answered": 0, "servers": {"<NOSRV>": 240}}, "note"),
        ({"count": 1, "answered": 1, "servers": {"replicas-a": 1}}, None),
    ],
)
def test_metrics_that_are_read_through_the_proxy(scrape: dict[str, Any], expected: str | None) -> None:
    told = running(REPLICAS, {"a": 50, "b": 50})
    told["traffic"]["metrics"] = {"192.0.2.9": {"first": NOW - 3600, "last": NOW, **scrape}}
    findings = found(scene(), {"a": told})
    assert [(f.code, f.severity.value, f.where) for f in findings] == (
        [("X09", expected, "192.0.2.9")] if expected else []
    )
    if findings:
        assert "http://10.0.0.1:8000/metrics, http://10.0.0.2:8000/metrics" in findings[0].fix


FLOATING = layout("replicas", proxy=TWO_PROXIES)


@pytest.mark.parametrize(
    ("prefix", "vrrp", "expected"),
    [
        (24, None, []),
        (27, None, [("X10", "error", "b", "proxy: floating")]),  # 10.0.0.50 is beyond 10.0.0.0/27
        (24, {"router_ids": [7], "addresses": ["10.0.0.60"]}, []),
        (24, {"router_ids": [51]}, [("X11", "error", "b", "keepalived.service")]),
        (24, {"router_ids": [7], "addresses": ["10.0.0.50"]}, [("X11", "error", "b", "keepalived.service")]),
    ],
)
def test_the_floating_address(prefix: int, vrrp: dict[str, Any] | None, expected: list[Any]) -> None:
    told = {"b": {"networks": [{"interface": "eth0", "address": "10.0.0.2", "prefix": prefix}]}}
    of = scene(FLOATING, facts={"b": {"vrrp": vrrp}}, file={"proxy": TWO_PROXIES})
    assert codes(found(of, told)) == expected
