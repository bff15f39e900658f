"""Boxes with real systemd and sshd: what they do, what can be done to them, and what is left after."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from places import BASE

from fleetctl.errors import LabError, SpecError
from fleetctl.lab.lab import Lab
from fleetctl.lab.state import Bind


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    here = tmp_path_factory.mktemp("boxes")
    engine = here / "engine"
    engine.mkdir()
    (engine / "hello").write_text("from the host\n")
    lab = Lab(
        here / "lab",
        bridge="fleettest0",
        subnet="10.77.1.0/24",
        link_subnet="10.78.1.0/24",
        base=BASE,
    )
    try:
        lab.up(2, binds=[Bind(engine, Path("/opt/engine"))])
        yield lab
    finally:
        lab.down()


@pytest.fixture(autouse=True)
def both_boxes_run(lab: Lab) -> None:
    """Each test begins with two boxes up, whatever the one before did."""
    if not all(box.ssh_ok for box in lab.status()):
        lab.up()


def ssh(lab: Lab, name: str, command: str, user: str = "fleet", input: str = "") -> subprocess.CompletedProcess[str]:
    argv = [*lab.ssh_argv(name, user), command]
    return subprocess.run(argv, input=input, capture_output=True, text=True, timeout=60, check=False)


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return condition()


def leader(lab: Lab, name: str) -> int | None:
    return lab._runner(lab.box(name)).leader()


def test_fleet_logs_in_with_the_key_and_has_sudo_without_a_password(lab: Lab) -> None:
    for name in ("box1", "box2"):
        result = ssh(lab, name, "hostname; sudo -n whoami")
        assert (result.stdout.split(), result.stderr, result.returncode) == ([name, "root"], "", 0)


def test_root_logs_in_with_the_key(lab: Lab) -> None:
    assert ssh(lab, "box1", "id -u", user="root").stdout == "0\n"


def test_operator_has_to_give_the_password_to_sudo(lab: Lab) -> None:
    assert ssh(lab, "box1", "sudo -n true", user="operator").returncode != 0
    assert ssh(lab, "box1", "sudo -S -p '' whoami", user="operator", input="wrong\n").returncode != 0
    right = ssh(lab, "box1", "sudo -S -p '' whoami", user="operator", input="lab-password\n")
    assert right.stdout == "root\n"


def test_systemd_is_up_without_a_failed_unit_and_debians_haproxy_is_off(lab: Lab) -> None:
    assert lab.exec("box1", ["systemctl", "is-system-running"]).stdout == "running\n"
    assert lab.exec("box1", ["systemctl", "is-active", "haproxy"]).stdout == "inactive\n"
    assert lab.exec("box1", ["systemctl", "is-enabled", "haproxy"]).stdout == "disabled\n"
    timers = lab.exec("box1", ["systemctl", "list-units", "--type=timer", "--state=active", "--no-legend"])
    assert [line.split()[0] for line in timers.stdout.splitlines()] == ["systemd-tmpfiles-clean.timer"]


def test_boxes_reach_each_other_over_both_addresses_and_nothing_else(lab: Lab) -> None:
    other = lab.box("box2")
    for address in (other.address, other.link_address, "box2"):
        assert lab.exec("box1", ["ping", "-c1", "-W5", address]).returncode == 0, address
    assert "unreachable" in lab.exec("box1", ["ping", "-c1", "-W5", "192.0.2.1"]).stderr


def test_a_bind_is_readable_in_the_boxes_and_not_writable(lab: Lab) -> None:
    assert lab.exec("box2", ["cat", "/opt/engine/hello"]).stdout == "from the host\n"
    assert "Read-only" in lab.exec("box2", ["touch", "/opt/engine/hello"]).stderr


def test_exec_feeds_standard_input_and_passes_the_exit_status_on(lab: Lab) -> None:
    result = lab.exec("box1", ["sh", "-c", "cat; exit 7"], input="a 'b' $c\n")
    assert (result.stdout, result.returncode) == ("a 'b' $c\n", 7)


def test_stopping_a_unit_in_one_box_leaves_the_same_unit_in_the_other_alone(lab: Lab) -> None:
    for name in ("box1", "box2"):
        lab.exec(name, ["systemd-run", "--unit=same", "sleep", "1000"])
    assert lab.exec("box1", ["systemctl", "stop", "same"]).returncode == 0
    assert lab.exec("box1", ["systemctl", "is-active", "same"]).stdout == "inactive\n"
    assert lab.exec("box2", ["systemctl", "is-active", "same"]).stdout == "active\n"
    assert lab.exec("box2", ["systemctl", "stop", "same"]).returncode == 0


def test_a_box_that_reboots_itself_comes_back_with_its_disk(lab: Lab) -> None:
    other = leader(lab, "box2")
    before = leader(lab, "box1")
    lab.exec("box1", ["sh", "-c", "echo kept >/root/note"])
    assert ssh(lab, "box1", "sudo systemctl reboot").returncode in (0, 255)
    assert eventually(lambda: leader(lab, "box1") not in (None, before))
    assert eventually(lambda: ssh(lab, "box1", "sudo cat /root/note").stdout == "kept\n")
    assert leader(lab, "box2") == other


def test_reboot_returns_when_the_box_is_back(lab: Lab) -> None:
    since = lab.status()[0].since
    lab.reboot("box1")
    after = lab.status()[0]
    assert after.ssh_ok and after.since is not None and since is not None and after.since > since


def test_a_box_without_power_is_off_at_once_and_keeps_its_disk(lab: Lab) -> None:
    lab.exec("box1", ["sh", "-c", "echo kept >/root/power"])
    lab.power_off("box1")
    off, on = lab.status()
    assert (off.running, off.ssh_ok, off.uptime, on.ssh_ok) == (False, False, None, True)
    with pytest.raises(LabError, match="box1: is not running"):
        lab.exec("box1", ["true"])
    lab.power_on("box1")
    assert lab.exec("box1", ["cat", "/root/power"]).stdout == "kept\n"


def test_a_box_that_powers_itself_off_stays_off_until_up(lab: Lab) -> None:
    lab.exec("box2", ["systemctl", "poweroff"])
    assert eventually(lambda: not lab.status()[1].running)
    assert [box.ssh_ok for box in lab.status()] == [True, False]
    lab.up()
    assert [box.ssh_ok for box in lab.status()] == [True, True]


def test_a_vanished_box_is_silent_while_it_runs_on_and_can_reappear(lab: Lab) -> None:
    before = leader(lab, "box2")
    lab.vanish("box2")
    try:
        assert lab.exec("box1", ["ping", "-c1", "-W1", lab.box("box2").address]).returncode != 0
        status = lab.status()[1]
        assert (status.running, status.ssh_ok) == (True, False)
    finally:
        lab.reappear("box2")
    assert eventually(lambda: lab.status()[1].ssh_ok)
    lab.vanish("box2")
    lab.up()  # brings everything back to normal, cables too
    assert lab.status()[1].ssh_ok
    assert leader(lab, "box2") == before


def test_a_limited_folder_keeps_its_content_fills_up_and_can_be_freed(lab: Lab) -> None:
    lab.exec("box1", ["sh", "-c", "mkdir -p /srv/full && echo old >/srv/full/old"])
    lab.limit_disk("box1", "/srv/full", 1 << 20)
    assert lab.exec("box1", ["cat", "/srv/full/old"]).stdout == "old\n"
    fill = ["dd", "if=/dev/zero", "of=/srv/full/big", "bs=64k", "count=64"]
    assert "No space left" in lab.exec("box1", fill).stderr
    # What already runs in the box sees the limit too, not only commands begun from outside.
    assert "No space left" in ssh(lab, "box1", "sudo dd if=/dev/zero of=/srv/full/big bs=64k count=64").stderr
    lab.unlimit_disk("box1", "/srv/full")
    assert lab.exec("box1", ["cat", "/srv/full/old"]).stdout == "old\n"
    assert lab.exec("box1", fill).returncode == 0
    with pytest.raises(LabError, match="has no limit"):
        lab.unlimit_disk("box1", "/srv/full")


def test_reset_forgets_what_was_written_and_keeps_keys_and_addresses(lab: Lab) -> None:
    other = leader(lab, "box2")
    lab.exec("box1", ["touch", "/root/written"])
    identity = lab.exec("box1", ["cat", "/etc/machine-id"]).stdout
    lab.reset(["box1"])
    assert lab.exec("box1", ["test", "-e", "/root/written"]).returncode == 1
    assert lab.exec("box1", ["cat", "/etc/machine-id"]).stdout == identity
    assert ssh(lab, "box1", "hostname").stdout == "box1\n"
    assert leader(lab, "box2") == other


def test_up_again_changes_nothing(lab: Lab) -> None:
    before = [leader(lab, "box1"), leader(lab, "box2")]
    lab.up(2)
    assert [leader(lab, "box1"), leader(lab, "box2")] == before


def test_a_box_survives_an_interrupt_of_the_terminal_it_was_started_from(lab: Lab) -> None:
    lab.power_off("box1")
    script = (
        "import sys, time; from pathlib import Path; from fleetctl.lab.lab import Lab; "
        f"lab = Lab(Path({str(lab.root)!r}), bridge='fleettest0', subnet='10.77.1.0/24', "
        f"link_subnet='10.78.1.0/24', base=Path({str(lab.base)!r})); "
        "lab.power_on('box1'); print('on', flush=True); time.sleep(1000)"
    )
    caller = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, process_group=0)
    assert caller.stdout is not None and caller.stdout.readline() == b"on\n"
    before = leader(lab, "box1")
    os.killpg(caller.pid, signal.SIGINT)
    caller.wait()
    # Reads to the end: nothing that was started holds the caller's output open.
    assert caller.stdout.read() == b""
    assert lab.status()[0].ssh_ok
    assert leader(lab, "box1") == before


def test_unknown_boxes_and_smaller_labs_are_refused_by_name(lab: Lab) -> None:
    with pytest.raises(SpecError, match=r"(?s)no box box9.*box1, box2"):
        lab.ssh_argv("box9")
    with pytest.raises(SpecError, match="already has 2 boxes, and 1 were asked for"):
        lab.up(1)
    with pytest.raises(LabError, match="fleettest0 exists and does not belong"):
        Lab(lab.root.parent / "third", bridge="fleettest0", subnet="10.77.3.0/24", base=lab.base).up(1)
    with pytest.raises(LabError, match=r"10\.77\.1\.0/24 is in use here already"):
        Lab(lab.root.parent / "fourth", bridge="fleettest4", subnet="10.77.1.0/24", base=lab.base).up(1)


def traces(word: str, folder: Path) -> list[str]:
    """Everything on this machine that shows a lab of that bridge and folder exists."""
    found = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(folder) in line]
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    found += [line for line in links.splitlines() if word in line]
    found += [where for where, _, _ in os.walk("/sys/fs/cgroup") if word in where]
    found += [str(path) for path in Path("/run/systemd/nspawn").rglob("*") if word in path.name]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line or str(folder) in line:
            found.append(f"{process.parent.name}: {shlex.quote(line)}")
    return found


def test_down_leaves_nothing_behind_even_after_an_up_that_was_killed(lab: Lab, tmp_path: Path) -> None:
    here = tmp_path / "lab"
    second = Lab(here, bridge="fleettest2", subnet="10.77.2.0/24", link_subnet="10.78.2.0/24", base=lab.base)
    script = (
        "import os, signal; from pathlib import Path; from fleetctl.lab.box import Runner; "
        "from fleetctl.lab.lab import Lab; "
        "Runner.wait_ready = lambda self, seconds: os.kill(os.getpid(), signal.SIGKILL); "
        f"Lab(Path({str(here)!r}), bridge='fleettest2', subnet='10.77.2.0/24', "
        f"link_subnet='10.78.2.0/24', base=Path({str(lab.base)!r})).up(1)"
    )
    assert traces("fleettest2", here) == []
    try:
        killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert (killed.returncode, killed.stderr) == (-signal.SIGKILL, "")
        assert traces("fleettest2", here) != []
        second.up(1)
        assert second.exec("box1", ["hostname"]).stdout == "box1\n"
    finally:
        second.down()
    assert not here.exists()
    assert traces("fleettest2", here) == []
    assert lab.status()[0].ssh_ok
    second.down()  # nothing there: nothing to say


def test_the_lab_file_lists_what_a_program_needs_to_reach_the_boxes(lab: Lab) -> None:
    document = json.loads((lab.root / "lab.json").read_text())
    first = document["boxes"][0]
    assert (first["name"], first["address"], first["link_address"]) == ("box1", "10.77.1.11", "10.78.1.11")
    assert Path(first["key"]).stat().st_mode & 0o777 == 0o600
    assert document["binds"][0]["path"] == "/opt/engine"
