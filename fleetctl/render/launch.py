"""How the engine's own command line is started on a box: from a venv, or in a container with host networking."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleetctl.engine.runtimes.runtime import Runtime
from fleetctl.render.names import BIN_FOLDER, PYTHON
from fleetctl.spec.fleet_model import Container, Program, Start, Venv

CACHE_FOLDER = "/var/cache/fleetctl"
# What engines compile outlives their container, so that the next start need not compile it again.
_CACHES = {
    "VLLM_CACHE_ROOT": f"{CACHE_FOLDER}/vllm",
    "TRITON_CACHE_DIR": f"{CACHE_FOLDER}/triton",
    "FLASHINFER_WORKSPACE_BASE": CACHE_FOLDER,
}
WATCHED_BY = "contained.py"
HUB_HOME = "/root/.cache/huggingface"
_SYSTEM_PATH = "/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CDI = ("--device", "nvidia.com/gpu=all")
# No --group-add render: an image that has no such group would not start, and engines in containers are root.
_AMD = ("--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video")
_INTEL = ("--device", "/dev/dri", "--group-add", "video")


@dataclass(frozen=True)
class Launch:
    """The command lines of one unit; ``stop``, ``remove`` and ``folders`` are for containers."""

    start: tuple[str, ...]
    environment: dict[str, str]
    stop: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    """Folders of the box that have to be there before it starts."""
    scripts: tuple[str, ...] = ()
    """Scripts of ``systemd/`` that it is started by."""
    run: tuple[str, ...] = ()
    """The words that run the container, without what watches over it."""


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
    plain: Mapping[str, str],
    variables: Iterable[str],
    memory_max: int,
    stop_limit: float,
    loras: str | None = None,
    sockets: str | None = None,
) -> Launch:
    """Command lines for the runtime's program (``vllm``) with ``arguments``.

    ``variables`` are names of variables that the unit has in its environment and the engine must see: a container gets
    them by name, so that no value shows in a command line; ``plain`` has the values of those that are no secrets.
    ``memory_max`` is in bytes, ``stop_limit`` in seconds. ``loras`` is the folder of adapters that the engine reads, if
    it does, and ``sockets`` the one in which it makes its Unix socket.
    """
    if isinstance(launch, Program):
        return Launch((launch.program, *runtime.program[1:], *arguments), {"PATH": _SYSTEM_PATH})
    if isinstance(launch, Venv):
        # Compilers that engines start (ninja, nvcc) are found as in a shell with the venv active.
        folder = f"{launch.venv.rstrip('/')}/bin"
        words = (f"{folder}/{runtime.program[0]}", *runtime.program[1:], *arguments)
        return Launch(words, {"PATH": f"{folder}:{_SYSTEM_PATH}", "VIRTUAL_ENV": launch.venv})
    program, name = f"/usr/bin/{launch.engine}", unit.removesuffix(".service")
    hub = None if weights.startswith("/") or _mounts(launch.options, hub_folder(plain)) else hub_folder(plain)
    known = list(variables)
    added = {name: path for name, path in _CACHES.items() if name not in known}
    if hub == HUB_HOME:
        added["HF_HOME"] = HUB_HOME  # whoever the image's user is: the same folder as on the box
    run = [program, "run", "--rm", "--init", "--pull=never", "--name", name, "--network", "host", "--ipc", "host"]
    run += _of_engine(launch, name, memory_max)
    run += _gpus(launch)
    if weights.startswith("/"):
        run += _mount(weights_root(weights), read_only=True)
    if hub is not None:
        run += _mount(hub, read_only=_offline(plain))
    if loras is not None:
        run += _mount(loras, read_only=True)
    if sockets is not None:
        run += _mount(sockets)
    run += _mount(CACHE_FOLDER)
    run += [word for variable in [*added, *known] for word in ("-e", variable)]
    words = runtime.image_program or runtime.program
    run += [*launch.options, "--entrypoint", words[0], launch.id or launch.image, *words[1:], *arguments]
    stop = (program, "stop", "-t", str(round(stop_limit)), name)
    start = (*_watched(name), *run) if launch.engine == "podman" else tuple(run)
    scripts = (WATCHED_BY,) if launch.engine == "podman" else ()
    return Launch(
        start, added, stop, _remove(launch, program, name), (hub,) if hub is not None else (), scripts, tuple(run)
    )


def _watched(name: str) -> tuple[str, ...]:
    return PYTHON, f"{BIN_FOLDER}/{WATCHED_BY}", _pidfile(name)


def _pidfile(name: str) -> str:
    return f"/run/{name}.pid"


def _of_engine(launch: Container, name: str, memory_max: int) -> list[str]:
    if launch.engine == "podman":
        # Its processes stay in the unit's control group, where MemoryMax= and KillMode= reach them, have the limits of
        # the unit, and write to the journal themselves: with a log driver of Podman's every line would be there twice.
        # Weights are not labelled anew for SELinux: others may read them too.
        words = ["--cgroups=disabled", "--ulimit=host", "--log-driver=passthrough", "--sdnotify=ignore", "--replace"]
        return [*words, "--security-opt", "label=disable", "--pidfile", _pidfile(name)]
    # Docker's containers are children of its daemon: what the unit sets is told once more. The same for both is no swap
    # for it, as MemorySwapMax=0 of the unit is elsewhere. The log is what `docker run` passes on to the journal.
    words = ["--ulimit", "nofile=1048576:1048576", "--ulimit", "memlock=-1:-1", "--log-driver=none"]
    return [*words, "--memory", str(memory_max), "--memory-swap", str(memory_max)]


def _remove(launch: Container, program: str, name: str) -> tuple[str, ...]:
    """What is left of a container of this name goes at once: nobody waits for its answers."""
    if launch.engine == "podman":
        return (program, "rm", "--force", "--ignore", "--time", "0", name)
    return (program, "rm", "--force", name)


def _gpus(launch: Container) -> tuple[str, ...]:
    if any(re.match(r"--(gpus|device)(=|$)", option) for option in launch.options):
        return ()
    nvidia = _CDI if launch.engine == "podman" else ("--gpus", "all")
    return {"nvidia": nvidia, "amd": _AMD, "intel": _INTEL, "none": ()}[launch.gpus]


def weights_root(weights: str) -> str:
    """What has to be mounted to read weights.

    A snapshot in a hub's cache is links to files beside it, and of a .gguf in several files the first one is named.
    """
    found = re.fullmatch(r"(/.*?/models--[^/]+)/snapshots/.+", weights)
    parts = re.fullmatch(r"(/.+)/[^/]+-\d{5}-of-\d{5}\.gguf", weights)
    return found[1] if found else parts[1] if parts else weights


def hub_folder(plain: Mapping[str, str]) -> str:
    """Where the hub's client of an engine with this environment keeps what it fetched."""
    cache = plain.get("HF_HUB_CACHE") or plain.get("HUGGINGFACE_HUB_CACHE") or plain.get("HF_HOME")
    if not cache and plain.get("XDG_CACHE_HOME"):
        cache = f"{plain['XDG_CACHE_HOME'].rstrip('/')}/huggingface"
    return cache or HUB_HOME


def _offline(plain: Mapping[str, str]) -> bool:
    """The engine fetches nothing itself, so that it need not write either."""
    return plain.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _mount(path: str, *, read_only: bool = False) -> tuple[str, str]:
    return "--mount", f"type=bind,source={path},target={path}{',readonly' if read_only else ''}"


def _mounts(options: Iterable[str], path: str) -> bool:
    """Options that put something at a path themselves."""
    return any(re.search(rf"(:|(target|dst|destination)=){re.escape(path)}/?([:,]|$)", option) for option in options)
