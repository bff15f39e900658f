"""Moves on real boxes, the good ways: there, back, and what is left where."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from moving import BOXES, COPY, FLEETCTL, PATIENCE, PROXY, SPLIT, Moving, eventually

OLD_ENGINE = """[Unit]
Description=an engine that somebody set up by hand
[Service]
ExecStart=/opt/standin/bin/vllm serve lab/old --host {address} --port 8000
Environment=STANDIN_LOAD_SECONDS=0.2
Restart=always
[Install]
WantedBy=multi-user.target
"""
OLD_WATCHDOG = """[Service]
Type=oneshot
ExecStart=/bin/sh -c 'systemctl is-active -q old-vllm.service || systemctl start --no-block old-vllm.service'
"""
OLD_TIMER = """[Timer]
OnActiveSec=1
OnUnitActiveSec=1
AccuracySec=100ms
[Install]
WantedBy=timers.target
"""


def in_layout(moving: Moving, layout: str, generation: int) -> None:
    """Units running and enabled exactly as they should be, the other layout's gone, proxy and status right."""
    mine, other = (SPLIT, COPY) if layout == "split" else (COPY, SPLIT)
    for box in BOXES:
        assert moving.unit(box, mine) == ("active", "enabled")
        assert moving.unit(box, other) == ("inactive", "")
        assert moving.our_units(box) == ([PROXY, mine] if box == "box1" else [mine])
        enabled = moving.sh(box, "ls /etc/systemd/system/multi-user.target.wants | grep fleetctl").split()
        assert enabled == ([PROXY, mine] if box == "box1" else [mine])
        assert moving.sh(box, "readlink /etc/fleetctl/current").strip() == f"generations/{generation}"
        assert {name.split("@")[0] for name in moving.processes(box)} == {f"FLEETCTL_ENGINE={layout}/standin"}
    assert moving.unit("box1", PROXY) == ("active", "enabled")
    up = {"standin/split-box1"} if layout == "split" else {"standin/replicas-box1", "standin/replicas-box2"}
    servers = moving.servers()
    assert {name for name, status in servers.items() if status == "UP"} == up, servers
    assert {status for name, status in servers.items() if name not in up} == {"MAINT"}, servers
    seen = moving.status()
    assert (seen["exit"], seen["layout"], seen["generation"], seen["problems"]) == (0, layout, generation, []), seen
    assert moving.answers()


def test_split_replicas_and_back_with_requests_answered_all_the_while(fresh: Moving) -> None:
    moving = fresh
    moving.cutover("split")
    in_layout(moving, "split", 1)
    with moving.steady_traffic() as traffic:
        there = moving.cutover("replicas")
    in_layout(moving, "replicas", 2)
    again = moving.run("cutover", "--to", "replicas", "--yes")
    assert (again.rc, again.nothing) == (0, True), (again, [(s["id"], s["summary"]) for s in again.plan["steps"]])
    with moving.steady_traffic() as back_traffic:
        back = moving.rollback()
    in_layout(moving, "split", 1)
    assert traffic.failed == back_traffic.failed == []
    assert len(traffic.statuses) > 4
    for ran in (there, back):
        end = next(e for e in ran.events if e["type"] == "move" and e["state"] == "done")
        assert 0 < end["gap"] < PATIENCE
    # Nothing of the move is left but generations and journals.
    assert moving.sh("box1", "find /etc /var/lib/fleetctl -name '*.tmp' -o -name '*.new'") == ""


def test_a_stream_on_an_engine_that_the_checks_took_out_is_not_cut_by_a_move(moving: Moving) -> None:
    moving.be_in("split")
    moving.control("box1", answer_tokens=4000)
    ask = {"model": "standin", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4000, "stream": True}
    with httpx.stream("POST", f"{moving.proxy}/v1/chat/completions", json=ask, timeout=PATIENCE) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data:")
        moving.tell_proxy("disable health standin/split-box1")
        moving.tell_proxy("set server standin/split-box1 health down")
        assert moving.servers()["standin/split-box1"] == "DOWN"
        move = moving.start("cutover", "--to", "replicas", "--yes")
        assert "data: [DONE]" in list(lines)
    assert move.finish().rc == 0


def test_what_render_writes_is_what_lands_on_the_boxes(moving: Moving, tmp_path: Path) -> None:
    moving.be_in("split")
    ran = moving.run("render", "--out", str(tmp_path / "out"))
    assert ran.rc == 0, ran
    for box in BOXES:
        folder = tmp_path / "out" / "split" / box
        rendered = {f"/{p.relative_to(folder)}": p.read_text() for p in folder.rglob("*") if p.is_file()}
        assert rendered
        for path, text in rendered.items():
            assert moving.sh(box, f"cat {path}") == text, f"{box}:{path}"
        landed = {f"/etc/systemd/system/{name}" for name in moving.our_units(box)}
        for part in ("bin", "proxy", "secrets"):
            landed |= {f"/etc/fleetctl/{part}/{name[2:]}" for name in moving.files(box, f"/etc/fleetctl/{part}")}
        assert landed == set(rendered)


