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
        return image_question(start.engine, start.id or start.image, runtime)
    path = {"PATH": f"{start.venv.rstrip('/')}/bin:/usr/local/bin:/usr/bin:/bin"} if isinstance(start, Venv) else {}
    begin = [str(binary(start, runtime)), *runtime.program[1:]]
    return _question(begin, runtime, {**environment, **path, **WIDE}, binary=binary(start, runtime))


def image_question(engine: str, image: str, runtime: Runtime) -> dict[str, Any]:
    """The same for an image: a container of it without network and GPUs prints the help and is gone."""
    first, *rest = runtime.image_program or runtime.program
    run = [f"/usr/bin/{engine}", "run", "--rm", "--pull=never", "--network", "none", "--entrypoint", first]
    run += ["--cgroups=disabled", "--security-opt", "label=disable"] if engine == "podman" else []
    begin = [*run, *(word for name in sorted(WIDE) for word in ("-e", name)), image, *rest]
    return _question(begin, runtime, dict(WIDE), image=[engine, image])


def _question(
    begin: list[str],
    runtime: Runtime,
    environment: dict[str, str],
    *,
    binary: str | None = None,
    image: list[str] | None = None,
) -> dict[str, Any]:
    return {
        "argv": [*begin, *runtime.help],
        "binary": binary,
        "image": image,
        "packages": list(runtime.packages),
        "version": [*begin, *runtime.version] if runtime.version and image is None else None,
        "env": environment,
        "limit": LIMIT,
    }


def engine_words_of(words: tuple[str, ...], runtime: Runtime) -> tuple[str, ...]:
    """The engine's own words among those that run its container: they follow the image and its program's words."""
    begin = words.index("--entrypoint") + 3
    return words[begin + len((runtime.image_program or runtime.program)[1:]) :]
