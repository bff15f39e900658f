"""How the engine's own command line is started on a box: from a venv, or in a container with host networking."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleetctl.spec.fleet_model import Container, Venv

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


def binary(launch: Venv | Container) -> str | None:
    """Path of the program that has to exist on the box; None for a container."""
    return f"{launch.venv.rstrip('/')}/bin/vllm" if isinstance(launch, Venv) else None


def start_from(
    launch: Venv | Container,
    arguments: Sequence[str],
    *,
    unit: str,
    weights: str,
    variables: Iterable[str],
    memory_max: int,
    stop_limit: float,
    loras: str | None = None,
) -> Launch:
    """Command lines for ``vllm ARGUMENTS``.

    ``variables`` are names of variables that the unit has in its environment and the engine must see: a container gets
    them by name, so that no value shows in a command line. ``memory_max`` is in bytes, ``stop_limit`` in seconds.
    ``loras`` is the folder of adapters that the engine reads, if it does.
    """
    if isinstance(launch, Venv):
        # Compilers that engines start (ninja, nvcc) are found as in a shell with the venv active.
        path = f"{launch.venv.rstrip('/')}/bin:{_SYSTEM_PATH}"
        return Launch((f"{launch.venv.rstrip('/')}/bin/vllm", *arguments), {"PATH": path, "VIRTUAL_ENV": launch.venv})
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
    if loras is not None:
        run += ["--mount", f"type=bind,source={loras},target={loras},readonly"]
    run += ["--mount", f"type=bind,source={CACHE_FOLDER},target={CACHE_FOLDER}"]
    known = list(variables)
    caches = {name: path for name, path in _CACHES.items() if name not in known}
    run += [word for variable in [*caches, *known] for word in ("-e", variable)]
    run += [*launch.options, "--entrypoint", "vllm", launch.image, *arguments]
    stop = (program, "stop", "-t", str(round(stop_limit)), name)
    return Launch(tuple(run), caches, stop, (program, "rm", "-f", name))
