"""Starting and stopping engines: systemd's units."""

from __future__ import annotations

import asyncio
from typing import Protocol

from fleetctl.errors import FleetError


class UnitError(FleetError):
    """A unit does not start or stop."""


class Units(Protocol):
    """What starts and stops engines."""

    async def start(self, unit: str) -> None:
        """Start it; returns when its process runs, not when it is ready. Raises UnitError."""

    async def stop(self, unit: str, limit: float) -> None:
        """Stop it; returns when its processes have ended, within ``limit`` seconds. Raises UnitError."""

    async def is_active(self, unit: str) -> bool:
        """Whether it runs, or systemd is about to start it again."""


class Systemd:
    """Through ``systemctl``. The worker's user needs leave to manage these units; root has it."""

    async def start(self, unit: str) -> None:
        """As the protocol has it; counts of failed starts are forgotten first, so that a limit of systemd's does not
        refuse what the worker has waited long enough for."""
        await _systemctl("reset-failed", unit)
        # Not until it has started: a unit of Type=notify would keep the job waiting for as long as its load takes.
        status, said = await _systemctl("start", "--no-block", unit)
        if status:
            raise UnitError(f"{unit} cannot be started: {said}", hint=f"journalctl -u {unit}")

    async def stop(self, unit: str, limit: float) -> None:
        """As the protocol has it."""
        try:
            async with asyncio.timeout(limit):
                status, said = await _systemctl("stop", unit)
        except TimeoutError:
            await _systemctl("kill", "--signal=SIGKILL", unit)
            raise UnitError(f"{unit} did not stop within {limit:g} s, so it was killed") from None
        if status:
            raise UnitError(f"{unit} cannot be stopped: {said}", hint=f"journalctl -u {unit}")

    async def is_active(self, unit: str) -> bool:
        """As the protocol has it."""
        _, said = await _systemctl("show", "--property=ActiveState", "--value", unit)
        return said in ("active", "activating", "reloading")


async def _systemctl(*words: str) -> tuple[int, str]:
    try:
        process = await asyncio.create_subprocess_exec(
            "systemctl", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        raise UnitError(f"systemctl cannot be run: {error.strerror}") from None
    try:
        said, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    return process.returncode or 0, said.decode(errors="replace").strip()
