"""A user who may bring and remove adapters, and nothing else: what he tries beside that is refused."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loras import FOLDER, Loras
from moving import BOXES, FLEETCTL, Moving, Ran, Running

from fleetctl.remote import program
from fleetctl.remote.connection import BoxConnection, connect
from fleetctl.remote.errors import OpFailed
from fleetctl.spec.fleet import Box

USER = "loras"
NEW_USER = f"id {USER} >/dev/null 2>&1 || useradd --create-home --shell /bin/sh {USER}"
INSTALL = f"""set -e
install -o root -g root -m 755 /root/role/fleetctl-loras /usr/local/sbin/fleetctl-loras
install -o root -g root -m 440 /root/role/sudoers /etc/sudoers.d/fleetctl-loras
visudo -c >/dev/null
install -o root -g root -m 644 /root/role/sshd.conf /etc/ssh/sshd_config.d/fleetctl-loras.conf
sshd -t && systemctl reload ssh
install -d -o root -g root -m 755 /home/{USER}/.ssh
install -o root -g root -m 644 /root/role/KEYS /home/{USER}/.ssh/authorized_keys
"""


class Engineer:
    """Somebody with a key for the user, no fleet.yaml, and nothing else."""

    def __init__(self, fleet: Loras, folder: Path) -> None:
        self.fleet, self.key = fleet, folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True)
        role = folder / "role"
        made = subprocess.run([FLEETCTL, "lora", "role", USER, "--write", str(role)], check=True, capture_output=True)
        assert b"fleetctl-loras" in made.stdout
        from loras import put_folder

        (role / "KEYS").write_text(self.key.with_suffix(".pub").read_text())
        for box in BOXES:
            put_folder(fleet.moving, box, role, "/root/role")
            fleet.moving.sh(box, NEW_USER)
            fleet.moving.sh(box, INSTALL)
        self.config = folder / "ssh_config"
        known = folder / "known_hosts"
        known.touch()
        self.config.write_text(
            f"Host *\n  IdentityFile {self.key}\n  IdentitiesOnly yes\n  UserKnownHostsFile {known}\n"
        )

    def run(self, *words: str) -> Ran:
        """``fleetctl lora WORDS`` as he runs it."""
        address = self.fleet.moving.lab.box("box1").address
        argv = [FLEETCTL, *words, "--via", f"{USER}@{address}", "--user", USER, "-F", str(self.config)]
        return Running([*argv, "--accept-new-host-keys", "--json"], dict(os.environ)).finish()

    def ssh(self, *command: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Plain ssh to a box, with or without a command."""
        address = self.fleet.moving.lab.box("box1").address
        argv = ["ssh", "-F", str(self.config), "-o", "StrictHostKeyChecking=no"]
        argv += ["-o", "LogLevel=ERROR", f"{USER}@{address}", *command]
        return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60, check=False)

    def connect(self) -> BoxConnection:
        """The program on a box, as fleetctl would talk to it."""
        address = self.fleet.moving.lab.box("box1").address
        box = Box.model_validate({"address": address, "memory": 1, "reserve": 0, "ssh": {"user": USER}})
        return connect("box1", box, accept_new=True, config=self.config)


@pytest.fixture
def engineer(moving: Moving, tmp_path: Path) -> Iterator[Engineer]:
    fleet = Loras(moving, tmp_path)
    fleet.be_in("replicas")
    fleet.remove_all()
    yield Engineer(fleet, tmp_path)
    fleet.remove_all()