@pytest.mark.parametrize("layout", ["split", "replicas"])
def test_a_reboot_of_both_boxes_brings_back_exactly_that_layout(moving: Moving, layout: str) -> None:
    moving.be_in(layout)
    before = moving.picture()
    proxy = moving.sh("box1", "cat /etc/fleetctl/proxy/haproxy.cfg")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(moving.lab.reboot, BOXES))
    eventually(lambda: moving.complete().status_code == 200)
    eventually(lambda: moving.status()["exit"] == 0, lambda: moving.status())
    assert moving.same_as(before)
    assert moving.sh("box1", "cat /etc/fleetctl/proxy/haproxy.cfg") == proxy
    in_layout(moving, layout, moving.status()["generation"])


def test_a_changed_argument_restarts_what_it_changes_and_nothing_else(moving: Moving) -> None:
    moving.be_in("replicas")
    before = {box: moving.pid(box, COPY) for box in BOXES}

    def one_copy(document: dict[str, Any]) -> None:
        document["layouts"]["replicas"]["standin"]["copies"] = {"box1": None, "box2": {"arguments": ["--seed", "7"]}}

    with moving.steady_traffic() as traffic:
        ran = moving.cutover("replicas", text=moving.changed(one_copy))
    assert traffic.failed == []
    assert moving.pid("box1", COPY) == before["box1"]
    assert moving.pid("box2", COPY) != before["box2"]
    assert "--seed" in moving.sh("box2", f"tr '\\0' ' ' < /proc/{moving.pid('box2', COPY)}/cmdline")
    assert [step for step in ran.steps() if ".stop_engine." in step] == [f"switch.stop_engine.box2/{COPY}"]
    assert moving.status()["exit"] == 0


def test_a_changed_comment_changes_nothing(moving: Moving) -> None:
    moving.be_in("replicas")
    before = moving.picture()
    ran = moving.cutover("replicas", text="# another comment\n" + moving.text)
    assert ran.nothing
    assert moving.same_as(before)


def test_a_layout_added_to_the_file_does_not_restart_engines(moving: Moving) -> None:
    moving.be_in("replicas")
    before = {box: moving.pid(box, COPY) for box in BOXES}
    with moving.steady_traffic() as traffic:
        wider = moving.changed(lambda d: d["layouts"].update(pairs={"standin": {"copies": ["box2"], "port": 8010}}))
        moving.cutover("replicas", text=wider)
    assert traffic.failed == []
    assert {box: moving.pid(box, COPY) for box in BOXES} == before
    assert "fleetctl-pairs-standin.service" in moving.sh("box2", f"systemctl show -P Conflicts {COPY}")
    assert moving.servers()["standin/pairs-box2"] == "MAINT"
    assert moving.status(wider)["exit"] == 0
    moving.cutover("pairs", text=wider)
    assert moving.unit("box1", COPY)[0] == "inactive"
    assert moving.answers()
    moving.rollback()
    assert moving.status()["layout"] == "replicas"


def test_a_saved_plan_is_carried_out_and_refused_once_a_box_has_changed(moving: Moving, tmp_path: Path) -> None:
    moving.be_in("split")
    file = tmp_path / "plan.json"
    assert moving.run("plan", "--to", "replicas", "--out", str(file)).rc == 0
    moving.sh("box2", f"systemctl disable {SPLIT}")
    before = moving.picture()
    refused = moving.run("cutover", "--plan", str(file), "--yes")
    assert refused.rc == 5, refused
    assert "box2 changed since the plan was made" in refused.said
    assert moving.same_as(before)
    moving.sh("box2", f"systemctl enable {SPLIT}")
    done = moving.run("cutover", "--plan", str(file), "--yes")
    assert done.rc == 0, done
    seen = moving.status()
    assert (seen["exit"], seen["layout"]) == (0, "replicas"), seen
    again = moving.run("cutover", "--plan", str(file), "--yes")
    assert again.rc == 5, again
    assert moving.status()["exit"] == 0


