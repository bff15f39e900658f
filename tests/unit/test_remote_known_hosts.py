"""What known_hosts files say of a server's key."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from fleetctl.errors import BoxError
from fleetctl.remote import hostkey, known_hosts
from fleetctl.remote.target import resolve
from fleetctl.spec.fleet import Ssh

KEY = b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20" + b"k" * 32
OTHER = b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20" + b"o" * 32


def line(names: str, blob: bytes = KEY, kind: str = "ssh-ed25519") -> str:
    return f"{names} {kind} {base64.b64encode(blob).decode()} a comment\n"


@pytest.mark.parametrize(
    ("content", "name", "verdict"),
    [
        ("", "spark1", "unknown"),
        (line("spark1"), "spark1", "known"),
        (line("spark1,10.0.0.1"), "10.0.0.1", "known"),
        (line("SPARK1"), "spark1", "known"),
        (line("spark2"), "spark1", "unknown"),
        (line("spark1", OTHER), "spark1", "changed"),
        (line("spark1", OTHER) + line("spark1"), "spark1", "known"),
        (line("spark1", b"r" * 40, "ssh-rsa"), "spark1", "changed"),
        (line("*.lab,!bad.lab"), "good.lab", "known"),
        (line("*.lab,!bad.lab"), "bad.lab", "unknown"),
        (line("10.0.0.?"), "10.0.0.7", "known"),
        (line("[spark1]:2222"), "[spark1]:2222", "known"),
        (line("[spark1]:2222"), "[spark1]:2223", "unknown"),
        (line("[spark1]:2222"), "spark1", "unknown"),
        (line("spark1"), "[spark1]:2222", "known"),
        (line("spark1", OTHER), "[spark1]:2222", "unknown"),
        ("@revoked " + line("*"), "spark1", "revoked"),
        ("@revoked " + line("*") + line("spark1"), "spark1", "revoked"),
        ("@revoked " + line("*", OTHER) + line("spark1"), "spark1", "known"),
        ("@cert-authority " + line("*"), "spark1", "unknown"),
        ("# " + line("spark1"), "spark1", "unknown"),
        ("spark1 ssh-ed25519\nspark1 ssh-ed25519 !!!\n\n|1|x|y ssh-ed25519 AAAA\n", "spark1", "unknown"),
    ],
)
def test_a_key_is_judged_as_ssh_would_judge_it(tmp_path: Path, content: str, name: str, verdict: str) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(content)
    assert known_hosts.check([path], name, KEY).verdict == verdict


def test_a_file_hashed_by_ssh_keygen_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(line("spark1") + line("[spark2]:2222"))
    subprocess.run(["ssh-keygen", "-H", "-f", str(path)], check=True, capture_output=True)
    assert "spark" not in path.read_text().replace("a comment", "")
    assert known_hosts.check([path], "spark1", KEY).verdict == "known"
    assert known_hosts.check([path], "[spark2]:2222", KEY).verdict == "known"
    assert known_hosts.check([path], "spark3", KEY).verdict == "unknown"


def test_any_file_may_know_the_key_and_missing_files_say_nothing(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(line("spark1", OTHER))
    second.write_text(line("spark1"))
    finding = known_hosts.check([tmp_path / "missing", first, second], "spark1", KEY)
    assert finding.verdict == "known"
    assert finding.entry is not None and finding.entry.path == second


@pytest.mark.parametrize("hashed", [False, True])
def test_an_added_key_is_found_by_us_and_by_ssh_keygen(tmp_path: Path, hashed: bool) -> None:
    path = tmp_path / "new" / "known_hosts"
    known_hosts.add(path, "spark1", "ssh-ed25519", KEY, hashed=hashed)
    path.write_text(path.read_text().rstrip("\n"))  # an editor may leave no newline at the end
    known_hosts.add(path, "[spark2]:2222", "ssh-ed25519", KEY, hashed=hashed)
    assert path.stat().st_mode & 0o777 == 0o600
    assert known_hosts.check([path], "spark1", KEY).verdict == "known"
    for name in ("spark1", "[spark2]:2222"):
        found = subprocess.run(["ssh-keygen", "-F", name, "-f", str(path)], capture_output=True, check=False)
        assert found.returncode == 0, name


def test_fingerprints_are_those_of_ssh_keygen(tmp_path: Path) -> None:
    path = tmp_path / "key.pub"
    path.write_text(f"ssh-ed25519 {base64.b64encode(KEY).decode()}\n")
    shown = subprocess.run(["ssh-keygen", "-lf", str(path)], capture_output=True, text=True, check=True).stdout
    assert known_hosts.fingerprint(KEY) == shown.split()[1]


def test_the_server_is_asked_for_a_key_of_a_type_that_is_known(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(line("spark1", b"r" * 40, "ssh-rsa"))
    target = resolve("spark1", "spark1", Ssh(known_hosts=str(path)), config=empty(tmp_path))
    order = hostkey.preferred(target, ["ssh-ed25519", "rsa-sha2-512", "rsa-sha2-256"])
    assert order == ["rsa-sha2-512", "rsa-sha2-256", "ssh-ed25519"]


def test_a_changed_key_is_refused_even_where_new_keys_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text("# a comment\n" + line("spark1", OTHER))
    target = resolve("spark1", "spark1", Ssh(known_hosts=str(path)), config=empty(tmp_path))
    before = path.read_text()
    with pytest.raises(BoxError) as caught:
        hostkey.verify("spark1", target, "ssh-ed25519", KEY, accept_new=True)
    told = str(caught.value)
    assert "HAS CHANGED" in told
    assert known_hosts.fingerprint(KEY) in told and known_hosts.fingerprint(OTHER) in told
    assert f"{path}:2" in told
    assert path.read_text() == before


def empty(folder: Path) -> Path:
    path = folder / "ssh_config"
    path.touch()
    return path
