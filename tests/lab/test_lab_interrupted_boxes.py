"""What happens to boxes while they are moved: connections break, journals are cut, a box is off."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from operators import EVERY_CUT, FLEETCTL, UNFINISHED, UNREACHABLE, Event, Run, journal_of, last_move

if TYPE_CHECKING:
    from interrupted import Subject

pytest_plugins = ["interrupted"]
JOURNAL = "/var/lib/fleetctl/moves/{}/journal.jsonl"

# Ends the SSH sessions of the login user, and not the listener.
CUT = ["sh", "-c", "pkill -KILL -u fleet -x sshd || pkill -KILL -f '^sshd: fleet'"]


def invocations(subject: Subject, unit: str) -> dict[str, str]:
    """Box → which start of the unit it is."""
    show = ["systemctl", "show", "-P", "InvocationID", unit]
    return {box.name: subject.lab.exec(box.name, show).stdout.strip() for box in subject.lab.boxes()}


def done_once(records: list[Event]) -> None:
    """No step has a second ``done`` in the journal."""
    done = [record["step"] for record in records if record["type"] == "done"]
    assert len(done) == len(set(done)), done


@pytest.mark.parametrize("box", ["box1", "box2"])
def test_a_connection_that_is_cut_in_the_middle_of_a_wait_is_made_again_and_the_move_goes_on(
    subject: Subject, box: str
) -> None:
    subject.be_in("split")
    with subject.slow_loads(4):
        run = subject.operators.move("cutover", "--to", "replicas")
        run.begun("await_ready")
        run.begun("await_ready")  # both engines: each has been started by now
    before = invocations(subject, "fleetctl-replicas-standin.service")
    assert subject.lab.exec(box, CUT).returncode == 0
    assert run.end() == 0, run.story()
    assert any("does not answer" in str(event.get("seen", "")) for event in run.events), run.story()
    done_once(journal_of(subject.lab, "box1", last_move(subject.lab, "box1")))
    assert invocations(subject, "fleetctl-replicas-standin.service") == before, "no engine was started twice"
    subject.is_whole_in("replicas", run.story())


@pytest.mark.parametrize("kind", ["stop_engine", "start_engine", "enable_units"])
def test_connections_that_are_cut_while_something_is_changed_are_made_again(subject: Subject, kind: str) -> None:
    subject.be_in("split")
    run = subject.operators.move("cutover", "--to", "replicas")
    run.begun(kind)
    for box in subject.lab.boxes():
        subject.lab.exec(box.name, CUT)
    assert run.end() == 0, run.story()
    done_once(journal_of(subject.lab, "box1", last_move(subject.lab, "box1")))
    subject.is_whole_in("replicas", run.story())


def test_a_network_that_is_away_for_a_moment_is_not_even_noticed(subject: Subject) -> None:
    subject.be_in("split")
    with subject.slow_loads(6):
        run = subject.operators.move("cutover", "--to", "replicas")
        run.begun("await_ready")
    subject.lab.vanish("box2")
    try:
        subprocess.run(["sleep", "3"], check=True)
    finally:
        subject.lab.reappear("box2")
    assert run.end() == 0, run.story()
    done_once(journal_of(subject.lab, "box1", last_move(subject.lab, "box1")))
    subject.is_whole_in("replicas", run.story())


def cut_off(subject: Subject, kind: str) -> tuple[Run, str]:
    """A cutover to replicas whose client was killed at the first step of this kind, and its name."""
    subject.be_in("split")
    run = subject.operators.move("cutover", "--to", "replicas")
    run.begun(kind)
    run.kill()
    return run, last_move(subject.lab, "box1")


@pytest.mark.parametrize("command", [("cutover", "--to", "replicas"), ("rollback",)])
def test_a_journal_whose_last_line_was_cut_with_the_box_is_still_of_use(
    subject: Subject, command: tuple[str, ...]
) -> None:
    _, move = cut_off(subject, "start_engine")
    subject.lab.exec("box1", ["truncate", "-s", "-9", JOURNAL.format(move)])
    code, told = subject.operators.status()
    assert (code, told["unfinished"]["move"]) == (UNFINISHED, move)
    run = subject.operators.do(*command)
    subject.is_whole_in("replicas" if command[0] == "cutover" else "split", run.story())
    text = subject.lab.exec("box1", ["cat", JOURNAL.format(move)]).stdout
    damaged = [line for line in text.splitlines() if not line.endswith("}")]
    assert len(damaged) == 1, "only the line that was cut is lost"


def test_an_empty_journal_is_that_of_a_move_that_has_done_nothing(subject: Subject) -> None:
    _, move = cut_off(subject, "preflight")
    subject.lab.exec("box1", ["truncate", "-s", "0", JOURNAL.format(move)])
    assert subject.operators.status()[0] == UNFINISHED
    run = subject.operators.do("rollback")
    subject.is_whole_in("split", run.story())


def test_a_journal_of_a_newer_version_is_read_as_far_as_it_is_safe(subject: Subject) -> None:
    _, move = cut_off(subject, "await_free")
    folder = f"/var/lib/fleetctl/moves/{move}"
    newer = json.dumps({"type": "weather", "at": 1, "sun": True})
    subject.lab.exec("box1", ["sh", "-c", f"echo '{newer}' >> {folder}/journal.jsonl"])
    add = "import json,sys; p,n=sys.argv[1:]; d=json.load(open(p)); d.update(json.loads(n)); json.dump(d,open(p,'w'))"
    subject.lab.exec("box1", ["python3", "-c", add, f"{folder}/meta.json", '{"fleetctl": "9.9.9", "mood": "good"}'])
    assert subject.operators.status()[0] == UNFINISHED

    subject.lab.exec("box1", ["python3", "-c", add, f"{folder}/plan.json", '{"moon_phase": 3}'])
    refused = subject.operators.move("rollback")
    assert refused.end() == UNFINISHED
    assert "moon_phase" in refused.said()
    assert "9.9.9" in refused.said()

    drop = "import json,sys; p=sys.argv[1]; d=json.load(open(p)); d.pop('moon_phase'); json.dump(d,open(p,'w'))"
    subject.lab.exec("box1", ["python3", "-c", drop, f"{folder}/plan.json"])
    run = subject.operators.do("rollback")
    subject.is_whole_in("split", run.story())


def test_old_generations_and_moves_are_removed_and_what_is_needed_stays(subject: Subject) -> None:
    subject.be_in("split")
    make = """
    current=$(basename $(readlink /etc/fleetctl/current))
    for n in $(seq 1000 1030); do cp -r /etc/fleetctl/generations/$current /etc/fleetctl/generations/$n; done
    for n in $(seq 100 170); do
      mkdir -p /var/lib/fleetctl/moves/20000101T000$n
      echo '{"operation":"cutover","from_layout":null,"to_layout":"x","who":"x","started":1}' \
        > /var/lib/fleetctl/moves/20000101T000$n/meta.json
      echo '{"type":"end","result":"done"}' > /var/lib/fleetctl/moves/20000101T000$n/journal.jsonl
    done
    """
    for box in subject.lab.boxes():
        subject.lab.exec(box.name, ["sh", "-c", make])
    generation = subject.operators.status()[1]["generation"]
    subject.operators.do("cutover", "--to", "replicas")
    for box in subject.lab.boxes():
        kept = subject.lab.exec(box.name, ["ls", "/etc/fleetctl/generations"]).stdout.split()
        moves = subject.lab.exec(box.name, ["ls", "/var/lib/fleetctl/moves"]).stdout.split()
        assert len(kept) <= 22
        assert str(generation) in kept
        assert len(moves) <= 50
    back = subject.operators.do("rollback")
    subject.is_whole_in("split", back.story())
    for box in subject.lab.boxes():
        subject.lab.exec(box.name, ["sh", "-c", "rm -rf /etc/fleetctl/generations/10[0-3]?"])


def test_a_rollback_needs_nothing_of_the_operators_machine(subject: Subject, tmp_path: Path) -> None:
    subject.be_in("replicas", with_way_back=True)
    lab = subject.lab
    address = lab.boxes()[1].address
    config = tmp_path / "ssh_config"
    config.write_text(f"Host {address}\n  IdentityFile {lab.key}\n  UserKnownHostsFile {lab.known_hosts}\n")
    via = ["--via", f"fleet@{address}", "-F", str(config), "--json"]
    broken = tmp_path / "fleet.yaml"
    broken.write_text("fleet: [")
    bare = {"cwd": tmp_path, "capture_output": True, "text": True}
    hint = subprocess.run([FLEETCTL, "rollback", "--yes"], **bare)  # type: ignore[call-overload]
    assert hint.returncode == 2
    assert "--via" in hint.stderr
    seen = subprocess.run([FLEETCTL, "status", *via], **bare)  # type: ignore[call-overload]
    assert json.loads(seen.stdout)["layout"] == "replicas"
    done = subprocess.run([FLEETCTL, "rollback", "--yes", *via], **bare)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout[-2000:]
    subject.is_whole_in("split", "")


@pytest.mark.parametrize("box", ["box1", "box2"] if EVERY_CUT else ["box1"])
def test_with_a_box_off_status_shows_what_it_can_and_a_cutover_says_so(subject: Subject, box: str) -> None:
    subject.be_in("replicas")
    other = {"box1": "box2", "box2": "box1"}[box]
    subject.lab.power_off(box)
    try:
        code, told = subject.operators.status()
        assert code == UNREACHABLE
        assert told["layout"] == "replicas"
        assert told["unreachable"] == [box]
        assert any(problem.startswith(f"{box} cannot be reached") for problem in told["problems"])
        states = {engine["id"]: engine["state"] for engine in told["engines"]}
        assert states == {f"replicas/standin@{box}": "unknown", f"replicas/standin@{other}": "active"}
        run = subject.operators.move("cutover", "--to", "split")
        assert run.end() == UNREACHABLE
        assert box in run.said()
    finally:
        subject.lab.power_on(box)
