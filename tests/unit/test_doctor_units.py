"""Doctor's family *units*, as tables over what boxes told: what is found, of what, and what would mend it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from examined import NOW, changed, scene, under_way
from planned import BEFORE, COPY, PROXY, SPLIT, boxes_in, layout, unit

from fleetctl.doctor.finding import Finding, Severity
from fleetctl.doctor.processes import PROCESSES, ProcessesTold
from fleetctl.doctor.scene import Scene
from fleetctl.doctor.units.family import ask, find
from fleetctl.doctor.units.told import Act, Detail, Foreign, Log, UnitsTold
from fleetctl.errors import BoxError
from fleetctl.facts.types import ProcessFacts
from fleetctl.plan.difference import engine_name

OLD = "old-vllm.service"
DOWN = {"active": "inactive", "enabled": "disabled"}
SUPERSEDES = {"superseded": [OLD]}
TYPE = Detail(type="exec", burst=4, interval="1h 3min 20s", log=Log())


def found(seen: Scene, **told: Any) -> list[Finding]:
    """What is found where box b told this of its units, and box a that all is well."""
    return list(find(seen, {"a": UnitsTold(), "b": UnitsTold.model_validate(told)}))


def codes(findings: list[Finding]) -> list[tuple[str, str | None, str]]:
    return [(one.code, one.box, one.where) for one in findings]


def done(finding: Finding) -> tuple[list[str], list[str]]:
    assert finding.remedy is not None, finding
    return finding.remedy.does(), finding.remedy.takes_back()


def copy_on_b(**state: Any) -> dict[str, Any]:
    """The copy's unit on b, running its build, with some of its state changed."""
    release = layout("replicas")
    engine, rank = release.ranks_on("b")[0]
    active, enabled = state.pop("active", "active"), state.pop("enabled", "enabled")
    sub = state.pop("sub", None)
    seen = unit(active, enabled, engine=state.pop("engine", engine_name(engine, rank, "replicas")), **state)
    return {COPY: seen if sub is None else seen.model_copy(update={"sub": sub})}


@pytest.mark.parametrize("name", ["split", "replicas"])
def test_a_healthy_fleet_has_none(name: str) -> None:
    assert found(scene(name), units={COPY: TYPE, SPLIT: TYPE}) == []


def test_before_the_first_layout_engines_and_their_watchdogs_are_nobodys_business() -> None:
    seen = replace(scene(), live=BEFORE, observed=boxes_in(BEFORE, None))
    theirs = [watchdog(act("pkill", "engines")), watchdog(engine="vllm serve m", name="vllm.service")]
    assert found(seen, foreign=[one.model_dump() for one in theirs]) == []


STATES: list[tuple[str, dict[str, Any], list[tuple[str, str]], list[str], list[str]]] = [
    (
        "three units that exclude each other are all enabled: which is up after boot is chance",
        {"units": {SPLIT: unit("inactive")}},
        [("U01", SPLIT)],
        [f"systemctl disable {SPLIT}"],
        [f"systemctl enable {SPLIT}"],
    ),
    (
        "an engine of another layout is enabled, and the layout's own is not",
        {"units": {SPLIT: unit("inactive"), **copy_on_b(enabled="disabled")}},
        [("U02", SPLIT), ("U03", COPY)],
        [f"systemctl disable {SPLIT}"],
        [f"systemctl enable {SPLIT}"],
    ),
    (
        "a unit that is enabled until the next boot only is given back so",
        {"units": {SPLIT: unit("inactive", "enabled-runtime")}},
        [("U01", SPLIT)],
        [f"systemctl disable --runtime {SPLIT}"],
        [f"systemctl enable --runtime {SPLIT}"],
    ),
    (
        "the engine runs and would not after a reboot",
        {"units": copy_on_b(enabled="disabled")},
        [("U03", COPY)],
        [f"systemctl enable {COPY}"],
        [f"systemctl disable {COPY}"],
    ),
    ("a masked unit is for a person", {"units": copy_on_b(enabled="masked")}, [("U03", COPY)], [], []),
    ("the engine is down", {"units": copy_on_b(active="failed")}, [("U04", COPY)], [], []),
    (
        "the unit is gone",
        {"units": {COPY: unit("inactive", "").model_copy(update={"load": "not-found"})}},
        [("U04", COPY)],
        [],
        [],
    ),
    ("the engine is another build", {"units": copy_on_b(engine="replicas/qwen@0")}, [("U04", COPY)], [], []),
    ("the engine loads", {"units": copy_on_b(active="activating", sub="start-post")}, [], [], []),
    (
        "the engine has ended and waits for its restart",
        {"units": copy_on_b(active="activating", sub="auto-restart")},
        [("U04", COPY)],
        [],
        [],
    ),
    ("an engine of another layout runs", {"units": {SPLIT: unit("active", "disabled")}}, [("U05", SPLIT)], [], []),
    ("a unit file is newer than what is loaded", {"units": copy_on_b(reload=True)}, [("U17", COPY)], [], []),
]


