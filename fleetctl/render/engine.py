"""One rank of an engine as files on its box: the unit, its scripts and its secrets."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleetctl.capacity.beside import fit_beside
from fleetctl.engine.runtimes.command import engine_words, served_names, task_of
from fleetctl.engine.runtimes.known import RUNTIMES
from fleetctl.engine.runtimes.runtime import Ask, RankOfMany, Runtime
from fleetctl.errors import SpecError
from fleetctl.render.escape import check_variable, environment_line, exec_line
from fleetctl.render.launch import CACHE_FOLDER, Launch, start_from
from fleetctl.render.names import (
    BIN_FOLDER,
    LOOPBACK,
    LORAS_FOLDER,
    PYTHON,
    UNIT_FOLDER,
    UNIX,
    engine_socket,
    engine_unit,
    engine_units_on,
    secrets_path,
    socket_folder,
)
from fleetctl.render.ports import has_socket, listens_on, rendezvous_port
from fleetctl.render.programs import encoder_bundles, folder_of
from fleetctl.render.release import ContainerRun, File, Rank
from fleetctl.render.template import fill
from fleetctl.resources import root_text
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.fleet_model import Container
from fleetctl.spec.secret import Secret

RESTART_DELAY = 5
BURST = 4
# What systemd allows beyond the limits of the file: the engine's own end comes first.
START_MARGIN = 30
STOP_MARGIN = 15
# Seconds without a word from another rank until an engine counts as broken.
SILENCE = 5

# Lines of [Service] that a running process does not depend on: systemd takes them over at daemon-reload.
_NOT_IN_PROCESS = (
    "Type",
    "NotifyAccess",
    "ExecStartPre",
    "ExecStartPost",
    "ExecStop",
    "ExecStopPost",
    "TimeoutStartSec",
    "TimeoutStopSec",
    "KillMode",
    "KillSignal",
    "Restart",
    "RestartSec",
    "MemoryMax",
    "MemorySwapMax",
)


@dataclass(frozen=True)
class Place:
    """Where one rank of an engine runs."""

    layout: str
    model: str
    box: str
    rank: int
    boxes: tuple[str, ...]
    """Boxes of the whole engine, head first."""
    port: int
    share: float
    """gpu_memory_utilization."""


def render_rank(fleet: Fleet, place: Place) -> tuple[Rank, tuple[File, ...]]:
    """The rank and its files. Raises SpecError for arguments and variables that cannot be used."""
    model, placement = fleet.models[place.model], fleet.layouts[place.layout][place.model]
    unit, box = engine_unit(place.layout, place.model), fleet.boxes[place.box]
    plain, secrets = engine_environment(fleet, place)
    memory_max = box.memory - box.reserve
    socket = socket_of(fleet, place.layout, place.model)
    start = fleet.launch(place.model)
    launch = start_from(
        start,
        runtime_of(fleet, place.model),
        engine_arguments(fleet, place),
        unit=unit,
        weights=model.weights,
        plain=plain,
        variables=seen_variables(plain, secrets, split=len(place.boxes) > 1),
        memory_max=memory_max,
        stop_limit=model.stop_limit,
        loras=loras_folder(place.model) if model.loras else None,
        sockets=f"/run/{socket_folder(place.layout, place.model)}" if socket else None,
    )
    start_timeout = math.ceil(model.load_limit) + START_MARGIN
    stop_timeout = math.ceil(model.stop_limit) + STOP_MARGIN
    split = placement.split is not None
    command = _with_adapters(fleet, place, _under_rank(fleet, place, launch) if split else launch.start)
    foreign = fleet.superseded_on(place.box)
    others = cannot_share(fleet, place)
    values = {
        "layout": place.layout,
        "model": place.model,
        "rank": place.rank,
        "ranks": len(place.boxes),
        "docker": isinstance(start, Container) and start.engine == "docker",
        "container": isinstance(start, Container),
        "conflicts": sorted({*others, *foreign}),
        "after": {*foreign, *(other for other in others if other < unit)},
        "burst": BURST,
        "start_limit_interval": BURST * (start_timeout + stop_timeout + RESTART_DELAY) + 60,
        "environment": [environment_line(*item) for item in {**launch.environment, **plain}.items()],
        "secrets": secrets_path(place.layout, place.model) if secrets else None,
        "runtime_directory": socket_folder(place.layout, place.model) if socket else None,
        "command": exec_line(command),
        "ready": exec_line([PYTHON, f"{BIN_FOLDER}/ready.py", _health(fleet, place)]),
        # A split stops its own container: the other ranks have to hear of it first.
        "stop": exec_line(launch.stop) if launch.stop and not split else None,
        "remove": exec_line(launch.remove) if launch.remove else None,
        "folders": [exec_line(["/usr/bin/mkdir", "-p", folder]) for folder in launch.folders],
        "start_timeout": start_timeout,
        "stop_timeout": stop_timeout,
        "restart_delay": RESTART_DELAY,
        "memory_max": memory_max,
    }
    staying = (*(("rank.py", "rank_peer.py") if split else ()), *launch.scripts)
    scripts = staying if split else ("ready.py", *staying)
    installed = (*scripts, "adapters.py") if model.loras else scripts
    secret_file = _secret_file(place, secrets)
    # ready.py and adapters.py are done with when the engine runs; the others go on as long as the engine does.
    untagged = fill("systemd", "engine.service.j2", tag="", **values)
    digest = _digest(untagged, secret_file, staying)
    tag = environment_line("FLEETCTL_ENGINE", f"{place.layout}/{place.model}@{digest[:12]}")
    files = [
        File(path=f"{UNIT_FOLDER}/{unit}", content=fill("systemd", "engine.service.j2", tag=tag, **values)),
        *(File(path=f"{BIN_FOLDER}/{name}", content=root_text("systemd", name), mode=0o755) for name in installed),
    ]
    folders = (CACHE_FOLDER, *launch.folders, *([loras_folder(place.model)] if model.loras else []))
    container = ContainerRun(words=launch.run, folders=folders) if launch.run else None
    rank = Rank(box=place.box, unit=unit, rank=place.rank, share=place.share, digest=digest, container=container)
    return rank, (*files, secret_file) if secret_file else tuple(files)


def cannot_share(fleet: Fleet, place: Place) -> list[str]:
    """Units of other layouts that must not run beside this one: they want its memory or its ports."""
    mine = listens_on(fleet, place.layout, place.box)
    return [
        unit
        for layout, units in engine_units_on(fleet, place.box).items()
        if layout != place.layout
        and not (
            fit_beside(fleet, place.box, place.layout, layout) and mine.isdisjoint(listens_on(fleet, layout, place.box))
        )
        for unit in units
    ]


def _health(fleet: Fleet, place: Place) -> str:
    """Where ready.py and rank.py ask: a URL, or ``unix:PATH`` for /health there."""
    address = address_of(fleet, place)
    if address.startswith(UNIX):
        return address
    return f"http://{f'[{address}]' if ':' in address else address}:{place.port}/health"


def address_of(fleet: Fleet, place: Place) -> str:
    """Where the head of an engine listens, ``unix:PATH`` for a socket: an engine of a pool is asked by the worker
    beside it, and nobody else."""
    if fleet.layouts[place.layout][place.model].pool is None:
        return fleet.boxes[place.boxes[0]].address
    socket = socket_of(fleet, place.layout, place.model)
    return f"{UNIX}{socket}" if socket else LOOPBACK


def socket_of(fleet: Fleet, layout: str, model: str) -> str:
    """Path of the Unix socket on which the engines of a pool listen; empty: they have a port."""
    return engine_socket(layout, model) if has_socket(fleet, layout, model) else ""


def _link(fleet: Fleet, box: str) -> str:
    return fleet.boxes[box].link or fleet.boxes[box].address


def runtime_of(fleet: Fleet, model: str) -> Runtime:
    """The kind of engine that serves a model."""
    return RUNTIMES[fleet.models[model].runtime]


def engine_arguments(fleet: Fleet, place: Place) -> list[str]:
    """What follows the program (``vllm``) on the command line of a rank. Raises SpecError as the adapter does."""
    runtime = runtime_of(fleet, place.model)
    model, placement = fleet.models[place.model], fleet.layouts[place.layout][place.model]
    per_box = placement.boxes[place.box]
    split = None
    if placement.split is not None:
        master = _link(fleet, place.boxes[0])
        split = RankOfMany(place.rank, len(place.boxes), placement.parallel, master, placement.master_port)
    ask = Ask(
        place.model,
        model,
        task_of(runtime, place.model, model),
        served_names(place.model, model),
        host=fleet.boxes[place.box].address if placement.pool is None else LOOPBACK,
        port=place.port,
        socket=socket_of(fleet, place.layout, place.model),
        concurrency=concurrency(fleet, place.layout, place.model, place.boxes[0] if split else place.box),
        share=place.share,
        cache=per_box.kv_cache_memory,
        split=split,
        extra=(model.arguments, placement.arguments, per_box.arguments),
    )
    return engine_words(runtime, ask)


def concurrency(fleet: Fleet, layout: str, model: str, box: str) -> int:
    """Requests that the engine whose head is on ``box`` takes at once."""
    placement = fleet.layouts[layout][model]
    own = placement.boxes[box].concurrency
    return own if own is not None else placement.concurrency


def engine_environment(fleet: Fleet, place: Place) -> tuple[dict[str, str], dict[str, Secret]]:
    """Variables in plain, and secret ones; later layers win over earlier ones."""
    model, placement = fleet.models[place.model], fleet.layouts[place.layout][place.model]
    runtime = runtime_of(fleet, place.model)
    layers: list[Mapping[str, str | Secret]] = [runtime.environment, _programs(fleet, place.model)]
    if placement.split is not None and runtime.split_environment is not None:
        layers.append(runtime.split_environment(_link(fleet, place.box), fleet.boxes[place.box].interface))
    if model.loras is not None:
        layers.append(runtime.adapters_environment)
    layers += [model.environment, placement.environment, placement.boxes[place.box].environment]
    merged = {name: value for layer in layers for name, value in layer.items()}
    plain = {name: value for name, value in merged.items() if isinstance(value, str)}
    return plain, {name: value for name, value in merged.items() if not isinstance(value, str)}


def _programs(fleet: Fleet, model: str) -> dict[str, str]:
    """Where an encoder of fleetctl's own is found. Raises SpecError for one in a container, which does not see it."""
    bundles = encoder_bundles(fleet, model)
    if bundles and isinstance(fleet.launch(model), Container):
        raise SpecError(
            f"model {model}: encoder is a program of fleetctl's own, and no image has it",
            hint="write launch: {program: /usr/bin/python3}, or {venv: PATH} with other builds of its libraries",
        )
    return {"PYTHONPATH": ":".join(map(folder_of, bundles))} if bundles else {}


