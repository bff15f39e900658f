"""What Prometheus and Grafana need to know of a fleet: where to scrape, when to alert, what to draw. Pure."""

from __future__ import annotations

import json

from fleetctl.render.layout import render_layout
from fleetctl.render.release import Engine
from fleetctl.render.template import fill
from fleetctl.resources import root_text
from fleetctl.spec.fleet import Fleet

PROMETHEUS, RULES, DASHBOARD = "fleetctl-prometheus.yml", "fleetctl-rules.yml", "fleetctl-dashboard.json"


def files(fleet: Fleet, exporter: str) -> dict[str, str]:
    """Name → text of the three files; ``exporter`` is the HOST:PORT at which Prometheus finds the exporter.

    Raises SpecError or RefusedError for a layout that cannot be rendered.
    """
    engines = [engine for layout in fleet.layouts for engine in render_layout(fleet, layout).engines]
    return {
        PROMETHEUS: _scrape(fleet, engines, exporter),
        RULES: root_text("prometheus", "rules.yml"),
        DASHBOARD: _dashboard(fleet, engines),
    }


def _scrape(fleet: Fleet, engines: list[Engine], exporter: str) -> str:
    """Engines of several layouts that have the same address are one target, or each would be scraped twice."""
    places: dict[str, list[Engine]] = {}
    for engine in engines:
        places.setdefault(engine.url.removeprefix("http://"), []).append(engine)
    targets = []
    for place, here in places.items():
        models = dict.fromkeys(engine.model for engine in here)
        targets.append(
            {
                "target": json.dumps(place),
                "box": json.dumps(here[0].head.box),
                "name": json.dumps(f"{'+'.join(models)}@{here[0].head.box}"),
                "copies": [engine.id for engine in here],
            }
        )
    return fill(
        "prometheus",
        "scrape.yml.j2",
        fleet=fleet.fleet,
        fleet_label=json.dumps(fleet.fleet),
        exporter=json.dumps(exporter),
        engines=targets,
        firewall=fleet.firewall is not None,
    )


def _dashboard(fleet: Fleet, engines: list[Engine]) -> str:
    """The dashboard with this fleet, and a row for each of its copies, chosen."""
    dashboard = json.loads(root_text("prometheus", "dashboard.json"))
    dashboard["uid"] = f"fleetctl-{fleet.fleet}"[:40]
    dashboard["title"] = f"fleetctl {fleet.fleet}"
    choices = {"fleet": [fleet.fleet], "copy": [engine.id for engine in engines]}
    for variable in dashboard["templating"]["list"]:
        if variable["name"] in choices:
            values = choices[variable["name"]]
            variable.update(type="custom", query=",".join(values))
            variable.pop("datasource", None)
            variable.pop("refresh", None)
            variable["options"] = [{"text": value, "value": value, "selected": False} for value in values]
            chosen = ("All", "$__all") if variable.get("multi") else (values[0], values[0])
            variable["current"] = dict(zip(("text", "value"), chosen, strict=True))
    return json.dumps(dashboard, indent=1, ensure_ascii=False) + "\n"