@pytest.mark.parametrize(("facts", "told", "do", "undo"), [row[1:] for row in STATES], ids=[row[0] for row in STATES])
def test_units_against_the_layout(
    facts: dict[str, Any], told: list[tuple[str, str]], do: list[str], undo: list[str]
) -> None:
    findings = found(changed(scene(), "b", **facts))
    assert [(code, where) for code, _, where in codes(findings)] == told
    assert {one.box for one in findings} <= {"b"}
    if do:
        assert done(findings[0]) == (do, undo)
    else:
        assert all(one.remedy is None for one in findings)
    for one in findings:
        if one.code in ("U04", "U05"):
            assert "fleetctl apply" in one.fix


def test_a_box_that_was_left_behind_in_another_generation() -> None:
    (finding,) = found(changed(scene(), "b", generation=7))
    assert (finding.code, finding.box, "in generation 7, the fleet in 1" in finding.says) == ("U19", "b", True)


def test_the_proxy_is_down() -> None:
    (finding,) = found(changed(scene(), "a", units={PROXY: unit("failed")}))
    assert (finding.code, finding.box, finding.where) == ("U04", "a", PROXY)


def test_an_engine_that_the_guard_has_stopped_says_so_and_is_no_error() -> None:
    (finding,) = found(changed(scene(), "b", units=copy_on_b(active="inactive"), guard_out={COPY: "memory is short"}))
    assert (finding.severity, "memory is short" in finding.evidence[1]) == (Severity.WARNING, True)
    assert "fleetctl guard status" in finding.fix


@pytest.mark.parametrize(
    ("state", "by", "file", "do", "undo"),
    [
        (
            ("active", "enabled"),
            [],
            f"/etc/systemd/system/{OLD}",
            [f"systemctl disable --now {OLD}"],
            [f"systemctl enable {OLD}", f"systemctl start --no-block {OLD}"],
        ),
        (("inactive", "enabled"), [], "", [f"systemctl disable --now {OLD}"], [f"systemctl enable {OLD}"]),
        # By its path: `disable` takes the file away from systemd.
        (
            ("inactive", "enabled"),
            [],
            f"/opt/{OLD}",
            [f"systemctl disable --now {OLD}"],
            [f"systemctl enable /opt/{OLD}"],
        ),
        (("active", "static"), [], "", [f"systemctl stop {OLD}"], [f"systemctl start --no-block {OLD}"]),
        (
            ("inactive", "enabled"),
            ["old-vllm.timer"],
            "",
            [f"systemctl disable --now old-vllm.timer {OLD}"],
            ["systemctl enable old-vllm.timer", "systemctl start --no-block old-vllm.timer", f"systemctl enable {OLD}"],
        ),
    ],
)
def test_a_unit_that_was_replaced_and_is_back_goes_away_and_can_be_given_back(
    state: tuple[str, str], by: list[str], file: str, do: list[str], undo: list[str]
) -> None:
    seen = changed(scene(changes=SUPERSEDES), "b", units={OLD: unit(*state)}, foreign=(OLD,))
    triggers = {name: {"active": "active", "enabled": "enabled"} for name in by}
    (finding,) = found(seen, replaced={OLD: {"triggers": triggers, "file": file}})
    assert (finding.code, done(finding)) == ("U06", (do, undo))
    assert finding.fix == "; ".join(do)


