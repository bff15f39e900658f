"""Doctor's family *processes*, as tables over what boxes told, and what the boxes read to tell it."""

from __future__ import annotations

from typing import Any

import pytest
from examined import changed, scene
from planned import COPY, PROXY, SPLIT, layout, unit

from fleetctl.doctor.finding import Ending, Finding, Severity
from fleetctl.doctor.processes import ProcessesTold, ask, find
from fleetctl.doctor.scene import Scene
from fleetctl.facts.types import ProcessFacts
from fleetctl.onbox.examine_processes import looks_like_engine
from fleetctl.plan.difference import engine_name

MIB = 1024**2
GONE = "split/qwen@0123456789ab"
RELEASE = layout("replicas")
RIGHT = engine_name(*RELEASE.ranks_on("b")[0], "replicas")
UNIT_GROUP = f"/system.slice/{COPY}"


def process(**more: Any) -> dict[str, Any]:
    given = {"pid": 4711, "comm": "VLLM::EngineCor", "program": "VLLM::EngineCore", "parent": 1, "started": 99}
    return {**given, "parent_comm": "systemd", "resident": 512 * MIB, **more}


def found(seen: Scene, *processes: dict[str, Any], ports: dict[int, list[int]] | None = None) -> list[Finding]:
    """What is found where box b has these processes; facts know those that carry FLEETCTL_ENGINE too."""
    known = tuple(
        ProcessFacts(pid=one["pid"], comm=one["comm"], unit=one.get("unit"), engine=one["engine"])
        for one in processes
        if one.get("engine")
    )
    told = ProcessesTold.model_validate({"processes": processes, "ports": ports or {}})
    return list(find(changed(seen, "b", processes=known), {"a": ProcessesTold(), "b": told}))


WORKERS = [
    process(engine=GONE, unit=SPLIT, gpu=104277 * MIB),
    process(engine=GONE, unit=SPLIT, pid=4712, comm="VLLM::Worker_TP", program="VLLM::Worker_TP0"),
]


def test_a_killed_api_server_leaves_enginecore_behind_reparented_and_holding_memory() -> None:
    (finding,) = found(
        changed(scene(), "b", units={SPLIT: unit("inactive", "disabled")}), *WORKERS, ports={8000: [4711]}
    )
    assert (finding.code, finding.severity, finding.where) == ("P01", Severity.ERROR, GONE)
    assert "2 processes" in finding.says and "102.8 GiB and port 8000 held" in finding.says
    assert "pid 4711 VLLM::EngineCor" in finding.evidence[0] and "101.8 GiB on GPUs" in finding.evidence[0]
    assert finding.remedy is not None
    assert finding.remedy.ends == (Ending(4711, 99, GONE), Ending(4712, 99, GONE))
    assert (finding.remedy.does(), finding.remedy.takes_back()) == (["kill 4711", "kill 4712"], [])


@pytest.mark.parametrize(
    ("state", "more", "code", "mends"),
    [
        # The unit is gone altogether, or failed.
        (None, {}, "P01", True),
        (unit("failed", "disabled"), {}, "P01", True),
        # A person has it in a session: fleetctl does not end it.
        (
            unit("inactive"),
            {"unit": "session-3.scope", "group": "/user.slice/user-0.slice/session-3.scope"},
            "P01",
            False,
        ),
        # The unit runs, and the process is in it: the unit is what should not run.
        (unit("active"), {"unit": SPLIT}, None, False),
        # The unit runs, and this one was left from before.
        (unit("active"), {"unit": "x.scope"}, "P01", False),
    ],
)
def test_what_is_left_over_is_ended_only_where_its_unit_is_down_and_nobody_has_it_in_a_session(
    state: Any, more: dict[str, Any], code: str | None, mends: bool
) -> None:
    seen = scene() if state is None else changed(scene(), "b", units={SPLIT: state})
    findings = found(seen, process(engine=GONE, **more))
    assert [f.code for f in findings] == ([code] if code else [])
    assert all((f.remedy is not None) == mends for f in findings)


@pytest.mark.parametrize(
    ("more", "codes"),
    [
        ({"engine": RIGHT, "unit": COPY, "group": UNIT_GROUP}, []),
        ({"engine": RIGHT, "unit": "session-3.scope"}, ["P02"]),
        ({"engine": RIGHT, "unit": f"docker-{'a' * 64}.scope"}, ["P02"]),
        # Without FLEETCTL_ENGINE: somebody started it by hand, or it is in a service, which is another finding.
        ({"unit": "session-3.scope", "group": "/user.slice/user-0.slice/session-3.scope"}, ["P03"]),
        ({"unit": None}, ["P03"]),
        ({"unit": "other-vllm.service", "group": "/system.slice/other-vllm.service"}, []),
        (
            {"unit": "vllm.service", "group": "/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service"},
            ["P03"],
        ),
    ],
)
def test_an_engine_belongs_into_the_control_group_of_its_unit(more: dict[str, Any], codes: list[str]) -> None:
    findings = found(scene(), process(**more))
    assert [f.code for f in findings] == codes
    assert all(f.remedy is None for f in findings)


