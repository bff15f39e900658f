"""How an engine's program is asked which flags it knows: the same program, from the same place, with --help. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetctl.engine.runtimes.runtime import Runtime
from fleetctl.render.launch import binary
from fleetctl.spec.fleet_model import Container, Start, Venv

# Wide and plain: a table cuts long names where the terminal is narrow.
WIDE = {"COLUMNS": "300", "TERMINAL_WIDTH": "300", "NO_COLOR": "1"}
LIMIT = 120.0
"""Seconds; vLLM takes ten to import what its flags come from, and more on a slow disk."""


def help_question(start: Start, runtime: Runtime, environment: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of the op ``program_help`` for a launch; ``environment`` is that of the engine, without secrets."""
    if isinstance(start, Container):
        first, *rest = runtime.image_program or runtime.program
        run = [f"/usr/bin/{start.engine}", "run", "--rm", "--network", "none", "--entrypoint", first]
        run += ["--cgroups=disabled"] if start.engine == "podman" else []
        begin = [*run, *(word for name in sorted(WIDE) for word in ("-e", name)), start.image, *rest]
    else:
        begin = [str(binary(start, runtime)), *runtime.program[1:]]
    path = {"PATH": f"{start.venv.rstrip('/')}/bin:/usr/local/bin:/usr/bin:/bin"} if isinstance(start, Venv) else {}
    return {
        "argv": [*begin, *runtime.help],
        "binary": binary(start, runtime),
        "image": [start.engine, start.image] if isinstance(start, Container) else None,
        "packages": list(runtime.packages),
        "version": [*begin, *runtime.version] if runtime.version else None,
        "env": {**environment, **path, **WIDE},
        "limit": LIMIT,
    }