@pytest.mark.parametrize(
    ("timer", "do", "undo"),
    [
        (("inactive", "disabled"), [f"systemctl stop {OLD}"], []),
        (("active", "disabled"), [f"systemctl stop old.timer {OLD}"], ["systemctl start --no-block old.timer"]),
        (
            ("inactive", "enabled"),
            ["systemctl disable --now old.timer", f"systemctl stop {OLD}"],
            ["systemctl enable old.timer"],
        ),
        (
            ("active", "enabled-runtime"),
            ["systemctl disable --runtime --now old.timer", f"systemctl stop {OLD}"],
            ["systemctl enable --runtime old.timer", "systemctl start --no-block old.timer"],
        ),
    ],
)
@pytest.mark.parametrize("replaced", [True, False])
def test_what_starts_a_unit_that_goes_away_gets_back_the_state_that_it_had_and_no_other(
    timer: tuple[str, str], do: list[str], undo: list[str], replaced: bool
) -> None:
    triggers = {"old.timer": {"active": timer[0], "enabled": timer[1]}}
    if replaced:
        seen = changed(scene(changes=SUPERSEDES), "b", units={OLD: unit("active", "static")}, foreign=(OLD,))
        (finding,) = found(seen, replaced={OLD: {"triggers": triggers}})
    else:
        theirs = watchdog(act("stop", COPY), name=OLD, active="active", triggers=triggers)
        (finding,) = found(scene(), foreign=[theirs.model_dump()])
    assert done(finding) == (do, [*undo, f"systemctl start --no-block {OLD}"])


def act(verb: str, on: str, where: str = "/opt/watchdog.sh", line: str = "") -> Act:
    return Act(on=on, verb=verb, line=line or f"systemctl {verb} {on}", where=where)


def watchdog(*acts: Act, **more: Any) -> Foreign:
    """A service that a timer starts."""
    given: dict[str, Any] = {
        "name": "watchdog.service",
        "acts": acts,
        "enabled": "static",
        "fragment": "/etc/systemd/system/watchdog.service",
        "triggers": {"watchdog.timer": {"active": "active", "enabled": "enabled", "file": "/etc/systemd/system/x"}},
    }
    return Foreign.model_validate({**given, **more})


ASLEEP = {"watchdog.timer": {"active": "inactive", "enabled": "disabled"}}
ACTS: list[tuple[str, Foreign, Severity | None, list[str]]] = [
    (
        "an old supervisor restarts the split, which would stop the copy",
        watchdog(act("restart", SPLIT)),
        Severity.ERROR,
        ["systemctl disable --now watchdog.timer"],
    ),
    (
        "a watchdog restarts the live engine",
        watchdog(act("restart", COPY)),
        Severity.WARNING,
        ["systemctl disable --now watchdog.timer"],
    ),
    (
        "it ends engines by name",
        watchdog(act("pkill", "engines")),
        Severity.ERROR,
        ["systemctl disable --now watchdog.timer"],
    ),
    (
        "it removes our container",
        watchdog(act("rm", COPY[:-8])),
        Severity.ERROR,
        ["systemctl disable --now watchdog.timer"],
    ),
    ("its timer is off, and so it is harmless", watchdog(act("restart", COPY), triggers=ASLEEP), None, []),
    (
        "it runs, and nothing else starts it",
        watchdog(act("restart", COPY), triggers={}, active="active"),
        Severity.WARNING,
        ["systemctl stop watchdog.service"],
    ),
    (
        "Conflicts= with the live engine",
        watchdog(act("Conflicts", COPY), triggers={}, enabled="enabled"),
        Severity.ERROR,
        ["systemctl disable --now watchdog.service"],
    ),
    ("Conflicts= with what is gone anyway", watchdog(act("Conflicts", OLD)), None, []),
    (
        "OnFailure= starts the split",
        watchdog(act("OnFailure", SPLIT)),
        Severity.ERROR,
        ["systemctl disable --now watchdog.timer"],
    ),
    ("BindsTo= starts the engine that should run anyway", watchdog(act("BindsTo", COPY)), Severity.NOTE, []),
    ("Wants= the proxy, as an application may", watchdog(act("Wants", PROXY)), None, []),
    ("it stops the proxy", watchdog(act("stop", PROXY)), Severity.WARNING, ["systemctl disable --now watchdog.timer"]),
    (
        "Upholds= the engine",
        watchdog(act("Upholds", COPY)),
        Severity.WARNING,
        ["systemctl disable --now watchdog.timer"],
    ),
    (
        "it starts what was replaced",
        watchdog(act("start", OLD)),
        Severity.ERROR,
        ["systemctl disable --now watchdog.timer"],
    ),
    (
        "a package brought it: a person decides",
        watchdog(act("restart", COPY), fragment="/usr/lib/systemd/system/watchdog.service"),
        Severity.WARNING,
        [],
    ),
]


