"""Run one command of the host and turn its failure into a LabError that names it."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

from fleetctl.errors import LabError


def run(argv: Sequence[str], *, doing: str, input: str | None = None) -> str:
    """Standard output of ``argv``; LabError saying what was being done, the command and its last words."""
    try:
        result = subprocess.run(
            list(argv),
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        raise LabError(f"{doing}: the command {argv[0]} is not there", hint="Check PATH.") from None
    if result.returncode != 0:
        last = "\n".join((result.stderr.strip() or result.stdout.strip()).splitlines()[-5:])
        raise LabError(f"{doing}: `{shlex.join(argv)}` ended with {result.returncode}: {last}")
    return result.stdout
