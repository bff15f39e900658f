"""Copies are measured while others serve: drained for it, or started with other settings; and back in every case."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from moving import COPY, Moving, eventually
from test_lab_calibrate import TRIAL, no_trial

BRIEF = ("--mix", "agent", "--duration", "1s", "--repeats", "5", "--yes")
BATCHED = {"batched_curve": [[1024, 0.5], [8192, 1.0], [16384, 4.0]], "speed": 1, "prefill_seconds_per_token": 0}


def told(ran: Any, kind: str) -> dict[str, Any]:
    (event,) = (event for event in ran.events if event["type"] == kind)
    return dict(event)


def test_a_better_setting_is_found_and_written_while_the_other_copy_serves(moving: Moving, tmp_path: Path) -> None:
    moving.be_in("replicas")
    moving.control("box2", **BATCHED)
    before, files = {box: moving.pid(box, COPY) for box in ("box1", "box2")}, moving.picture()
    page = tmp_path / "tune.html"
    words = ("--settings", "batched_tokens=8,4096,16384", "--settings", "memory_share=0.9,0.5")
    with moving.steady_traffic() as traffic:
        ran = moving.run("tune", "box2", *words, *BRIEF, "--write", "--html", str(page))
    assert ran.rc == 0, ran
    assert (traffic.failed, len(traffic.statuses) > 20) == ([], True)
    found = told(ran, "settings")
    says = {(one["setting"], one["value"]): one for one in found["verdicts"]}
    better = says["batched_tokens", 16384]
    assert better["says"] == "better" and better["change"][1] > 0.1, found
    assert "must be greater than or equal to max_num_seqs" in says["batched_tokens", 8]["why"]
    assert says["batched_tokens", 8]["says"] == says["memory_share", 0.9]["says"] == "not measured"
    assert "its reserve is 1.0 GiB" in says["memory_share", 0.9]["why"]
    assert says["memory_share", 0.5]["says"] != "better", "the share makes no difference to this engine"
    assert found["starts"] == len(found["measured"]) and found["concurrency"] == 12
    written = told(ran, "written")
    after = Path(written["file"]).read_text()
    assert '"16384"' in after and "arguments: [--max-num-batched-tokens" in after and written["shares"] == {}
    assert "settings</h1>" in page.read_text() and "must be greater" in page.read_text()
    assert moving.pid("box1", COPY) == before["box1"] and moving.pid("box2", COPY) != before["box2"]
    end = next(event for event in ran.events if event["type"] == "move" and event["state"] == "done")
    assert end["gap"] == 0.0
    assert no_trial(moving, "box2") and moving.same_as(files)
    seen = moving.status()
    assert (seen["exit"], seen["problems"]) == (0, []), seen


def test_ctrl_c_in_the_middle_of_the_trials_brings_the_copy_back(moving: Moving) -> None:
    moving.be_in("replicas")
    before = moving.picture()
    run = moving.start("tune", "box2", "--settings", "batched_tokens=4096", *BRIEF)
    run.until("measure.try_settings", "progress")
    eventually(lambda: moving.unit("box2", TRIAL)[0] == "active")
    run.process.send_signal(signal.SIGINT)
    ran = run.finish()
    assert ran.rc == 130, ran
    assert no_trial(moving, "box2")
    moving.unscathed(before, "replicas")


def test_one_whose_client_is_lost_is_found_and_a_rollback_brings_the_copy_back(moving: Moving) -> None:
    moving.be_in("replicas")
    before = moving.picture()
    run = moving.start("tune", "box2", "--settings", "batched_tokens=4096", *BRIEF)
    run.until("measure.try_settings", "progress")
    run.process.kill()
    run.finish()
    found = moving.status()
    assert (found["exit"], found["unfinished"]["operation"]) == (8, "tune"), found
    again = moving.run("tune", "box2", "--settings", "batched_tokens=4096", *BRIEF)
    assert (again.rc, "`fleetctl rollback` brings the engine back as it was" in again.said) == (8, True), again
    assert moving.run("rollback", "--yes").rc == 0
    assert no_trial(moving, "box2")
    moving.unscathed(before, "replicas")


def test_a_split_is_refused_and_so_is_the_only_copy_unless_its_requests_may_wait(moving: Moving) -> None:
    moving.be_in("split")
    before = moving.picture()
    ran = moving.run("tune", "standin", "--settings", "batched_tokens=4096", *BRIEF)
    assert (ran.rc, "its settings cannot be tried on box1 alone" in ran.said) == (5, True), ran
    ran = moving.run("tune", "standin", "--drain", *BRIEF)
    assert (ran.rc, "--hold" in ran.said) == (5, True), ran
    assert moving.same_as(before)


def test_a_copy_is_drained_while_it_is_measured_and_what_was_found_becomes_a_profile_that_init_uses(
    moving: Moving, tmp_path: Path
) -> None:
    config = {"model_type": "standin", "hidden_size": 8, "num_hidden_layers": 2, "max_position_embeddings": 8192}
    for box in ("box1", "box2"):
        moving.put(box, "/models/tiny/config.json", json.dumps(config))
        moving.put(box, "/models/tiny/model.bin", "weights")
    text = moving.text.replace("weights: lab/standin", "weights: /models/tiny").replace(
        "concurrency: 12", "concurrency: 20"
    )
    moving.cutover("replicas", text=text)
    moving.control("box2", curve=[[1, 36], [4, 120], [8, 60], [16, 30]], speed=1, prefill_seconds_per_token=0)
    measure = ("tune", "box2", "--mix", "agent", "--duration", "1s", "--most", "16", "--drain", "--yes")
    run = moving.start(*measure, text=text)
    run.until("measure.measure_knee", "progress")
    assert moving.servers()["standin/replicas-box2"].startswith(("MAINT", "DRAIN"))
    assert moving.answers(), "the other copy serves"
    ran = run.finish()
    assert ran.rc == 0, ran
    knee = told(ran, "tuned")["answer"]
    assert (knee["kind"], 2 <= knee["concurrency"] <= 8) == ("knee", True), knee
    assert moving.servers()["standin/replicas-box2"] == "UP"

    folder = tmp_path / "mine"
    ran = moving.run("profile", "save", "--profiles", str(folder), text=text)
    assert ran.rc == 0, ran
    saved = told(ran, "saved")
    profile, file = saved["profile"], Path(saved["file"])
    assert profile["settings"]["concurrency"] == {"agent": knee["concurrency"]}
    assert profile["model"]["config"] == config and profile["versions"]["vllm"] == "0.32.0+standin"
    curve = next(one for one in profile["evidence"] if one["about"] == ["concurrency.agent"])
    assert len(curve["points"]) == len(told_points(run.events))
    for private in ("box1", "box2", "/models", *(moving.lab.box(box).address for box in ("box1", "box2"))):
        assert private not in file.read_text(), private

    again = moving.run(*measure, "--profiles", str(folder), text=text)
    notes = [event["text"] for event in again.events if event["type"] == "note"]
    assert any(f"begins near {knee['concurrency']}" in note and profile["profile"] in note for note in notes), notes
    assert again.plan["steps"] and told(again, "tuned")["points"][0]["concurrency"] == max(1, knee["concurrency"] // 2)

    out = tmp_path / "fleet.yaml"
    hosts = [f"{moving.lab.box(box).user}@{moving.lab.box(box).address}" for box in ("box1", "box2")]
    ssh = tmp_path / "ssh_config"
    one = moving.lab.box("box1")
    ssh.write_text(f"Host *\n  IdentityFile {one.key}\n  UserKnownHostsFile {one.known_hosts}\n")
    argv = ("init", *hosts, "--out", str(out), "--profiles", str(folder), "--ssh-config", str(ssh))
    ran = moving.run_bare(*argv)
    assert ran.rc == 0, ran
    assert told(ran, "init")["profiles"] == [profile["profile"]]
    first = out.read_text()
    assert f"concurrency: {knee['concurrency']}\n" in first and f"# profile {profile['profile']}, " in first
    moving.sh("box1", "rm -r /models")
    moving.sh("box2", "rm -r /models")
    moving.cutover("replicas")


def told_points(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return next(list(event["points"]) for event in events if event["type"] == "tuned")