def test_secrets_are_on_the_boxes_and_nowhere_else(moving: Moving, tmp_path: Path) -> None:
    moving.be_in("replicas")
    token, key = 'hf_T0k3n$with"odd`chars\\', "sk-cl1ent-k3y"

    def secrets(document: dict[str, Any]) -> None:
        document["models"]["standin"]["environment"]["HF_TOKEN"] = {"env": "TEST_TOKEN"}
        document["proxy"]["api_keys"] = {"office": {"env": "TEST_KEY"}}

    text, env = moving.changed(secrets), {"TEST_TOKEN": token, "TEST_KEY": key}
    plan = tmp_path / "plan.json"
    shown = moving.run("plan", "--to", "split", "--out", str(plan), text=text, env=env)
    assert shown.rc == 0, shown
    ran = moving.cutover("split", text=text, env=env)
    assert moving.complete().status_code == 401
    assert moving.complete(headers={"Authorization": f"Bearer {key}"}).status_code == 200
    engine = moving.sh("box1", "pgrep -f 'vllm serve' | head -1").strip()
    assert f"HF_TOKEN={token}" in moving.sh("box1", f"tr '\\0' '\\n' < /proc/{engine}/environ")
    told = [json.dumps(shown.events), plan.read_text(), json.dumps(ran.events), ran.err, moving.journal()]
    for box in BOXES:
        current = moving.sh(box, "readlink -f /etc/fleetctl/current").strip()
        told += [moving.sh(box, f"cat {current}/release.json"), moving.sh(box, "ps axww -o args")]
        told.append(moving.sh(box, "journalctl -q --no-pager -b"))
        holds = moving.sh(box, f"grep -rlFs -e '{key}' -e 'hf_T0k3n' /etc /var /run --exclude-dir=journal").split()
        live = {"/etc/fleetctl/secrets/split-standin.env", "/etc/fleetctl/proxy/keys"}
        assert {path.removeprefix(f"{current}/files") for path in holds} <= live, holds
        assert {moving.sh(box, f"stat -c '%a %U' {path}").strip() for path in holds} == {"600 root"}
    for text_seen in told:
        assert key not in text_seen and "hf_T0k3n" not in text_seen
    moving.rollback()
    # Nothing of it is left among the live files, and nothing asks for a key any more.
    assert moving.sh("box1", "ls /etc/fleetctl/secrets /etc/fleetctl/proxy/keys 2>/dev/null | grep -v :").split() == []
    for box in BOXES:
        assert moving.sh(box, "ls -d /var/lib/fleetctl/moves/*/prior 2>/dev/null") == "", "kept for undo, and over"
    assert moving.answers()


def test_a_rollback_needs_no_secret_of_the_operator(moving: Moving) -> None:
    moving.be_in("replicas")
    keys = moving.changed(lambda d: d["proxy"].update(api_keys={"office": {"env": "TEST_KEY"}}))
    more = moving.changed(lambda d: d["proxy"].update(api_keys={"office": {"env": "TEST_KEY"}}, hold="7m"))
    env = {"TEST_KEY": "sk-0ffice"}
    before = moving.moves()
    refused = moving.run("cutover", "--to", "split", "--yes", text=keys)
    assert (refused.rc, "TEST_KEY" in refused.said, moving.moves()) == (2, True, before), refused
    moving.cutover("split", text=keys, env=env)
    moving.cutover("replicas", text=more, env=env)
    assert moving.run("rollback", "--yes").rc == 0, "neither the keys nor the file that names them are here"
    assert moving.complete(headers={"Authorization": "Bearer sk-0ffice"}).status_code == 200
    assert moving.complete().status_code == 401
    moving.be_in("replicas")
    assert moving.answers()


def test_the_first_cutover_replaces_what_was_set_up_by_hand_and_rollback_gives_it_back(fresh: Moving) -> None:
    moving = fresh
    for box in BOXES:
        address = moving.lab.box(box).address
        moving.put(box, "/etc/systemd/system/old-vllm.service", OLD_ENGINE.format(address=address))
        moving.put(box, "/etc/systemd/system/old-watchdog.service", OLD_WATCHDOG)
        moving.put(box, "/etc/systemd/system/old-watchdog.timer", OLD_TIMER)
        moving.sh(box, "systemctl daemon-reload; systemctl enable --now old-watchdog.timer")
    # On the second box the engine was started by its watchdog and never enabled.
    moving.sh("box1", "systemctl enable --now old-vllm.service")
    for box in BOXES:
        eventually(lambda box=box: moving.unit(box, "old-vllm.service")[0] == "active")  # type: ignore[misc]
    before = moving.picture()
    superseding = moving.changed(lambda d: d.update(superseded=["old-vllm.service", "old-watchdog.timer"]))
    plan = moving.run("plan", "--to", "replicas", text=superseding)
    assert plan.rc == 0, plan
    assert any("old-watchdog.service names old-vllm.service" in warning for warning in plan.plan["warnings"])
    moving.cutover("replicas", text=superseding)
    for box in BOXES:
        assert moving.unit(box, "old-vllm.service") == ("inactive", "disabled")
        assert moving.unit(box, "old-watchdog.timer") == ("inactive", "disabled")
    assert moving.status(superseding)["exit"] == 0
    assert moving.answers()
    moving.cutover("split", text=superseding)
    assert moving.rollback().plan["to_layout"] == "replicas"
    again = moving.run("rollback", "--yes")
    assert (again.rc, "rollback --to 0" in again.said) == (5, True), "two rollbacks must not empty the boxes unasked"
    last = moving.rollback("--to", "0")
    assert last.plan["to_layout"] is None
    for box in BOXES:
        eventually(lambda box=box: moving.unit(box, "old-vllm.service")[0] == "active")  # type: ignore[misc]
        assert moving.unit(box, "old-vllm.service")[1] == ("enabled" if box == "box1" else "disabled")
        assert moving.unit(box, "old-watchdog.timer") == ("active", "enabled")
        assert moving.our_units(box) == []
        assert moving.processes(box) == set()
        assert moving.sh(box, "cat /var/lib/fleetctl/superseded.json").strip() == "{}"
        now = moving.picture()[box].splitlines()
        was = before[box].splitlines()
        assert {line for line in now if "/etc/systemd/system" in line} == {
            line for line in was if "/etc/systemd/system" in line
        }
    assert moving.status()["layout"] is None


