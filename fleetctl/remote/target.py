"""Where and how to reach a box: fleet.yaml's ``ssh:`` over the operator's OpenSSH configuration.

``ssh -G`` does the reading, so Include, Match, tokens and defaults are those of the operator's own ssh.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from fleetctl.errors import BoxError
from fleetctl.spec.fleet import Ssh

CONFIG_VARIABLE = "FLEETCTL_SSH_CONFIG"  # path of a configuration to use in place of ~/.ssh/config, as with ssh -F
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")


@dataclass(frozen=True)
class Target:
    """One SSH server and everything needed to log in there."""

    alias: str
    host: str
    port: int
    user: str
    keys: tuple[Path, ...]
    only_keys: bool
    agent: str | None
    known_hosts: tuple[Path, ...]
    global_known_hosts: tuple[Path, ...]
    known_as: str
    accept_new: bool
    hash_known_hosts: bool
    proxy_jump: tuple[str, ...]
    proxy_command: str | None
    connect_timeout: float | None
    family: int
    bind: str | None

    def where(self) -> str:
        """The server as an operator would type it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}" if self.port == 22 else f"{self.user}@{host}:{self.port}"

    def through(self, jumps: tuple[str, ...]) -> Target:
        """The same server behind these jump hosts in place of its own."""
        return replace(self, proxy_jump=jumps, proxy_command=None)


def resolve(box: str, host: str, ssh: Ssh, *, config: Path | None = None) -> Target:
    """Work out how to reach ``host`` (an address, name or alias).

    ``config`` stands in for the operator's configuration files. Raises BoxError naming ``box`` where the configuration
    cannot be read.
    """
    if config is None and os.environ.get(CONFIG_VARIABLE):
        config = Path(os.environ[CONFIG_VARIABLE])
    binary = shutil.which("ssh")
    options = _by_ssh(binary, box, host, ssh, config) if binary else _by_paramiko(box, host, ssh, config)
    return _target(host, ssh, options)


def jump(spec: str) -> tuple[str, Ssh]:
    """Take one hop of ProxyJump (``[user@]host[:port]`` or ``ssh://…``) apart."""
    text = spec.strip().removeprefix("ssh://").rstrip("/")
    user, at, place = text.rpartition("@")
    bracketed = re.fullmatch(r"\[(.+)\](?::(\d+))?", place)
    plain = re.fullmatch(r"([^:]+):(\d+)", place)
    found = bracketed or plain
    host, port = (found.group(1), found.group(2)) if found else (place, None)
    return host, Ssh(user=user if at else None, port=int(port) if port else None)


def _by_ssh(binary: str, box: str, host: str, ssh: Ssh, config: Path | None) -> dict[str, list[str]]:
    argv = [binary, "-G", "-T"]
    if config is not None:
        argv += ["-F", str(config)]
    if ssh.user is not None:
        argv += ["-l", ssh.user]
    if ssh.port is not None:
        argv += ["-p", str(ssh.port)]
    try:
        done = subprocess.run(
            [*argv, "--", host],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BoxError(box, f"cannot read the SSH configuration for {host}: {error}") from error
    if done.returncode != 0:
        raise BoxError(
            box,
            f"ssh refuses its configuration for {host}: {done.stderr.strip() or done.returncode}",
            hint=f"see: ssh -G {host}",
        )
    options: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        options.setdefault(key.lower(), []).append(value.strip())
    return options


def _by_paramiko(box: str, host: str, ssh: Ssh, config: Path | None) -> dict[str, list[str]]:
    """Read the configuration where there is no ssh: without Include, as paramiko does not know it."""
    from fleetctl.remote.library import paramiko

    path = config or _home() / ".ssh" / "config"
    reader = paramiko.SSHConfig()
    try:
        if path.exists():
            with path.open() as file:
                reader.parse(file)
        found = reader.lookup(host)
    except (OSError, paramiko.SSHException) as error:
        raise BoxError(box, f"cannot read the SSH configuration {path}: {error}") from error
    options = {key.lower(): list(value) if isinstance(value, list) else [value] for key, value in found.items()}
    for key in ("user", "port"):
        given = getattr(ssh, key)
        if given is not None:
            options[key] = [str(given)]
    return options


def _target(host: str, ssh: Ssh, options: dict[str, list[str]]) -> Target:
    def first(key: str, default: str = "") -> str:
        return options.get(key, [default])[0]

    def yes(key: str) -> bool:
        return first(key).lower() in ("yes", "true")

    name = first("hostname", host)
    port = int(first("port", "22"))
    user = first("user") or pwd.getpwuid(os.getuid()).pw_name
    alias = first("hostkeyalias").lower()
    tokens = {
        "%": "%",
        "d": str(_home()),
        "h": name,
        "k": alias or host,
        "l": socket.gethostname(),
        "n": host,
        "p": str(port),
        "r": user,
        "u": pwd.getpwuid(os.getuid()).pw_name,
        "i": str(os.getuid()),
    }

    def paths(values: list[str]) -> tuple[Path, ...]:
        words = [word for word in values if word not in ("", "none")]
        return tuple(_path(_expanded(word, tokens)) for word in words)

    if ssh.key is not None:
        keys: tuple[Path, ...] = (_path(ssh.key),)
    else:
        keys = paths(options.get("identityfile", [])) or tuple(_home() / ".ssh" / key for key in _DEFAULT_KEYS)
    user_files = paths(first("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2").split())
    agent = first("identityagent", "SSH_AUTH_SOCK")
    jumps = tuple(hop for hop in first("proxyjump").split(",") if hop.strip() and hop != "none")
    command = first("proxycommand")
    limit = first("connecttimeout", "none")
    bind = first("bindaddress", "none")
    return Target(
        alias=host,
        host=name,
        port=port,
        user=user,
        keys=keys,
        only_keys=ssh.key is not None or yes("identitiesonly"),
        agent=_agent(agent, tokens),
        known_hosts=(_path(ssh.known_hosts),) if ssh.known_hosts is not None else user_files,
        global_known_hosts=paths(first("globalknownhostsfile", "/etc/ssh/ssh_known_hosts").split()),
        known_as=alias or (name.lower() if port == 22 else f"[{name.lower()}]:{port}"),
        accept_new=first("stricthostkeychecking").lower() in ("accept-new", "no", "off", "false"),
        hash_known_hosts=yes("hashknownhosts"),
        proxy_jump=jumps,
        proxy_command=_expanded(command, tokens) if command not in ("", "none") else None,
        connect_timeout=float(limit) if limit.isdigit() else None,
        family=_FAMILIES.get(first("addressfamily"), socket.AF_UNSPEC),
        bind=bind if bind not in ("", "none") else None,
    )


def _home() -> Path:
    """The home folder as ssh sees it, which asks the password database and not $HOME."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir)


def _path(text: str) -> Path:
    return _home() / text[2:] if text.startswith("~/") else Path(text).expanduser()


def _expanded(text: str, tokens: dict[str, str]) -> str:
    return re.sub(r"%(.)", lambda found: tokens.get(found.group(1), found.group(0)), text)


def _agent(value: str, tokens: dict[str, str]) -> str | None:
    if value == "none":
        return None
    if value == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if value.startswith("$"):
        return os.environ.get(value.strip("${}")) or None
    return str(_path(_expanded(value, tokens)))