@pytest.mark.parametrize(("one", "severity", "do"), [row[1:] for row in ACTS], ids=[row[0] for row in ACTS])
def test_units_of_others_are_judged_by_what_they_do_to_the_live_layout(
    one: Foreign, severity: Severity | None, do: list[str]
) -> None:
    findings = found(scene(changes=SUPERSEDES), foreign=[one.model_dump()])
    assert [(f.code, f.severity) for f in findings] == ([] if severity is None else [("U07", severity)])
    for finding in findings:
        assert (finding.remedy.does() if finding.remedy else []) == do
        assert any("/opt/watchdog.sh" in line for line in finding.evidence)
        assert "superseded:" in finding.fix


def test_what_turns_a_watchdog_off_gives_back_exactly_what_was_on() -> None:
    (finding,) = found(scene(), foreign=[watchdog(act("restart", COPY), active="active").model_dump()])
    assert done(finding) == (
        ["systemctl disable --now watchdog.timer", "systemctl stop watchdog.service"],
        [
            "systemctl enable watchdog.timer",
            "systemctl start --no-block watchdog.timer",
            "systemctl start --no-block watchdog.service",
        ],
    )


@pytest.mark.parametrize(
    ("line", "severity", "mends"),
    [
        ("/opt/vllm/bin/vllm serve m --port 8000", Severity.ERROR, True),
        ("/opt/vllm/bin/vllm serve m", Severity.ERROR, True),
        ("/opt/vllm/bin/vllm serve m --port=9000", Severity.WARNING, False),
    ],
)
def test_an_engine_of_somebody_else_is_worse_on_our_port(line: str, severity: Severity, mends: bool) -> None:
    (finding,) = found(scene(), foreign=[watchdog(engine=line).model_dump()])
    assert (finding.code, finding.severity, finding.remedy is not None) == ("U18", severity, mends)


CRON = {"file": "/etc/cron.d/vllm", "number": 3, "line": f"* * * * * root systemctl restart {COPY}"}


@pytest.mark.parametrize(
    ("more", "where", "fix"),
    [
        ({}, "/etc/cron.d/vllm:3", "sed -i '3s/^/#/' /etc/cron.d/vllm"),
        ({"file": "/etc/cron.daily/vllm", "number": 0}, "/etc/cron.daily/vllm", "chmod -x /etc/cron.daily/vllm"),
        ({"acts": [], "engine": True}, "/etc/cron.d/vllm:3", "sed -i '3s/^/#/' /etc/cron.d/vllm"),
        ({"acts": []}, None, None),
    ],
)
def test_cron_entries_come_with_the_command_that_takes_them_out(more: dict[str, Any], where: str, fix: str) -> None:
    entry = {**CRON, "acts": [act("restart", COPY, CRON["file"]).model_dump()], **more}
    findings = found(scene(), cron=[entry])
    assert [(f.code, f.where, f.fix, f.remedy) for f in findings] == (
        [] if where is None else [("U08", where, fix, None)]
    )


@pytest.mark.parametrize(
    ("more", "do", "undo"),
    [
        ({}, ["docker update --restart=no old"], ["docker update --restart=unless-stopped old"]),
        (
            {"policy": "on-failure", "retries": 3},
            ["docker update --restart=no old"],
            ["docker update --restart=on-failure:3 old"],
        ),
        ({"program": "podman", "updates": False}, [], []),
        ({"policy": "no"}, None, None),
        ({"policy": ""}, None, None),
    ],
)
def test_after_a_reboot_a_container_with_a_restart_policy_would_be_back_beside_the_unit(
    more: dict[str, Any], do: list[str] | None, undo: list[str] | None
) -> None:
    one = {"program": "docker", "name": "old", "image": "vllm/vllm-openai", "policy": "unless-stopped", "engine": True}
    findings = found(scene(), containers=[{**one, **more}])
    assert [f.code for f in findings] == ([] if do is None else ["U09"])
    for finding in findings:
        assert (finding.remedy is None) == (do == [])
        if do:
            assert done(finding) == (do, undo)


