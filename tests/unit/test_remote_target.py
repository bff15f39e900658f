"""fleet.yaml over the operator's OpenSSH configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.errors import BoxError
from fleetctl.remote.target import jump, resolve
from fleetctl.spec.fleet import Ssh


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    (tmp_path / "more").write_text("Host included\n  HostName 10.0.0.9\n  User inc\n")
    path.write_text(f"""\
Include {tmp_path}/more
Host alias
  HostName 10.0.0.1
  User ops
  Port 2200
  IdentityFile ~/.ssh/special_%h
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile /a/known /b/known
  HostKeyAlias Spark1
  ProxyJump one@first:2201,second
  ConnectTimeout 3
  StrictHostKeyChecking accept-new
  AddressFamily inet6
Host commanded
  ProxyCommand nc -X 5 %h %p
Match host matched
  User from-match
""")
    return path


def test_an_alias_means_what_it_means_to_ssh(config: Path) -> None:
    target = resolve("spark1", "alias", Ssh(), config=config)
    assert (target.host, target.port, target.user) == ("10.0.0.1", 2200, "ops")
    assert [path.name for path in target.keys] == ["special_10.0.0.1"]
    assert target.keys[0].is_absolute()
    assert target.only_keys and target.agent is None
    assert target.known_hosts == (Path("/a/known"), Path("/b/known"))
    assert target.known_as == "spark1"
    assert target.proxy_jump == ("one@first:2201", "second")
    assert target.connect_timeout == 3
    assert target.accept_new


def test_include_and_match_work(config: Path) -> None:
    included = resolve("b", "included", Ssh(), config=config)
    assert (included.host, included.user) == ("10.0.0.9", "inc")
    assert resolve("b", "matched", Ssh(), config=config).user == "from-match"


def test_fleet_yaml_wins_over_the_configuration(config: Path) -> None:
    ssh = Ssh(user="me", port=2222, key="/keys/mine", known_hosts="/known/mine")
    target = resolve("spark1", "alias", ssh, config=config)
    assert (target.user, target.port) == ("me", 2222)
    assert target.keys == (Path("/keys/mine"),)
    assert target.known_hosts == (Path("/known/mine"),)


def test_a_port_of_its_own_is_part_of_the_name_in_known_hosts(config: Path) -> None:
    assert resolve("b", "10.0.0.7", Ssh(), config=config).known_as == "10.0.0.7"
    assert resolve("b", "10.0.0.7", Ssh(port=2222), config=config).known_as == "[10.0.0.7]:2222"


def test_tokens_of_a_proxy_command_are_filled_in(config: Path) -> None:
    assert resolve("b", "commanded", Ssh(port=2222), config=config).proxy_command == "nc -X 5 commanded 2222"


def test_without_an_ssh_program_the_configuration_is_read_all_the_same(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    target = resolve("spark1", "alias", Ssh(), config=config)
    assert (target.host, target.port, target.user) == ("10.0.0.1", 2200, "ops")
    assert target.proxy_jump == ("one@first:2201", "second")
    assert resolve("spark1", "alias", Ssh(user="me"), config=config).user == "me"


def test_a_broken_configuration_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("Host x\n  NoSuchOption yes\n")
    with pytest.raises(BoxError, match=r"spark1: ssh refuses its configuration for x: .*nosuchoption"):
        resolve("spark1", "x", Ssh(), config=path)


def test_a_host_cannot_smuggle_options_in(config: Path) -> None:
    with pytest.raises(BoxError):
        resolve("spark1", "-oProxyCommand=touch /tmp/owned", Ssh(), config=config)


@pytest.mark.parametrize(
    ("text", "host", "user", "port"),
    [
        ("gate", "gate", None, None),
        ("ops@gate", "gate", "ops", None),
        ("ops@gate:2222", "gate", "ops", 2222),
        ("[fd00::1]:2222", "fd00::1", None, 2222),
        ("fd00::1", "fd00::1", None, None),
        ("ssh://ops@gate:2222/", "gate", "ops", 2222),
    ],
)
def test_a_hop_is_taken_apart(text: str, host: str, user: str | None, port: int | None) -> None:
    assert jump(text) == (host, Ssh(user=user, port=port))