def test_he_pushes_lists_and_removes_and_no_other_command_works(engineer: Engineer) -> None:
    fleet = engineer.fleet
    ran = engineer.run("lora", "push", str(fleet.make("mine")), "--yes")
    assert ran.rc == 0, ran
    assert fleet.on_engines() == {"box1": ["mine"], "box2": ["mine"]} and fleet.answers("mine")
    listed = engineer.run("lora", "list")
    assert listed.rc == 0 and "mine" in next(e for e in listed.events if e["type"] == "adapters")["adapters"]["standin"]
    bad = engineer.run("lora", "push", str(fleet.make("bad", rank=32)), "--yes")
    assert bad.rc == 5, bad
    before = fleet.moving.picture()
    address = fleet.moving.lab.box("box1").address
    for words in (["cutover", "--to", "split"], ["apply"], ["restart"], ["rollback"], ["drain", "box2"]):
        # The same file, but with this user's login on every box.
        text = fleet.text.replace("user: ", "user: #").replace("user: #", f"user: {USER} #")
        file = fleet.moving.file(text)
        argv = [FLEETCTL, *words, "-f", str(file), "-F", str(engineer.config), "--accept-new-host-keys", "--json"]
        ran = Running([*argv, "--yes"], dict(os.environ)).finish()
        assert ran.rc not in (0, 7), (address, words, ran)
    assert fleet.moving.same_as(before)
    assert fleet.moving.status(fleet.text)["exit"] == 0
    removed = engineer.run("lora", "remove", "mine", "--yes")
    assert removed.rc == 0, removed
    assert fleet.names() == []