def loras_folder(model: str) -> str:
    """Where a box keeps the adapters of a model."""
    return f"{LORAS_FOLDER}/{model}"


def _with_adapters(fleet: Fleet, place: Place, command: Sequence[str]) -> tuple[str, ...]:
    """The command line, to which the adapters are added that are on the box when the unit starts."""
    if fleet.models[place.model].loras is None:
        return tuple(command)
    return (PYTHON, f"{BIN_FOLDER}/adapters.py", LORAS_FOLDER, place.model, "--", *command)


def seen_variables(plain: Mapping[str, str], secrets: Mapping[str, Secret], *, split: bool) -> Sequence[str]:
    """Names of the variables that an engine has to see besides those of the system."""
    return [*plain, *secrets, "FLEETCTL_ENGINE", *(["FLEETCTL_EPOCH"] if split else [])]


def _under_rank(fleet: Fleet, place: Place, launch: Launch) -> tuple[str, ...]:
    """The engine's command line under rank.py, which makes the ranks one thing."""
    model, placement = fleet.models[place.model], fleet.layouts[place.layout][place.model]
    usual = runtime_of(fleet, place.model).tasks[0]
    told = {"weights_size", "measured", "load_limit", "stop_limit", *(["task"] if model.task in (None, usual) else [])}
    if model.loras is None:
        told.add("loras")  # a split that takes none is the one that it was before there was such a key
    shared = {
        "model": {
            **model.model_dump(mode="json", exclude=told),
            "launch": fleet.launch(place.model).model_dump(mode="json"),
        },
        "placement": placement.model_dump(mode="json", exclude={"split", "concurrency", "pool", "pin", "memory"}),
        "boxes": place.boxes,
    }
    agreed = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:16]
    words = [PYTHON, f"{BIN_FOLDER}/rank.py", "--rank", str(place.rank), "--ranks", str(len(place.boxes))]
    words += ["--head", _link(fleet, place.boxes[0]), "--port", str(rendezvous_port(placement.master_port))]
    words += ["--digest", agreed, "--silence", str(SILENCE)]
    words += ["--load-limit", f"{model.load_limit:g}", "--stop-limit", f"{model.stop_limit:g}"]
    if place.rank == 0:
        words += ["--health", _health(fleet, place)]
    return (*words, "--", *launch.start)


def _secret_file(place: Place, secrets: Mapping[str, Secret]) -> File | None:
    if not secrets:
        return None
    for name in secrets:
        check_variable(name)
    content = "".join(f"{name}=@secret:{name}@\n" for name in secrets)
    path = secrets_path(place.layout, place.model)
    return File(path=path, content=content, mode=0o600, secrets=dict(secrets), quoting="environment")


def _digest(unit: str, secrets: File | None, scripts: Sequence[str]) -> str:
    """SHA-256 over what the running process depends on: not [Unit], nor what daemon-reload takes over."""
    service = unit.partition("[Service]\n")[2].partition("\n[Install]")[0]
    lines = [
        line
        for line in service.splitlines()
        if line and not line.startswith("#") and line.partition("=")[0] not in _NOT_IN_PROCESS
    ]
    parts = [*lines, secrets.sha256() if secrets else "", *(root_text("systemd", name) for name in scripts)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