@pytest.mark.parametrize(("enabled", "told"), [(True, ["U10"]), (False, [])])
def test_a_service_of_a_user_counts_when_it_is_enabled(enabled: bool, told: list[str]) -> None:
    one = {
        "name": "vllm.service",
        "user": "ann",
        "file": "/home/ann/.config/systemd/user/vllm.service",
        "engine": "vllm serve m",
        "enabled": enabled,
        "lingers": True,
    }
    findings = found(scene(), user=[one])
    assert [f.code for f in findings] == told
    for finding in findings:
        assert finding.fix == "systemctl --user --machine=ann@ disable --now vllm.service"


OVERRIDE = f"/etc/systemd/system/{COPY}.d/override.conf"


@pytest.mark.parametrize(
    ("path", "lines", "told", "says"),
    [
        (
            OVERRIDE,
            ["Restart=no", "Environment=HF_TOKEN=…"],
            [("U11", Severity.WARNING)],
            "changes Restart=, Environment= of",
        ),
        (OVERRIDE, ["PartOf=docker.service"], [("U11", Severity.WARNING)], "the stop of docker.service stops it"),
        (
            "/usr/lib/systemd/system/service.d/10-abort.conf",
            ["TimeoutStopFailureMode=abort"],
            [("U11", Severity.NOTE)],
            "",
        ),
        (OVERRIDE, ["Type=notify"], [("U14", Severity.ERROR)], "never says READY=1"),
    ],
)
def test_drop_ins_say_which_settings_they_change(
    path: str, lines: list[str], told: list[tuple[str, Severity]], says: str
) -> None:
    keys = [line.split("=")[0] for line in lines]
    detail = TYPE.model_copy(update={"type": "notify" if "Type" in keys else "exec"})
    drop_in = {"unit": COPY, "path": path, "keys": keys, "lines": lines}
    findings = found(scene(), units={COPY: detail.model_dump()}, drop_ins=[drop_in])
    assert [(f.code, f.severity) for f in findings] == told
    assert says in findings[0].says and path in findings[0].fix


def test_a_split_has_type_notify_and_is_right_to() -> None:
    assert found(scene("split"), units={SPLIT: TYPE.model_copy(update={"type": "notify"}).model_dump()}) == []


SECRETS = {"models__qwen__environment": {"HF_TOKEN": {"env": "HF_TOKEN"}}}


def test_an_edited_file_is_shown_as_a_diff_and_one_with_secrets_is_only_named() -> None:
    secret, ready = "/etc/fleetctl/secrets/replicas-qwen.env", "/etc/fleetctl/bin/ready.py"
    seen = changed(scene(changes=SECRETS), "b", drift=(secret, ready))
    assert ask(seen, "b")["diffs"] == [ready]
    one, other = found(seen, diffs={ready: ["-a = 1", "+a = 2"]})
    assert (one.where, one.evidence) == (secret, ("it has secrets in it, and is not shown",))
    assert (other.where, other.evidence, other.severity) == (ready, ("-a = 1", "+a = 2"), Severity.WARNING)
    (gone,) = found(changed(scene(), "b", drift=(ready,)), diffs={ready: ["it is missing"]})
    assert (gone.code, gone.severity) == ("U16", Severity.ERROR)


def restarted(every: float, count: int, until: float = NOW, **detail: Any) -> dict[str, Any]:
    times = [until - every * (count - 1 - number) for number in range(count)]
    return {COPY: TYPE.model_copy(update={"log": Log(times=tuple(times)), **detail}).model_dump()}


@pytest.mark.parametrize(
    ("units", "restarts", "severity", "says"),
    [
        # The default limit is 5 starts in 10 s; an engine that takes minutes to fail never reaches it.
        (
            restarted(140, 20, burst=5, interval="10s"),
            35,
            Severity.ERROR,
            "is never reached at that rate: it loops for ever",
        ),
        (restarted(140, 20, burst=5, interval="0"), 35, Severity.ERROR, "it loops for ever"),
        (restarted(20, 3), 3, Severity.ERROR, "restarted 3 times within an hour, every 20"),
        (restarted(20, 3, until=NOW - 1800), 3, Severity.WARNING, "restarted 3 times"),
        (restarted(20, 2), 2, None, ""),
        # Since it was last started by hand it has been well.
        (restarted(20, 9), 0, None, ""),
        (restarted(20, 9), 1, None, ""),
        # All of it was long ago.
        (restarted(20, 0), 9, None, ""),
    ],
)
def test_restarts_since_the_last_start_are_a_storm_from_three_in_an_hour(
    units: dict[str, Any], restarts: int, severity: Severity | None, says: str
) -> None:
    findings = found(changed(scene(), "b", units=copy_on_b(restarts=restarts)), units=units)
    assert [(f.code, f.severity) for f in findings] == ([] if severity is None else [("U12", severity)])
    assert all(says in f.says for f in findings)