def test_status_says_what_is_wrong(moving: Moving) -> None:
    moving.be_in("replicas")

    def wrong() -> str:
        seen = moving.status()
        assert seen["exit"] == 9, seen
        return "\n".join(seen["problems"])

    moving.sh("box2", f"systemctl disable {COPY}")
    assert wrong() == f"box2: {COPY} would not start after a reboot"
    moving.sh("box2", f"systemctl enable {COPY}")
    moving.sh("box1", "echo '# mine' >> /etc/fleetctl/proxy/haproxy.cfg")
    assert wrong() == "box1: /etc/fleetctl/proxy/haproxy.cfg was edited or removed"
    assert moving.cutover("replicas").nothing is False
    assert moving.status()["exit"] == 0
    moving.sh("box2", f"systemctl stop {COPY}")
    eventually(lambda: moving.servers()["standin/replicas-box2"] != "UP")
    assert "replicas/standin@box2 is inactive: fleetctl apply starts it" in wrong()
    moving.cutover("replicas")
    moving.sh("box1", f"systemctl kill -s KILL {COPY}")
    eventually(lambda: moving.unit("box1", COPY)[0] == "active")
    again = f"box1: systemd has started {COPY} again once"
    eventually(lambda: moving.status()["notes"] == [again] and moving.status()["exit"] == 0)
    assert moving.answers()


def test_status_names_an_old_unit_that_was_started_by_hand(fresh: Moving) -> None:
    moving = fresh
    moving.put("box2", "/etc/systemd/system/old-vllm.service", "[Service]\nExecStart=/bin/sleep 1000\n")
    superseding = moving.changed(lambda d: d.update(superseded=["old-vllm.service"]))
    moving.cutover("replicas", text=superseding)
    assert moving.status(superseding)["exit"] == 0
    moving.sh("box2", "systemctl daemon-reload; systemctl start old-vllm.service")
    eventually(lambda: moving.unit("box2", COPY)[0] != "active")
    seen = moving.status(superseding)
    assert seen["exit"] == 9
    told = "\n".join(seen["problems"])
    assert "box2: old-vllm.service, which was replaced, is running or enabled again" in told
    assert "replicas/standin@box2 is inactive: fleetctl apply starts it" in told
    # The same command that made the layout makes it again.
    moving.cutover("replicas", text=superseding)
    assert moving.unit("box2", "old-vllm.service")[0] == "inactive"
    assert moving.status(superseding)["exit"] == 0


def test_people_get_the_same_move_as_text(moving: Moving) -> None:
    moving.be_in("replicas")
    done = subprocess.run(
        [FLEETCTL, "cutover", "--to", "split", "--yes", "-f", str(moving.file())],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done
    assert "done: the fleet is in split" in done.stdout
    assert "s without an engine; requests waited in the proxy meanwhile" in done.stdout


def test_a_question_that_is_open_holds_nobody_up_and_what_changed_meanwhile_is_not_overrun(moving: Moving) -> None:
    moving.be_in("replicas")
    argv = [FLEETCTL, "cutover", "--to", "split", "-f", str(moving.file())]
    ours, theirs = pty.openpty()
    asked = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "COLUMNS": "80"})
    os.close(theirs)
    shown = b""
    while b"Do it? [y/N]" not in shown:
        shown += os.read(ours, 65536)
    # Somebody else works meanwhile.
    assert moving.run("drain", "box2", "--yes").rc == 0
    os.write(ours, b"y\n")
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:
        pass  # the terminal is closed: the command has ended
    assert asked.wait(PATIENCE) == 5
    assert b"the fleet changed since the plan was shown" in shown
    assert moving.run("undrain", "box2", "--yes").rc == 0
    assert moving.status()["exit"] == 0