def test_workers_that_nobody_owns_any_more_are_said_to_be_left_over() -> None:
    (finding,) = found(scene(), process(group="/x"))
    assert "left over from an API server that is gone" in finding.says


def test_the_container_of_an_engine_has_a_control_group_of_its_own() -> None:
    changes = {"models__qwen__launch": {"engine": "docker", "image": "vllm/vllm-openai:v0.11.0"}}
    seen = scene(changes=changes)
    right = engine_name(*seen.live.ranks_on("b")[0], "replicas")
    assert found(seen, process(engine=right, unit=f"docker-{'a' * 64}.scope")) == []


def owner(unit_name: str | None, pid: int = 77, engine: str | None = None) -> ProcessFacts:
    return ProcessFacts(pid=pid, comm="python3", unit=unit_name, engine=engine)


@pytest.mark.parametrize(
    ("port", "who", "fix"),
    [
        (8000, owner("other.service"), "systemctl disable --now other.service"),
        (8000, owner("session-3.scope"), "ss -ltnp 'sport = :8000'"),
        (8000, owner(None, pid=0), "ss -ltnp 'sport = :8000'"),
        (8000, owner(COPY, engine=RIGHT), None),
        (8000, owner(SPLIT, engine=GONE), None),  # left over: another finding
        (8000, owner("old-vllm.service"), None),  # replaced and back: another finding
        (9999, owner("other.service"), None),
    ],
)
def test_a_port_of_ours_that_somebody_else_has(port: int, who: ProcessFacts, fix: str | None) -> None:
    seen = changed(scene(changes={"superseded": ["old-vllm.service"]}), "b", ports={port: who})
    findings = found(seen)
    assert [(f.code, f.where) for f in findings] == ([] if fix is None else [("P04", "port 8000")])
    assert all(fix is not None and fix in f.fix and f.remedy is None for f in findings)


def test_the_port_of_the_proxy_counts_on_its_box_alone() -> None:
    assert (ask(scene(), "a"), ask(scene(), "b")) == ({"ports": [8000, 8080]}, {"ports": [8000]})
    nginx = {8080: owner("nginx.service")}
    for box, codes in (("a", ["P04"]), ("b", [])):
        seen = changed(scene(), box, ports=nginx)
        assert [f.code for f in find(seen, {"a": ProcessesTold(), "b": ProcessesTold()})] == codes
    seen = changed(scene(), "a", ports={8080: owner(PROXY)})
    assert list(find(seen, {"a": ProcessesTold()})) == []


@pytest.mark.parametrize(
    ("command", "is_one"),
    [
        ("/opt/vllm/bin/python3 /opt/vllm/bin/vllm serve /models/qwen", True),
        ("/opt/vllm/bin/vllm serve m", True),
        ("python3.12 -m vllm.entrypoints.openai.api_server", True),
        ("python3 -m sglang.launch_server --model m", True),
        ("VLLM::EngineCore", True),
        ("/usr/bin/llama-server -m x.gguf", True),
        ("vim vllm.md", False),
        ("tail -f /var/log/vllm serve", False),
        ("/opt/vllm/bin/vllm bench serve", False),
        ("python3 -m http.server", False),
        ("", False),
    ],
)
def test_an_engine_is_told_by_its_command_and_not_by_a_word_in_it(command: str, is_one: bool) -> None:
    assert looks_like_engine(command.split()) == is_one


def test_memory_on_gpus_is_summed_over_them_and_what_is_not_available_is_not_zero() -> None:
    said = "4711, VLLM::Worker, 10000\n4711, VLLM::Worker, 10000 MiB\n4712, VLLM::Worker, [N/A]\n"
    said += "[Insufficient Permissions], x, 5\n"
    processes = [{"pid": pid, "comm": "VLLM::Worker"} for pid in (4711, 4712, 4713)]
    told = ProcessesTold.model_validate({"processes": processes, "apps": {"rc": 0, "out": said}})
    assert [one.gpu for one in told.with_gpus()] == [20000 * MIB, None, 0]
    for apps in (None, {"rc": 9, "err": "no driver"}, {"rc": None}):
        told = ProcessesTold.model_validate({"processes": processes, "apps": apps})
        assert [one.gpu for one in told.with_gpus()] == [None] * 3