def test_a_shell_a_command_a_file_and_a_tunnel_are_not_to_be_had(engineer: Engineer) -> None:
    nonces = f"{'0' * 24} {'0' * 24}"
    for command in (
        (),
        ("id",),
        ("sh", "-c", "id"),
        ("cat", "/etc/shadow"),
        ("sudo", "-n", "id"),
        ("sudo -n /usr/bin/python3 -c 'print(1)'",),
        (f"/bin/sh -c 'id' 'x' {nonces}",),
    ):
        ran = engineer.ssh(*command, text="id\nimport os; os.system('id')\n")
        assert "uid=" not in ran.stdout and "root:" not in ran.stdout, (command, ran)
    sftp = subprocess.run(
        ["sftp", "-F", str(engineer.config), "-o", "StrictHostKeyChecking=no", "-b", "-",
         f"{USER}@{engineer.fleet.moving.lab.box('box1').address}"],
        input="get /etc/hostname /tmp/never\n", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert sftp.returncode != 0 and not Path("/tmp/never").exists()
    tunnel = engineer.ssh("-W", "127.0.0.1:8000")
    assert tunnel.returncode != 0
    with engineer.connect() as box:
        assert box.call("ping") == {}


def refused(box: BoxConnection, op: str, **args: Any) -> str:
    with pytest.raises(OpFailed) as told:
        box.call_with(op, args, timeout=30)
    return str(told.value)


def test_ops_that_are_not_for_him_and_arguments_that_lead_elsewhere_are_refused(engineer: Engineer) -> None:
    fleet = engineer.fleet
    fleet.push(fleet.make("a"))
    digest = fleet.index("box1")["adapters"]["standin"]["a"]["digest"]
    files = fleet.index("box1")["adapters"]["standin"]["a"]["files"]
    was = fleet.state()
    with engineer.connect() as box:
        for op in sorted(program.ops()):
            if op not in _ALLOWED:
                assert "nothing else" in refused(box, op), op
        for name in ("../../../etc", "a/b", "..", "", "a\0b", "-x", "x" * 65):
            assert "letters, digits" in refused(box, "adapter_sent", model="standin", name=name, files=files), name
            assert "letters, digits" in refused(box, "adapter_sent", model=name, name="a", files=files), name
        for extra in ({"../../x": [1, "0" * 64]}, {"adapter_config.json": [1, "0" * 64]}, {}, []):
            refused(box, "adapter_sent", model="standin", name="b", files=extra)
        refused(box, "adapter_read", model="standin", name="a", digest=digest, file="../../index.json", offset=0)
        refused(
            box, "adapter_read", model="standin", name="a", digest="../" * 5 + "0", file="adapter_config.json", offset=0
        )
        refused(box, "checkpoint_files", path="/etc")
        plain = {"foreign": [], "units": [], "paths": [], "ports": [], "socket_path": "/run/fleetctl-proxy/admin.sock"}
        assert box.call("facts", **plain)["hostname"] == "box1"
        refused(box, "facts", **{**plain, "paths": ["/etc/shadow"]})
        refused(box, "facts", **{**plain, "socket_path": "/run/systemd/private"})
        refused(box, "facts", **{**plain, "units": ["x; id"]})
        refused(box, "facts", **{**plain, "secrets": {"/etc/shadow": {"salt": "", "mac": ""}}})
        refused(box, "move_begin", move="20260101T000000Z-abcd", operation="cutover", who="x")
        refused(box, "adapters_load", unit="ssh.service", address="127.0.0.1", port=22, model="standin", limit=1)
        refused(box, "adapters_tell", path="/run/other.sock", without=[], also=[])
        for move in (fleet.moving.moves()[0], "../../etc"):
            refused(box, "journal_append", move=move, record={"type": "end"})
            refused(box, "move_close", move=move)
        # Without the fleet's lock nothing is written at all.
        refused(box, "adapters_note", serial=99, adapters={})
        refused(box, "adapter_put", digest=digest, file="adapter_config.json", offset=0, data="")
        plan = {"operation": "lora push", "move": "20260101T000000Z-abcd", "steps": [{"kind": "mend", "params": {}}]}
        meta = {"operation": "lora push"}
        assert "a step mend" in refused(box, "journal_open", move=plan["move"], plan=plan, meta=meta)
        assert "another kind" in refused(
            box, "journal_open", move=plan["move"], plan={**plan, "operation": "doctor"}, meta=meta
        )
    assert fleet.state() == was


def test_he_cannot_take_the_fleet_from_somebody_who_holds_it(engineer: Engineer) -> None:
    fleet = engineer.fleet
    fleet.moving.control("box2", slow_start=20)
    run = fleet.moving.start("restart", "box2", "--yes", text=fleet.text)
    run.until("roll.await_ready", "begin")
    ran = engineer.run("lora", "push", str(fleet.make("a")), "--take-over", "--yes")
    assert ran.rc in (4, 8), ran
    token = json.loads(fleet.moving.sh("box1", "cat /var/lib/fleetctl/lock.json"))["token"]
    with engineer.connect() as box:
        for op, args in (
            ("lock_release", {"token": token}),
            ("lock_beat", {"token": token}),
            ("claim", {"token": token, "who": "x"}),
            ("lock_take", {"holder": {"token": token}}),
            ("lock_take", {"holder": {"token": "0" * 16}, "instead_of": token}),
        ):
            assert "nothing else" in refused(box, op, **args), op
    fleet.moving.control("box2")
    done = run.finish()
    assert done.rc == 0, done


def test_links_in_his_folder_bring_no_file_of_the_box(engineer: Engineer) -> None:
    fleet, folder = engineer.fleet, engineer.fleet.make("linked")
    (folder / "extra").symlink_to("/etc/shadow")
    assert engineer.run("lora", "push", str(folder), "--yes").rc == 0
    for box in BOXES:
        there = fleet.moving.sh(box, f"find {FOLDER}/standin -mindepth 3 -printf '%f %y\n' | sort").split("\n")
        assert there == ["adapter_config.json f", "adapter_model.safetensors f", ""]


_ALLOWED = {
    "ping", "facts", "fleet_text", "checkpoint_files", "lock_take", "lock_beat", "lock_release", "claim", "move_begin",
    "move_end", "move_close", "moves_prune", "journal_open", "journal_append", "journal_read", "adapter_sent",
    "adapter_put", "adapter_seal", "adapter_read", "adapters_index", "adapters_note", "adapters_drop",
    "adapters_restore", "adapters_load", "adapters_unload", "adapters_look", "adapters_tell",
}  # fmt: skip