@pytest.mark.parametrize(
    ("refused", "result", "told"),
    [(True, "exit-code", ["U13"]), (False, "start-limit-hit", ["U13"]), (False, "exit-code", ["U04"])],
)
def test_start_request_repeated_too_quickly_is_said_in_place_of_that_it_is_down(
    refused: bool, result: str, told: list[str]
) -> None:
    units = {COPY: TYPE.model_copy(update={"log": Log(refused=refused)}).model_dump()}
    findings = found(changed(scene(), "b", units=copy_on_b(active="failed", result=result, restarts=4)), units=units)
    assert [f.code for f in findings] == told


def test_a_container_name_that_is_still_in_use_keeps_the_engine_from_starting() -> None:
    line = 'Conflict. The container name "/fleetctl-replicas-qwen" is already in use by container "f00".'
    units = {COPY: TYPE.model_copy(update={"log": Log(collisions=(line,))}).model_dump()}
    down, collision = found(changed(scene(), "b", units=copy_on_b(active="failed")), units=units)
    assert (down.code, collision.code, collision.evidence) == ("U04", "U15", (line,))
    assert "docker rm -f fleetctl-replicas-qwen" in collision.fix
    assert found(scene(), units=units) == [], "an engine that runs has overcome it"


def test_nothing_is_judged_while_a_move_is_under_way_and_of_one_that_was_cut_off_the_way_out_is_told() -> None:
    broken = changed(scene(), "b", units=copy_on_b(active="inactive"))
    assert found(changed(broken, "a", **under_way(alive=True))) == []
    old = [watchdog(act("pkill", "engines")).model_dump()]
    (told, foreign) = found(changed(broken, "a", **under_way(alive=False)), foreign=old)
    assert (told.code, told.box, told.where, foreign.code) == ("U20", "a", "m", "U07")
    assert told.fix == "`fleetctl cutover --to replicas` finishes it, `fleetctl rollback` undoes it"


@pytest.mark.parametrize("operation", ["calibrate", "doctor", "restart", "drain", "apply", "rollback", "cutover"])
def test_whatever_was_cut_off_what_it_left_behind_is_no_finding_of_its_own(operation: str) -> None:
    facts = under_way(alive=False)
    facts["moves"] = tuple(move.model_copy(update={"operation": operation}) for move in facts["moves"])
    half_done = {COPY: unit("inactive", "disabled"), SPLIT: unit("active", "enabled")}
    left = (ProcessFacts(pid=7, comm="VLLM::EngineCor", unit="fleetctl-trial.service", engine="trial/qwen"),)
    seen = changed(changed(scene(), "a", **facts), "b", units=half_done, processes=left)
    (told,) = found(seen)
    assert (told.code, told.fix) == ("U20", facts["moves"][0].ways)
    processes = ProcessesTold.model_validate({"processes": [{**left[0].model_dump(), "started": 1}]})
    assert list(PROCESSES.find(seen, {"b": processes})) == []


def test_of_a_box_that_is_away_nothing_is_said_and_of_a_split_that_it_is_part_of_neither() -> None:
    seen = scene("split")
    seen = changed(seen, "a", units={SPLIT: unit("failed")})
    away = replace(seen, observed={"a": seen.observed["a"]}, away={"b": BoxError("b", "no route")})
    assert list(find(away, {})) == []


def test_on_a_box_of_the_proxy_alone_engines_of_others_are_nobodys_business_but_the_proxy_is() -> None:
    solo = {"layouts": {"split": {"qwen": {"split": ["a", "b"]}}, "replicas": {"qwen": {"copies": ["a"]}}}}
    seen = scene(changes={**solo, "proxy": {"box": "b"}})
    theirs = [watchdog(act("pkill", "engines")), watchdog(engine="vllm serve m", name="vllm.service")]
    assert found(seen, foreign=[one.model_dump() for one in theirs]) == []
    (finding,) = found(seen, foreign=[watchdog(act("stop", PROXY)).model_dump()])
    assert (finding.code, finding.box) == ("U07", "b")
