"""An engine that is started once to be measured: what is planned, what is refused, and the unit that runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from planned import COPY, boxes_in, layout, office, playbook, unit

from fleetctl.engine.runtimes.flags import flag_values
from fleetctl.engine.runtimes.vllm import ALIASES, VLLM
from fleetctl.errors import FleetError, RefusedError, SpecError
from fleetctl.facts.types import MoveFacts
from fleetctl.onbox.trial import charged
from fleetctl.plan.types import Plan
from fleetctl.remote.boxes import Boxes
from fleetctl.render.engine import Place
from fleetctl.render.release import Release
from fleetctl.render.trial import LOOPBACK, render_trial, trial_arguments
from fleetctl.run.measures import measures
from fleetctl.run.planning import Look, Subject
from fleetctl.run.trial import measured_by, plan_trial

GIB = 1024**3
TEXT = """\
fleet: office
boxes:
  a: {address: 10.0.0.1, memory: 128GiB, reserve: 32GiB}
  b: {address: 10.0.0.2, memory: 128GiB, reserve: 16GiB}
models:
  qwen:   # ours
    weights: org/qwen
    context: 262144
    launch: {venv: /opt/vllm}
layouts: {replicas: {qwen: {copies: [a, b]}}}
proxy: {box: a}
"""
HUB = {"models__qwen__weights": "org/qwen"}  # so that no box is asked for the files
SUBJECT = Subject(office(**HUB), TEXT, Boxes({}))
REPLICAS, SPLIT = layout("replicas", **HUB), layout("split", **HUB)
ONE = layout("replicas", **HUB, layouts__replicas={"qwen": {"copies": ["b"]}})
NOTE = {"since": 0.0, "by": "ann@desk"}


def made(release: Release = REPLICAS, box: str = "b", model: str | None = None, **more: Any) -> Plan:
    options = {"share": more.pop("share", 0.4), "hold": more.pop("hold", False)}
    look = Look({}, boxes_in(release, 1, **more))
    return plan_trial(SUBJECT, look, playbook("calibrate"), box, model, **options)


def kinds(plan: Plan) -> list[str]:
    return [step.kind for step in plan.steps]


def test_the_copy_leaves_the_proxy_is_stopped_measured_and_comes_back_as_it_was() -> None:
    plan = made()
    back = ["start_engine", "await_ready", "gate", "open"]
    assert kinds(plan) == ["preflight", "preflight", "hold", "drain", "stop_engine", "await_free", "trial", *back]
    assert (plan.operation, plan.generation, plan.diffs) == ("calibrate", 1, ())
    assert (plan.gap.expected, plan.gap.why) == (0.0, "another copy serves meanwhile")
    hold, trial = plan.steps[2], plan.steps[6]
    assert hold.summary == "new requests go to the other copies: drain qwen/replicas-b"
    assert trial.summary == (
        "replicas/qwen@b starts once outside of the proxy (share 0.4, 51.2 GiB), is measured and stopped"
    )
    assert trial.params["need"] == int(0.87 * 128 * GIB)  # what the engine itself asks for when it comes back


def test_a_box_that_is_drained_stays_drained() -> None:
    proxy = boxes_in(REPLICAS)["a"].proxy
    assert proxy is not None
    servers = {**proxy.servers, "qwen/replicas-b": {"status": "DRAIN"}}
    plan = made(a={"proxy": {"description": proxy.description, "servers": servers}}, b={"drained": NOTE})
    assert not {"hold", "open", "forget_drained"} & set(kinds(plan))
    assert kinds(plan)[-4:] == ["trial", "start_engine", "await_ready", "gate"]


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ({"release": SPLIT}, RefusedError, "one engine over a, b: it cannot be started on b alone"),
        ({"release": ONE}, RefusedError, "no engine serves qwen"),
        ({"release": ONE}, RefusedError, "--hold"),
        ({"release": ONE}, RefusedError, "calibrate b --running"),
        ({"share": 0.9}, SpecError, "has 0.87, and more would eat into the reserve of b"),
        ({"box": "bb"}, SpecError, "did you mean b?"),
        ({"model": "other"}, RefusedError, "no engine of other"),
        ({"b": {"units": {COPY: unit("failed")}}}, RefusedError, "fleetctl restart b"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_way_out(
    how: dict[str, Any], error: type[FleetError], says: str
) -> None:
    with pytest.raises(error) as refused:
        made(**how)
    assert says in str(refused.value)


def test_with_hold_the_only_copy_is_measured_too_and_the_plan_says_who_waits() -> None:
    plan = made(ONE, hold=True)
    assert (plan.gap.expected, plan.gap.why) == (
        None,
        "as long as two starts take: requests for qwen wait in the proxy",
    )


def test_without_a_share_the_engine_gets_what_it_has_where_nothing_is_known_of_it() -> None:
    plan = made(share=None)
    assert plan.steps[6].params["trial"]["share"] == 0.87
    assert any("--share names another" in warning for warning in plan.warnings)


def test_the_trial_listens_where_no_proxy_asks_and_lets_the_engine_measure() -> None:
    words = ["serve", "/m", "--host", "10.0.0.2", "--port", "8000", "--kv-cache-memory-bytes", "5", "--seed", "7"]
    assert trial_arguments([*words, "--middleware", "a", "--middleware", "b"], VLLM) == [
        *["serve", "/m", "--port", "8000", "--seed", "7", "--middleware", "a", "--middleware", "b"],
        *["--host", LOOPBACK],
    ]
    usual = next(file for file in REPLICAS.files["b"] if file.path.endswith("/fleetctl-replicas-qwen.service"))
    trial = render_trial(office(**HUB), Place("replicas", "qwen", "b", 0, ("b",), 8000, 0.4))
    before, after = (_flags(text) for text in (usual.content, trial.content))
    assert {key: (before.get(key), after.get(key)) for key in before | after if before.get(key) != after.get(key)} == {
        "--host": ("10.0.0.2", LOOPBACK),
        "--gpu-memory-utilization": ("0.87", "0.4"),
    }
    # It gives way to the engine itself, ends by itself, and is not there after a reboot.
    assert "Conflicts=fleetctl-replicas-qwen.service\n" in trial.content
    assert "Restart=no" in trial.content and "RuntimeMaxSec=630" in trial.content and "[Install]" not in trial.content


def _flags(unit: str) -> dict[str, str]:
    line = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    return flag_values(line.split()[3:], ALIASES)


def test_figures_come_from_the_log_of_the_trial_and_what_it_took_of_the_box() -> None:
    plan = made()
    lines = ["Model loading took 21.00 GiB memory and 1 seconds", "Available KV cache memory: 26.20 GiB"]
    seen = {"before": 110 * GIB, "least": 40 * GIB, "ready": 60 * GIB, "group": None, "seconds": 3, "lines": lines}
    results = {next(step.id for step in plan.steps if step.kind == "trial"): {"trial": seen}}
    found = measured_by(plan, measures(plan, results))
    # A share of 0.4 of 128 GiB are 51.2 GiB.
    assert (found.figures["weights"], found.figures["overhead"]) == ("21504MiB", "4096MiB")
    assert found.measured.startup == 70 * GIB
    assert found.lines[-1] == "  while it started it took up to 70.0 GiB of the box"


def test_one_that_was_cut_off_is_only_taken_back() -> None:
    move = MoveFacts(move="m", end=None, operation="calibrate", from_layout="r", to_layout="r", who="ann", started=0.0)
    assert move.finish == move.undo == "fleetctl rollback"
    assert move.ways == "`fleetctl rollback` brings the engine back as it was"


@pytest.mark.parametrize(
    ("files", "most"),
    [({"memory.peak": "70\n", "memory.current": "5\n"}, 70), ({"memory.current": "5\n"}, 5), ({}, None)],
)
def test_the_most_that_the_kernel_charged_is_read_where_it_says(
    tmp_path: Path, files: dict[str, str], most: int | None
) -> None:
    own = Path("/proc/self/cgroup").read_text().splitlines()
    path = next((row.split(":", 2)[2] for row in own if row.startswith("0::")), None)
    if path is None:
        pytest.skip("no control groups of version 2 here")
    folder = tmp_path / path.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    assert charged(os.getpid(), str(tmp_path)) == most
    assert charged(0) is None
