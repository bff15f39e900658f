"""What an account whose sudo is limited to fleetctl's program can have it do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleetctl.onbox.limits import ALLOWED, REFUSED, RULES, is_allowed
from fleetctl.remote.program import installed_path, installed_program, ops
from fleetctl.render.names import TRIAL_UNIT


def test_every_op_is_decided_on() -> None:
    undecided = {name for name in ops() if not name.startswith("setup_")} - ALLOWED - REFUSED - RULES.keys()
    assert not undecided, "say in fleetctl/onbox/limits.py whether moves take these"
    assert not (ALLOWED | REFUSED | RULES.keys()) - ops().keys(), "there is no such op any more"
    assert not ALLOWED & (REFUSED | RULES.keys())


OURS = "/etc/fleetctl/generations/3/files"


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("ping", {}),
        ("run", {"argv": ["haproxy", "-c", "-f", f"{OURS}/etc/fleetctl/proxy/haproxy.cfg"]}),
        ("run", {"argv": ["systemd-analyze", "verify", "--man=no", f"{OURS}/etc/systemd/system/fleetctl-a-b.service"]}),
        ("run", {"argv": ["python3", "-I", f"{OURS}/etc/fleetctl/bin/vrrp.py", "check", f"{OURS}/x.conf"]}),
        ("run", {"argv": ["systemctl", "reload", "fleetctl-proxy.service"]}),
        ("run", {"argv": ["ib_write_bw", "-d", "mlx5_0"]}),
        ("write", {"files": [{"path": f"{OURS}/etc/systemd/system/fleetctl-a-b.service", "content": ""}]}),
        ("install", {"move": "20260101T000000Z-ab12", "folder": OURS, "paths": ["/etc/fleetctl/x"], "remove": []}),
        (
            "install",
            {
                "move": "20260101T000000Z-ab12",
                "folder": OURS,
                "paths": ["/etc/systemd/system/fleetctl-a-b.service"],
                "remove": ["/etc/systemd/system/db.service.d/fleetctl-protect.conf"],
            },
        ),
        ("firewall_try", {"path": f"{OURS}/etc/fleetctl/firewall.nft", "limit": 30}),
        ("drop_page_cache", {"need": 1}),
        ("firewall_restore", {}),
        ("weights_begin", {"place": {"folder": "/models/a"}, "goal": {}}),
        ("hub_library", {"python": "/opt/vllm/bin/python"}),
        ("weights_look", {"places": [{"repo": "a/b", "env": {"HF_HOME": "/root/.cache/huggingface"}}]}),
        ("weights_goal", {"place": {"repo": "a/b", "env": {"HF_HOME": "/root/.cache/huggingface"}}}),
        ("program_help", {"argv": ["/opt/vllm/bin/vllm", "serve", "--help=all"], "env": {}}),
        ("weights_serve", {"place": {"folder": "/models/a"}, "own": "10.0.0.1", "key": "ab12"}),
        ("weights_delete", {"one": {"key": "/models/a", "only": "", "repository": "", "staging": False}}),
        ("trial_run", {"unit": TRIAL_UNIT, "content": "", "url": "http://127.0.0.1:1/health"}),
        ("unit_start", {"unit": "fleetctl-replicas-qwen@0.service"}),
        ("image_send", {"engine": "podman", "identity": "sha256:ab"}),
        ("checkpoint_files", {"path": "/models/a"}),
        ("fetch_weights", {"python": "/opt/vllm/bin/python", "env": {"HF_HOME": "/models"}, "secrets": ""}),
        (
            "container_try",
            {"words": ["/usr/bin/podman", "run", "--name", "fleetctl-a"], "folders": ["/var/cache/fleetctl/vllm"]},
        ),
        ("facts", {"images": [["podman", "a"]], "secrets": {"/etc/fleetctl/secrets/a": {}}}),
        ("unsupersede", {"prior": {"a.service": {"links": {"/etc/systemd/system/x.wants/a.service": "../a"}}}}),
    ],
)
def test_what_moves_take_is_allowed(op: str, args: dict[str, Any]) -> None:
    assert is_allowed(op, args)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("run", {"argv": ["id"]}),
        ("run", {"argv": []}),
        ("run", {"argv": ["haproxy", "-c", "-f", "/etc/shadow"]}),
        ("run", {"argv": ["haproxy", "-c", "-f", "/etc/fleetctl/../shadow"]}),
        ("run", {"argv": ["python3", "-I", "/tmp/mine.py"]}),
        ("run", {"argv": ["systemctl", "reload", "ssh.service"]}),
        ("run", {"argv": ["systemctl", "start", "fleetctl-proxy.service"]}),
        ("run", {"argv": ["haproxy", "-c", "-f", f"{OURS}/x"], "env": {"LD_PRELOAD": "/tmp/x.so"}}),
        ("write", {"files": [{"path": "/etc/sudoers.d/more", "content": ""}]}),
        ("write", {"files": [{"path": "/etc/fleetctl/../sudoers", "content": ""}]}),
        ("write", {"files": [{"path": "/etc/fleetctl", "content": ""}]}),
        ("install", {"move": "m", "folder": "/tmp", "paths": ["/etc/fleetctl/x"], "remove": []}),
        ("install", {"move": "m", "folder": OURS, "paths": ["/etc/systemd/system/ssh.service"], "remove": []}),
        ("install", {"move": "m", "folder": OURS, "paths": [], "remove": ["/etc/passwd"]}),
        ("install", {"move": "../../etc", "folder": OURS, "paths": [], "remove": []}),
        ("journal_open", {"move": "../../../root/.ssh"}),
        ("read", {"path": "/etc/shadow"}),
        ("remove", {"paths": ["/etc/passwd"]}),
        ("remedy", {"commands": [["id"]]}),
        ("search_addresses", {"path": "/root"}),
        ("setup_do", {"part": {}}),
        ("setup_look", {}),
        ("firewall_try", {"path": "/etc/shadow", "limit": 1}),
        ("drop_page_cache", {"need": 1, "drop": "/etc/passwd"}),
        ("unsupersede", {"prior": {"a.service": {"links": {"/etc/cron.d/a": "/tmp/a"}}}}),
        ("unsupersede", {"prior": {"a.service": {"links": {"/etc/systemd/system/../../cron.d/a": "/tmp/a"}}}}),
        ("firewall_restore", {"script": 'include "/etc/shadow"'}),
        ("weights_begin", {"place": {"folder": "/etc/cron.d"}, "goal": {}}),
        ("weights_arrive", {"place": {"folder": "/models/../etc"}}),
        ("weights_arrive", {"place": {"folder": "/root/.ssh"}}),
        ("program_help", {"argv": ["/bin/sh", "-c", "id"], "env": {}}),
        ("program_help", {"argv": ["vllm", "--help"], "env": {"LD_PRELOAD": "/tmp/x.so"}}),
        ("container_try", {"words": ["/bin/sh", "run"], "folders": []}),
        ("weights_begin", {"place": {"folder": "root/.ssh"}, "goal": {}}),
        ("weights_look", {"places": [{"folder": "etc"}]}),
        ("weights_look", {"places": [{"repo": "a/b", "revision": "../../../etc", "env": {"HF_HOME": "/m"}}]}),
        ("weights_look", {"places": [{"repo": "a/b", "revision": "", "env": {"HF_HOME": "etc"}}]}),
        ("weights_kept", {"needed": [{"place": {"folder": "/etc"}, "why": ""}], "stagings": []}),
        ("weights_delete", {"one": {"key": "etc", "only": "", "repository": "", "staging": False}}),
        ("weights_begin", {"place": {"folder": "/models/a"}, "goal": {"files": {"../../etc/x": {}}}}),
        ("trial_run", {"unit": "../../../etc/cron.d/x", "content": "", "url": "http://a"}),
        ("trial_run", {"unit": "ssh.service", "content": "", "url": "http://a"}),
        ("trial_run", {"unit": TRIAL_UNIT, "content": "", "url": "file:///etc/shadow"}),
        ("trial_end", {"unit": "../../../etc/passwd"}),
        ("unit_enable", {"enable": ["/home/ops/x.service"], "disable": []}),
        ("unit_start", {"unit": "--root=/tmp"}),
        ("image_send", {"engine": "/tmp/x", "identity": "a"}),
        ("image_pull", {"engine": "podman", "image": "--authfile=/etc/shadow"}),
        ("images_look", {"asked": [["/tmp/x", "a"]]}),
        ("builds", {"binaries": [], "images": [["/tmp/x", "a"]]}),
        ("facts", {"images": [["/tmp/x", "a"]]}),
        ("facts", {"secrets": {"/etc/shadow": {"salt": "a", "mac": "b"}}}),
        ("installed", {"folder": "/tmp", "paths": ["/etc/shadow"], "absent": []}),
        ("checkpoint_files", {"path": "/etc"}),
        ("program_help", {"argv": ["/bin/sh", "-c", "id", "--help"], "env": {}}),
        ("program_help", {"argv": ["/bin/true", "--help"], "version": ["/bin/sh", "-c", "id"], "env": {}}),
        ("program_help", {"argv": ["/usr/bin/podman", "run", "-v=/:/host", "a", "--help"], "env": {}}),
        ("fetch_weights", {"python": "/opt/python", "env": {"PYTHONPATH": "/tmp"}, "secrets": ""}),
        ("fetch_weights", {"python": "/opt/python", "env": {}, "secrets": "/etc/shadow"}),
        ("container_try", {"words": ["podman", "run", "--name", "web"], "folders": []}),
        ("container_try", {"words": ["podman", "run", "--name", "fleetctl-a"], "folders": ["/etc/x"]}),
        ("proxy_set", {"path": "/run/docker.sock", "states": {}}),
        ("write", {"files": [{"path": "/var/lib/fleetctl/setup.json", "content": ""}]}),
        ("run", {"argv": ["ib_write_bw", "--out_json_file=/etc/x"]}),
        ("unit_start", {"unit": ["a"]}),
        ("no_such_op", {}),
    ],
)
def test_what_goes_beyond_a_move_is_refused(op: str, args: dict[str, Any]) -> None:
    assert not is_allowed(op, args)


@pytest.mark.parametrize("op", ["checkpoint_files", "weights_serve"])
@pytest.mark.parametrize("inner", ["", "deep"])
def test_a_link_in_a_folder_of_weights_does_not_lead_to_the_system(tmp_path: Path, op: str, inner: str) -> None:
    folder = tmp_path / "model" / inner
    folder.mkdir(parents=True)
    path = str(tmp_path / "model")
    args: dict[str, Any] = {"path": path} if op == "checkpoint_files" else {"place": {"folder": path}, "key": "a"}
    assert is_allowed(op, args)
    (folder / "config.json").symlink_to("/etc/shadow")
    assert not is_allowed(op, args)
    (tmp_path / "link").symlink_to("/etc")
    through = str(tmp_path / "link" / "cron.d")
    assert not is_allowed(op, {"path": through} if op == "checkpoint_files" else {"place": {"folder": through}})


def test_the_path_of_the_installed_program_tells_its_version() -> None:
    assert re.fullmatch(r"/usr/local/lib/fleetctl/onbox-[0-9a-f]{16}", installed_path())


def _converse(program: Path, nonce: str, lines: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-IBSXutf8", str(program), nonce]
    return subprocess.run(argv, input=lines, capture_output=True, text=True, timeout=60, check=False)


def test_the_installed_program_drops_the_source_that_comes_and_refuses_what_is_no_move(tmp_path: Path) -> None:
    program = tmp_path / "onbox"
    program.write_bytes(installed_program())
    nonce = "0123456789abcdef01234567"
    asked = '{"id":1,"op":"ping"}\n{"id":2,"op":"run","args":{"argv":["id"]}}\n'
    done = _converse(program, nonce, "import os; os.abort()\n" + asked)
    marker, *answers = done.stdout.strip().splitlines()
    assert marker.split()[0] == nonce[::-1], done.stderr
    assert '{"id":1,"result":{}}' in answers
    (refusal,) = (line for line in answers if '"id":2' in line)
    assert "NotAllowedError" in refusal and "run is beyond that" in refusal


def test_the_installed_program_does_nothing_for_other_words(tmp_path: Path) -> None:
    program = tmp_path / "onbox"
    program.write_bytes(installed_program())
    done = _converse(program, "--help", "")
    assert done.returncode == 1 and "setup" in done.stderr
