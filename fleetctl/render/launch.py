"""How the engine's own command line is started on a box: from a venv, or in a container with host networking."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleetctl.engine.runtimes.runtime import Runtime
from fleetctl.spec.fleet_model import Program, Start, Venv

CACHE_FOLDER = "/var/cache/fleetctl"
# What engines compile outlives their container, so that the next start need not compile it again.
_CACHES = {
    "VLLM_CACHE_ROOT": f"{CACHE_FOLDER}/vllm",
    "TRITON_CACHE_DIR": f"{CACHE_FOLDER}/triton",
    "FLASHINFER_WORKSPACE_BASE": CACHE_FOLDER,
}
_SYSTEM_PATH = "/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Launch:
    """The command lines of one unit; ``stop`` and ``remove`` are for containers."""

    start: tuple[str, ...]
    environment: dict[str, str]
    stop: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


def binary(launch: Start, runtime: Runtime) -> str | None:
    """Path of the program that has to exist on the box; None for a container."""
    if isinstance(launch, Program):
        return launch.program
    return f"{launch.venv.rstrip('/')}/bin/{runtime.program[0]}" if isinstance(launch, Venv) else None


def start_from(
    launch: Start,
    runtime: Runtime,
    arguments: Sequence[str],
    *,
    unit: str,
    weights: str,
    variables: Iterable[str],
    memory_max: int,
    stop_limit: float,
) -> Launch:
    """Command lines for the runtime's program (``vllm``) with ``arguments``.

    ``variables`` are names of variables that the unit has in its environment and the engine must see: a container gets
    them by name, so that no value shows in a command line. ``memory_max`` is in bytes, ``stop_limit`` in seconds.
    """
    if isinstance(launch, Program):
        return Launch((launch.program, *runtime.program[1:], *arguments), {"PATH": _SYSTEM_PATH})
    if isinstance(launch, Venv):
        # Compilers that engines start (ninja, nvcc) are found as in a shell with the venv active.
        folder = f"{launch.venv.rstrip('/')}/bin"
        words = (f"{folder}/{runtime.program[0]}", *runtime.program[1:], *arguments)
        return Launch(words, {"PATH": f"{folder}:{_SYSTEM_PATH}", "VIRTUAL_ENV": launch.venv})
    program, name = f"/usr/bin/{launch.engine}", unit.removesuffix(".service")
    run = [program, "run", "--rm", "--init", "--name", name, "--network", "host", "--ipc", "host"]
    run += ["--ulimit", "nofile=1048576:1048576", "--ulimit", "memlock=-1:-1"]
    if launch.engine == "podman":
        # The container's processes stay in the unit's control group, where MemoryMax= and KillMode= reach them.
        run += ["--cgroups=disabled", "--replace"]
    else:
        # The same for both is no swap for it, as MemorySwapMax=0 of the unit is elsewhere.
        run += ["--memory", str(memory_max), "--memory-swap", str(memory_max)]
    if weights.startswith("/"):
        run += ["--mount", f"type=bind,source={weights},target={weights},readonly"]
    run += ["--mount", f"type=bind,source={CACHE_FOLDER},target={CACHE_FOLDER}"]
    known = list(variables)
    caches = {name: path for name, path in _CACHES.items() if name not in known}
    run += [word for variable in [*caches, *known] for word in ("-e", variable)]
    words = runtime.image_program or runtime.program
    run += [*launch.options, "--entrypoint", words[0], launch.image, *words[1:], *arguments]
    stop = (program, "stop", "-t", str(round(stop_limit)), name)
    return Launch(tuple(run), caches, stop, (program, "rm", "-f", name))
