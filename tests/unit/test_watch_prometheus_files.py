"""Scrape configuration, alert rules and dashboard, checked by Prometheus' own tool."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from planned import office
from promtool import check
from test_cli import EXAMPLE, fleetctl

from fleetctl.resources import root_folder
from fleetctl.watch.metrics import LAYOUT, METRICS
from fleetctl.watch.prometheus_files import DASHBOARD, PROMETHEUS, RULES, files

KNOWN = {f"{metric.name}_total" if metric.counter else metric.name for metric in METRICS} | {f"{LAYOUT[0]}_info"}
COPY = 'fleet="office",layout="replicas",model="qwen",copy="replicas/qwen@{0}",box="{0}"'
MODEL, BOX, FLEET = 'fleet="office",model="qwen"', 'fleet="office",box="{0}"', 'fleet="office"'

SMALL, WORKER = 'fleet="office",model="minilm"', 'fleet="office",box="{0}",program="worker"'
POOLED = 'fleet="office",layout="pool",model="minilm",copy="pool/minilm@a",box="a"'


@pytest.fixture
def written(tmp_path: Path) -> Path:
    for name, text in files(office(), "127.0.0.1:9790").items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_prometheus_accepts_the_configuration_and_the_rules(written: Path) -> None:
    assert "SUCCESS" in check(["check", "config", PROMETHEUS], cwd=written)
    assert "SUCCESS" in check(["check", "rules", RULES], cwd=written)


def test_the_configuration_names_every_copy_once_by_its_own_address(written: Path) -> None:
    """Engines of two layouts at one address would otherwise be scraped twice, under two names."""
    text = (written / PROMETHEUS).read_text()
    jobs = {job["job_name"]: job["static_configs"] for job in yaml.safe_load(text)["scrape_configs"]}
    assert jobs["fleetctl"] == [{"targets": ["127.0.0.1:9790"]}]
    assert jobs["fleetctl_engines"] == [
        {"targets": ["10.0.0.1:8000"], "labels": {"fleet": "office", "box": "a", "copy": "qwen@a"}},
        {"targets": ["10.0.0.2:8000"], "labels": {"fleet": "office", "box": "b", "copy": "qwen@b"}},
    ]
    assert "# split/qwen, replicas/qwen@a" in text
    assert ":8080" not in text


def test_the_example_fleet_gets_all_three_files(tmp_path: Path) -> None:
    done = fleetctl("exporter", "-f", str(EXAMPLE), "--write", str(tmp_path / "new"), "--json")
    assert done.returncode == 0, done.stderr
    assert {Path(json.loads(line)["written"]).name for line in done.stdout.splitlines()} == {
        PROMETHEUS,
        RULES,
        DASHBOARD,
    }
    check(["check", "config", PROMETHEUS], cwd=tmp_path / "new")


@pytest.mark.parametrize("words", [["--listen", "nowhere"], ["--write", "/proc/nowhere"]])
def test_bad_options_are_told(words: list[str]) -> None:
    done = fleetctl("exporter", "-f", str(EXAMPLE), *words)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


def expressions(value: Any) -> Iterator[str]:
    """Every PromQL expression in a document."""
    if isinstance(value, dict):
        yield from (text for key, text in value.items() if key == "expr")
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from expressions(one)


def test_the_dashboard_names_the_fleet_and_every_copy(written: Path) -> None:
    dashboard = json.loads((written / DASHBOARD).read_text())
    choices = {one["name"]: one for one in dashboard["templating"]["list"]}
    assert [option["value"] for option in choices["copy"]["options"]] == [
        "split/qwen",
        "replicas/qwen@a",
        "replicas/qwen@b",
    ]
    assert choices["fleet"]["current"]["value"] == "office"
    assert any(panel.get("repeat") == "copy" for panel in dashboard["panels"])
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_the_dashboard_asks_for_metrics_that_there_are_in_words_that_prometheus_knows(
    written: Path, tmp_path: Path
) -> None:
    asked = list(expressions(json.loads((written / DASHBOARD).read_text())))
    assert len(asked) > 20
    filled = [
        text.replace("$__rate_interval", "1m").replace("$fleet", "office").replace("$copy", "c") for text in asked
    ]
    rules = [{"record": f"panel{number}", "expr": text} for number, text in enumerate(filled)]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    check(["check", "rules", "panels.yml"], cwd=tmp_path)
    rules_text = (written / RULES).read_text()
    used = set(re.findall(r"\bfleetctl_\w+", " ".join([*asked, *expressions(yaml.safe_load(rules_text))])))
    assert used <= KNOWN


def test_the_documentation_has_every_metric_and_none_that_is_not_there() -> None:
    told = (Path(__file__).parents[2] / "docs/watch.md").read_text()
    assert set(re.findall(r"\bfleetctl_\w+", told)) == KNOWN


# What happens to a fleet, minute by minute → the alerts that fire, and no others.
HEALTHY = {
    "fleetctl_copy_up": {COPY.format("a"): "1x60", COPY.format("b"): "1x60"},
    "fleetctl_copy_in_rotation": {COPY.format("a"): "1x60", COPY.format("b"): "1x60"},
    "fleetctl_copy_unit_loading": {COPY.format("a"): "0x60", COPY.format("b"): "0x60"},
    "fleetctl_copy_requests_running": {COPY.format("a"): "2x60", COPY.format("b"): "2x60"},
    "fleetctl_copy_requests_waiting": {COPY.format("a"): "0x60", COPY.format("b"): "0x60"},
    "fleetctl_copy_generation_tokens_total": {COPY.format("a"): "0+60x60", COPY.format("b"): "7+60x60"},
    "fleetctl_copy_prompt_tokens_total": {COPY.format("a"): "0+60x60", COPY.format("b"): "0+60x60"},
    "fleetctl_copy_requests_total": {COPY.format("a"): "0+6x60", COPY.format("b"): "0+6x60"},
    "fleetctl_copy_restarts_total": {COPY.format("a"): "0x60", COPY.format("b"): "0x60"},
    "fleetctl_copy_cache_usage_ratio": {COPY.format("a"): "0.5x60", COPY.format("b"): "0.5x60"},
    "fleetctl_box_up": {BOX.format("a"): "1x60", BOX.format("b"): "1x60"},
    "fleetctl_box_drained": {BOX.format("a"): "0x60", BOX.format("b"): "0x60"},
    "fleetctl_box_memory_available_bytes": {BOX.format("a"): "20e9x60", BOX.format("b"): "20e9x60"},
    "fleetctl_box_memory_low_bytes": {BOX.format("a"): "4e9x60", BOX.format("b"): "4e9x60"},
    "fleetctl_box_memory_pressure_ratio": {BOX.format("a"): "0.01x60", BOX.format("b"): "0x60"},
    "fleetctl_proxy_up": {FLEET: "1x60"},
    "fleetctl_proxy_requests_waiting": {FLEET: "0x60"},
    "up": {'job="fleetctl",instance="x"': "1x60"},
    "fleetctl_pool_requests_stored": {SMALL: "10x60"},
    "fleetctl_pool_requests_limit": {FLEET: "1000x60"},
    "fleetctl_pool_oldest_waiting_seconds": {SMALL: "1x60"},
    "fleetctl_pool_dead_letters": {SMALL: "2x60"},
    "fleetctl_pool_program_active": {WORKER.format("a"): "1x60", WORKER.format("b"): "1x60"},
    "fleetctl_pool_program_connected": {WORKER.format("a"): "1x60", WORKER.format("b"): "1x60"},
    "fleetctl_pool_engine_failed": {POOLED: "0x60"},
}
ONE, TWO = COPY.format("a"), COPY.format("b")
GONE = "_x60"


@pytest.mark.parametrize(
    ("what", "changed", "alerts"),
    [
        ("all is well", {}, set()),
        ("the exporter is down", {"up": {'job="fleetctl",instance="x"': "0x60"}}, {"FleetctlExporterDown"}),
        (
            "a box is away: its copy is not told a second time",
            {
                "fleetctl_box_up": {BOX.format("b"): "0x60"},
                "fleetctl_copy_up": {TWO: "0x60"},
                "fleetctl_copy_generation_tokens_total": {TWO: GONE},
                "fleetctl_copy_unit_loading": {COPY.format("a"): "0x60", COPY.format("b"): "0x60"},
    "fleetctl_copy_requests_running": {TWO: GONE},
            },
            {"FleetctlBoxAway"},
        ),
        ("an engine cannot be read", {"fleetctl_copy_up": {TWO: "0x60"}}, {"FleetctlCopyUnknown"}),
        (
            "a copy is out of the rotation and nobody drained its box",
            {"fleetctl_copy_in_rotation": {TWO: "0x60"}},
            {"FleetctlCopyOutOfRotation"},
        ),
        (
            "a drained box",
            {
                "fleetctl_copy_in_rotation": {TWO: "0x60"},
                "fleetctl_box_drained": {BOX.format("b"): "1x60"},
                "fleetctl_copy_requests_total": {TWO: "5x60"},
            },
            set(),
        ),
        (
            "no copy takes requests",
            {"fleetctl_copy_in_rotation": {ONE: "0x60", TWO: "0x60"}},
            {"FleetctlNoCopyInRotation", "FleetctlCopyOutOfRotation"},
        ),
        (
            "Running: 0 reqs, Waiting: 3 reqs, both throughputs 0.0",
            {
                "fleetctl_copy_unit_loading": {COPY.format("a"): "0x60", COPY.format("b"): "0x60"},
    "fleetctl_copy_requests_running": {TWO: "0x60"},
                "fleetctl_copy_requests_waiting": {TWO: "3x60"},
                "fleetctl_copy_generation_tokens_total": {TWO: "500x60"},
                "fleetctl_copy_prompt_tokens_total": {TWO: "500x60"},
            },
            {"FleetctlCopyStandsStill"},
        ),
        (
            "a prompt of 200,000 tokens is read: only the cache fills",
            {
                "fleetctl_copy_generation_tokens_total": {TWO: "500x60"},
                "fleetctl_copy_prompt_tokens_total": {TWO: "500x60"},
                "fleetctl_copy_cache_usage_ratio": {TWO: "0+0.01x60"},
            },
            set(),
        ),
        ("nothing to do is no standstill", {
            "fleetctl_copy_unit_loading": {COPY.format("a"): "0x60", COPY.format("b"): "0x60"},
    "fleetctl_copy_requests_running": {ONE: "0x60", TWO: "0x60"},
            "fleetctl_copy_generation_tokens_total": {ONE: "5x60", TWO: "5x60"},
            "fleetctl_copy_prompt_tokens_total": {ONE: "5x60", TWO: "5x60"},
            "fleetctl_copy_requests_total": {ONE: "5x60", TWO: "5x60"},
        }, set()),
        ("restarted again and again", {"fleetctl_copy_restarts_total": {TWO: "0+0.1x60"}}, {"FleetctlCopyRestarts"}),
        ("restarted once", {"fleetctl_copy_restarts_total": {TWO: "0x30 1x30"}}, set()),
        (
            "a batch job has one copy's address: it has a queue, and the other sits idle",
            {
                "fleetctl_copy_requests_total": {TWO: "9x60"},
                "fleetctl_copy_requests_running": {TWO: "0x60"},
                "fleetctl_copy_requests_waiting": {ONE: "5x60"},
            },
            {"FleetctlCopyIdle"},
        ),
        (
            "all conversations belong to one copy, which has room for them",
            {"fleetctl_copy_requests_total": {TWO: "9x60"}, "fleetctl_copy_requests_running": {TWO: "0x60"}},
            set(),
        ),
        (
            "an engine that loads cannot be read",
            {
                "fleetctl_copy_up": {TWO: "1x35 0x25"},
                "fleetctl_copy_unit_loading": {TWO: "0x35 1x25"},
                "fleetctl_copy_in_rotation": {TWO: "1x45 0x15"},
            },
            set(),
        ),
        (
            "an engine that loads for ever",
            {"fleetctl_copy_up": {TWO: "0x60"}, "fleetctl_copy_unit_loading": {TWO: "1x60"}},
            {"FleetctlCopyLoadsLong"},
        ),
        (
            "memory runs short",
            {
                "fleetctl_box_memory_available_bytes": {BOX.format("a"): "5e9x60"},
                "fleetctl_box_memory_pressure_ratio": {BOX.format("a"): "0.5x60"},
            },
            {"FleetctlMemoryShort", "FleetctlMemoryPressure"},
        ),
        (
            "a queue at the proxy that stays",
            {"fleetctl_proxy_requests_waiting": {FLEET: "4x60"}},
            {"FleetctlQueueAtProxy"},
        ),
        ("a queue that comes and goes", {"fleetctl_proxy_requests_waiting": {FLEET: "0 4 0 5 0 6 0x54"}}, set()),
        ("no proxy", {"fleetctl_proxy_up": {FLEET: "0x60"}}, {"FleetctlProxyDown"}),
        ("a queue that fills up", {"fleetctl_pool_requests_stored": {SMALL: "900x60"}}, {"FleetctlPoolQueueNearLimit"}),
        (
            "a model that nobody loads",
            {
                "fleetctl_pool_oldest_waiting_seconds": {SMALL: "0+60x60"},
                "fleetctl_pool_engine_failed": {POOLED: "1x60"},
            },
            {"FleetctlPoolRequestsWaitLong", "FleetctlPoolModelDoesNotLoad"},
        ),
        ("a request is given up", {"fleetctl_pool_dead_letters": {SMALL: "2x50 3x10"}}, {"FleetctlPoolDeadLetters"}),
        ("old dead letters expire", {"fleetctl_pool_dead_letters": {SMALL: "2x50 0x10"}}, set()),
        (
            "a worker is away, and another has lost the queue",
            {
                "fleetctl_pool_program_active": {WORKER.format("a"): "0x60"},
                "fleetctl_pool_program_connected": {WORKER.format("b"): "0x60"},
            },
            {"FleetctlPoolProgramDown"},
        ),
    ],
)  # fmt: skip
def test_alerts(what: str, changed: dict[str, dict[str, str]], alerts: set[str], tmp_path: Path) -> None:
    metrics = {name: {**rows, **changed.get(name, {})} for name, rows in HEALTHY.items()}
    rules = root_folder("prometheus") / "rules.yml"
    names = [rule["alert"] for group in yaml.safe_load(rules.read_text())["groups"] for rule in group["rules"]]
    series = [
        {"series": f"{name}{{{labels}}}", "values": values}
        for name, rows in metrics.items()
        for labels, values in rows.items()
    ]
    # promtool compares alerts whole; ALERTS, the series that Prometheus makes of them, says which fire.
    fire = [
        {
            "expr": f'clamp_max(count(ALERTS{{alertname="{name}",alertstate="firing"}}), 1) or vector(0)',
            "eval_time": "55m",
            "exp_samples": [{"value": 1 if name in alerts else 0}],
        }
        for name in names
    ]
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [{"name": what, "interval": "1m", "input_series": series, "promql_expr_test": fire}],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(document))
    check(["test", "rules", "test.yml"], cwd=tmp_path)
