"""An engine is started once to be measured, while clients go on asking: it is back as it was whatever happens."""

from __future__ import annotations

import signal
from pathlib import Path

from moving import COPY, Moving, eventually

GIB = 2**30
TRIAL = "fleetctl-trial.service"


def no_trial(moving: Moving, box: str) -> bool:
    seen = moving.sh(box, f"ls /run/systemd/system; systemctl is-active {TRIAL}")
    return TRIAL not in seen and "inactive" in seen and not any("trial" in name for name in moving.processes(box))


def test_a_copy_is_measured_by_a_start_while_the_other_serves(moving: Moving) -> None:
    moving.be_in("replicas")
    before, files = {box: moving.pid(box, COPY) for box in ("box1", "box2")}, moving.picture()
    # 0.5 of 4 GiB, less 1 GiB of weights and 0.5 GiB for the cache.
    moving.control("box2", weights_bytes=GIB, cache_bytes=GIB // 2)
    moving.sh("box2", "rm -f /tmp/asked; touch /tmp/look")
    look = "while [ -e /tmp/look ]; do ss -Hltn sport = :8000 >> /tmp/asked; sleep 0.05; done"
    moving.sh("box2", f"setsid sh -c '{look}' > /dev/null 2>&1 < /dev/null &")
    with moving.steady_traffic() as traffic:
        ran = moving.run("capacity", "calibrate", "box2", "--share", "0.5", "--yes")
    moving.sh("box2", "rm /tmp/look")
    assert ran.rc == 0, ran
    assert (traffic.failed, len(traffic.statuses) > 5) == ([], True)
    told = next(event for event in ran.events if event["type"] == "calibrated")
    assert (told["weights"], told["overhead"], told["startup"]) == (GIB, GIB // 2, None)
    after = Path(told["file"]).read_text()
    assert after.count("measured: {box2: {weights: 1024MiB, overhead: 512MiB") == 1
    assert "127.0.0.2:8000" in moving.sh("box2", "cat /tmp/asked"), "it listened where no proxy asks"
    assert moving.pid("box1", COPY) == before["box1"] and moving.pid("box2", COPY) != before["box2"]
    end = next(event for event in ran.events if event["type"] == "move" and event["state"] == "done")
    seen = end["trials"]["replicas/standin@box2"]
    # Boxes here see the memory of the whole machine, of which others may give some back meanwhile.
    assert (end["gap"], seen["least"] <= seen["before"] + 2 * GIB) == (0.0, True)
    assert no_trial(moving, "box2") and moving.same_as(files)
    found = moving.status()
    assert (found["exit"], found["problems"]) == (0, []), found


def test_one_that_cannot_start_is_told_and_undone(moving: Moving) -> None:
    moving.be_in("replicas")
    before = moving.picture()
    moving.control("box2", exit_during_load=0.1)
    with moving.steady_traffic() as traffic:
        run = moving.start("capacity", "calibrate", "box2", "--share", "0.5", "--yes")
        run.until("measure.trial", "failed")
        moving.control("box2")  # the engine itself comes back well
        ran = run.finish()
    assert (ran.rc, traffic.failed) == (6, []), ran
    assert "replicas/standin@box2 did not start to be measured" in ran.said and "--share" in ran.said, ran.said
    assert no_trial(moving, "box2")
    moving.unscathed(before, "replicas")


def test_ctrl_c_in_the_middle_ends_the_trial_and_brings_the_engine_back(moving: Moving) -> None:
    moving.be_in("replicas")
    before = moving.picture()
    moving.control("box2", never_ready=True)
    run = moving.start("capacity", "calibrate", "box2", "--share", "0.5", "--yes")
    run.until("measure.trial", "progress")
    assert moving.unit("box2", TRIAL)[0] == "active"
    moving.control("box2")
    run.process.send_signal(signal.SIGINT)
    ran = run.finish()
    assert ran.rc == 130, ran
    assert no_trial(moving, "box2")
    moving.unscathed(before, "replicas")


def test_one_whose_client_is_lost_ends_by_itself_and_a_rollback_brings_the_engine_back(moving: Moving) -> None:
    moving.be_in("replicas")
    before = moving.picture()
    moving.control("box2", never_ready=True)
    run = moving.start("capacity", "calibrate", "box2", "--share", "0.5", "--yes")
    run.until("measure.trial", "progress")
    run.process.kill()
    run.finish()
    moving.control("box2")
    eventually(lambda: not any("trial" in name for name in moving.processes("box2")), lambda: "its memory is not free")
    again = moving.run("capacity", "calibrate", "box2", "--share", "0.5", "--yes")
    assert (again.rc, "`fleetctl rollback` brings the engine back as it was" in again.said) == (8, True), again
    assert moving.run("rollback", "--yes").rc == 0
    assert no_trial(moving, "box2")
    moving.unscathed(before, "replicas")


def test_a_split_and_a_name_that_is_not_there_are_refused(moving: Moving) -> None:
    moving.be_in("split")
    before = moving.picture()
    ran = moving.run("capacity", "calibrate", "box2", "--yes")
    assert (ran.rc, "one engine over box1, box2" in ran.said, "--running" in ran.said) == (5, True, True), ran
    assert moving.run("capacity", "calibrate", "bix2", "--yes").rc == 2
    assert moving.same_as(before)
