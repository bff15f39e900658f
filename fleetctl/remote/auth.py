"""Logging in: the agent's keys and key files, in an order that spends few of the server's tries."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fleetctl.errors import BoxError
from fleetctl.remote.library import UnknownKeyType, paramiko
from fleetctl.remote.target import Target

AskPassphrase = Callable[[Path], str]

_AGENT_SILENCE = 10.0  # seconds; an agent that asks its user to confirm needs some


def authenticate(
    box: str,
    transport: paramiko.Transport,
    target: Target,
    ask_passphrase: AskPassphrase | None,
    ask_login: Callable[[str], str] | None = None,
) -> None:
    """Log in on a verified transport. Raises BoxError that lists what was tried.

    ``ask_login`` is asked for a password where no key is taken and the server takes one.
    """
    tried: list[str] = []
    for label, key in _candidates(target, ask_passphrase, tried):
        tried.append(label)
        try:
            missing = transport.auth_publickey(target.user, key)
        except paramiko.BadAuthenticationType as error:
            if ask_login is not None and _takes_password(error.allowed_types):
                break
            raise BoxError(
                box,
                f"{target.where()} does not take keys, only: {', '.join(error.allowed_types)}",
                hint="fleetctl logs in with keys; see PubkeyAuthentication in sshd_config on the box",
            ) from error
        except (paramiko.SSHException, OSError, EOFError, ValueError) as error:
            if not transport.is_active():
                tried.append("then the server closed the connection: it allows no more tries (MaxAuthTries)")
                break
            if not isinstance(error, paramiko.AuthenticationException):
                tried[-1] += f" ({error})"
            continue
        if not missing:
            return
        raise BoxError(
            box, f"{target.where()} wants {' or '.join(missing)} besides the key, which fleetctl cannot give"
        )
    if ask_login is not None and transport.is_active() and _takes_password(_allowed(transport, target.user)):
        _by_password(box, transport, target, ask_login)
        return
    raise BoxError(
        box,
        f"{target.where()} refuses every key: tried {'; '.join(tried) or 'none, as there is none'}",
        hint=f"make this work first: {_by_hand(target)}",
    )


def _takes_password(allowed: Iterable[str]) -> bool:
    return bool({"password", "keyboard-interactive"} & set(allowed))


def _allowed(transport: paramiko.Transport, user: str) -> list[str]:
    """What the server takes now."""
    try:
        transport.auth_none(user)
    except paramiko.BadAuthenticationType as error:
        return list(error.allowed_types)
    except (paramiko.SSHException, OSError, EOFError):
        return []
    return []


def _by_password(box: str, transport: paramiko.Transport, target: Target, ask_login: Callable[[str], str]) -> None:
    """Raises BoxError when the password is refused, or is not all that the server wants."""
    try:
        missing = transport.auth_password(target.user, ask_login(target.where()))
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise BoxError(box, f"{target.where()} refuses the password: {error}") from error
    if missing:
        raise BoxError(box, f"{target.where()} wants {' or '.join(missing)} besides the password")


def _by_hand(target: Target) -> str:
    """The ssh command that does the same."""
    port = f"-p {target.port} " if target.port != 22 else ""
    key = f"-i {target.keys[0]} " if target.only_keys and len(target.keys) == 1 else ""
    return f"ssh {key}{port}{target.user}@{target.alias}"


def _candidates(
    target: Target, ask_passphrase: AskPassphrase | None, notes: list[str]
) -> Iterator[tuple[str, paramiko.PKey]]:
    """Keys to try, best first; what cannot be used is told in ``notes``."""
    files = [path for path in dict.fromkeys(target.keys) if path.is_file()]
    if target.only_keys and not files:
        notes.extend(f"{path} (no such file)" for path in target.keys)
    held = {key.asbytes(): key for key in _agent_keys(target, notes)}
    in_agent = {path: held.pop(blob) for path in files if (blob := _public(path)) in held}
    for path, key in in_agent.items():
        yield f"{path} (from the agent)", key
    protected: list[Path] = []
    for path in files:
        if path in in_agent:
            continue
        loaded = _load(path, None, notes, protected)
        if loaded is not None:
            yield str(path), loaded
    if not target.only_keys:
        for key in held.values():
            yield f"{key.comment or key.get_name()} (from the agent)", key
    for path in protected:
        if ask_passphrase is None:
            notes.append(f"{path} (has a passphrase and is not in the agent; see ssh-add)")
            continue
        loaded = _load(path, ask_passphrase(path), notes, protected)
        if loaded is not None:
            yield str(path), loaded


class _Agent(paramiko.Agent):
    """The agent at a path of our choice; paramiko's own looks at SSH_AUTH_SOCK alone."""

    def __init__(self, path: str) -> None:
        paramiko.agent.AgentSSH.__init__(self)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_AGENT_SILENCE)
        connection.connect(path)
        self._connect(connection)  # type: ignore[attr-defined]


def _agent_keys(target: Target, notes: list[str]) -> tuple[paramiko.AgentKey, ...]:
    if target.agent is None:
        return ()
    try:
        return _Agent(target.agent).get_keys()
    except (OSError, paramiko.SSHException) as error:
        notes.append(f"the agent at {target.agent} ({error})")
        return ()


def _public(path: Path) -> bytes:
    """The public key beside a private one, or nothing; it tells which key of the agent belongs to the file."""
    from base64 import b64decode

    try:
        words = Path(f"{path}.pub").read_text().split()
        return b64decode(words[1])
    except (OSError, ValueError, IndexError):
        return b""


def _load(path: Path, passphrase: str | None, notes: list[str], protected: list[Path]) -> paramiko.PKey | None:
    try:
        # cryptography wants bytes where paramiko's hints say str
        return paramiko.PKey.from_path(path, passphrase.encode() if passphrase else None)  # type: ignore[arg-type]
    except (paramiko.PasswordRequiredException, TypeError):
        protected.append(path)
    except PermissionError:
        notes.append(f"{path} (not readable)")
    except (paramiko.SSHException, UnknownKeyType, ValueError, OSError) as error:
        reason = "wrong passphrase" if passphrase else str(error)
        notes.append(f"{path} ({reason})")
    return None
