"""The host key a server shows: known, new or changed, and what to tell the operator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fleetctl.errors import BoxError
from fleetctl.remote import known_hosts
from fleetctl.remote.target import Target

_SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}  # how a key of the type may sign


def preferred(target: Target, algorithms: list[str]) -> list[str]:
    """Put the key types that are known for the server first, so that it shows the key that can be checked."""
    kinds = known_hosts.kinds(_files(target), target.known_as)
    known = [name for kind in kinds for name in _SIGNATURES.get(kind, (kind,)) if name in algorithms]
    return known + [name for name in algorithms if name not in known]


def verify(
    box: str,
    target: Target,
    kind: str,
    blob: bytes,
    *,
    accept_new: bool,
    confirm: Callable[[str], str] | None = None,
) -> None:
    """Return if the key is known (or new and to be accepted, which adds it). Raises BoxError otherwise.

    ``confirm`` is asked whether a new key is right, with its fingerprint, where it is not accepted anyway.
    """
    finding = known_hosts.check(_files(target), target.known_as, blob)
    shown = known_hosts.fingerprint(blob)
    name = target.known_as
    if finding.verdict == "known":
        return
    if finding.entry is not None and finding.verdict == "revoked":
        raise BoxError(
            box,
            f"the host key of {name} is revoked: {kind} {shown} ({finding.entry.path}:{finding.entry.line})",
            hint="give the box a new host key; this one is not to be trusted",
        )
    if finding.entry is not None:
        entry = finding.entry
        raise BoxError(
            box,
            f"THE HOST KEY OF {name} HAS CHANGED. Somebody may be listening in, or the box was installed anew.\n"
            f"  it shows  {kind} {shown}\n"
            f"  known is  {entry.kind} {known_hosts.fingerprint(entry.blob)} ({entry.path}:{entry.line})",
            hint=f"if you know why it changed: ssh-keygen -R '{name}' -f {entry.path}, then connect once with "
            "--accept-new-host-keys",
        )
    if not accept_new and confirm is not None:
        accept_new = confirm(f"{box}: the host key of {name} is not known yet: {kind} {shown}") == "yes"
    if not accept_new:
        raise BoxError(
            box,
            f"the host key of {name} is not known: {kind} {shown}",
            hint="compare it with the box's own (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub there), then repeat "
            "with --accept-new-host-keys",
        )
    if not target.known_hosts:
        return  # UserKnownHostsFile none: the operator does not want new keys kept
    try:
        known_hosts.add(target.known_hosts[0], name, kind, blob, hashed=target.hash_known_hosts)
    except OSError as error:
        raise BoxError(box, f"cannot add the host key to {target.known_hosts[0]}: {error.strerror}") from error


def _files(target: Target) -> list[Path]:
    return [*target.known_hosts, *target.global_known_hosts]
