"""Family *processes*: engines' processes that nobody looks after, and ports of ours that somebody else has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fleetctl.doctor.finding import Ending, Finding, Kind, Remedy, Severity
from fleetctl.doctor.nvidia import Said, apps_of
from fleetctl.doctor.scene import Family, Scene
from fleetctl.doctor.settled import Settled, cut_off, ports_of, settled
from fleetctl.facts.types import ProcessFacts, Seen
from fleetctl.plan.difference import PROXY_UNIT
from fleetctl.render.names import engine_unit
from fleetctl.spec.units import gib

_C16 = "reports of VLLM::EngineCore and VLLM::Worker_TP0 that held 104277 MiB after SIGKILL of the API server"
_CONTAINER = re.compile(r"(?:docker-|libpod-|crio-|cri-containerd-)?[0-9a-f]{64}\.scope")

LEFT_OVER = Kind(
    "P01",
    Severity.ERROR,
    "A process of an engine was left over",
    "processes that a unit of fleetctl started and whose engine does not run any more, or that are of another layout "
    "or build, with what they hold",
    "It keeps memory of the GPU, or the port, and the next engine cannot start. Its short name is VLLM::EngineCor or "
    "the like, so that a search for python does not find it.",
    "end it: --fix does where its unit is down, and only what fleetctl started",
    _C16,
)
OUTSIDE = Kind(
    "P02",
    Severity.ERROR,
    "An engine was not started by its unit",
    "processes with the FLEETCTL_ENGINE of the live layout that are not in the control group of its unit",
    "systemd does not see it end, does not stop it with the unit, and does not hold it to its memory limit.",
    "stop it by hand where it was started, then `fleetctl apply`",
    "systemd.kill(5), FLEETCTL_ENGINE in the units of fleetctl",
)
BY_HAND = Kind(
    "P03",
    Severity.WARNING,
    "An engine runs that fleetctl did not start",
    "vLLM, SGLang and llama.cpp processes without FLEETCTL_ENGINE that no service of the system has started: from a "
    "shell, a container, or left over from before fleetctl",
    "It takes memory that the layout was given. fleetctl never ends what it did not start.",
    "stop it where it was started, or raise reserve: by what it takes",
    _C16,
)
PORT = Kind(
    "P04",
    Severity.ERROR,
    "A port of ours is somebody else's",
    "ports of the live layout's engines, of its proxy and of its pool's programs that another process listens on",
    "Ours cannot start, or requests meant for it go to something else.",
    "stop what has the port, or give the engine another `port:` in fleet.yaml",
    "ss(8), EADDRINUSE",
)
KINDS = (LEFT_OVER, OUTSIDE, BY_HAND, PORT)


def size(number: int) -> str:
    """Bytes in words: GiB, or MiB where that would say next to nothing."""
    return gib(number) if number >= 2**30 else f"{number / 2**20:.0f} MiB"


class EngineProcess(Seen):
    """A process of an engine; sizes are bytes, ``gpu`` None where it is not known."""

    pid: int
    comm: str
    program: str = ""
    engine: str | None = None
    unit: str | None = None
    group: str = ""
    parent: int = 0
    parent_comm: str = ""
    started: int = 0
    resident: int = 0
    gpu: int | None = None

    @property
    def of_user(self) -> bool:
        """Somebody's session or user service has it: a person started it."""
        return "user.slice" in self.group or "/user@" in self.group or (self.unit or "").startswith("session-")

    def holds(self) -> str:
        """What it holds, in words."""
        gpu = f" and {size(self.gpu)} on GPUs" if self.gpu else ""
        return f"{size(self.resident)} of memory{gpu}"

    def line(self) -> str:
        """The process as a line of evidence."""
        return (
            f"pid {self.pid} {self.comm} in {self.unit or self.group or 'no unit'}, parent {self.parent} "
            f"{self.parent_comm}: {self.holds()}".rstrip()
        )


class ProcessesTold(Seen):
    """The whole answer of a box: ``ports`` are those taken, with every process that has them."""

    processes: tuple[EngineProcess, ...] = ()
    ports: dict[int, tuple[int, ...]] = {}
    apps: Said | None = None

    def with_gpus(self) -> tuple[EngineProcess, ...]:
        """The processes, with what the driver says that each holds on GPUs."""
        apps = apps_of(self.apps)
        if apps is None:
            return self.processes
        holds = {app.pid: app.used for app in apps}
        return tuple(one.model_copy(update={"gpu": holds.get(one.pid, 0)}) for one in self.processes)


def wanted_ports(scene: Scene, box: str) -> dict[int, str]:
    """Ports of the live layout on a box, and what each is for."""
    found = ports_of(scene.live, box)
    if scene.live.proxy and box in scene.live.proxy.boxes:
        found[scene.live.proxy.port] = "the proxy"
    for service in scene.live.pool.on(box) if scene.live.pool else ():
        if service.port:
            found[service.port] = {"nats": "NATS", "gateway": "the gateway", "worker": "the worker"}[service.kind]
    return found


def find(scene: Scene, told: Mapping[str, ProcessesTold]) -> Iterator[Finding]:
    """Findings of all boxes; none while a move is under way, or was cut off: what it left over is its own matter."""
    view = settled(scene)
    if view is None or cut_off(scene) is not None:
        return
    for box in told:
        yield from _left_over(view, box, told[box])
        yield from _outside(view, box, told[box])
        yield from _by_hand(view, box, told[box])
        yield from _ports(view, box)


def unit_of(engine: str) -> str:
    """The unit whose processes have this FLEETCTL_ENGINE (LAYOUT/MODEL@DIGEST)."""
    layout, _, rest = engine.partition("/")
    return engine_unit(layout, rest.partition("@")[0])


def _left_over(view: Settled, box: str, told: ProcessesTold) -> Iterator[Finding]:
    """One finding for all processes of an engine. Those in a unit that still runs are that unit's matter."""
    units = view.facts(box).units
    gone = {engine for engine in view.lacks(box).leftovers if unit_of(engine) not in view.unseen}
    for engine in sorted(gone):
        unit = unit_of(engine)
        state = units.get(unit)
        down = state is None or state.down
        left = [p for p in told.with_gpus() if p.engine == engine and not (p.unit == unit and not down)]
        if not left:
            continue
        ports = sorted(port for port, pids in told.ports.items() if set(pids) & {p.pid for p in left})
        also = f" and port {', '.join(map(str, ports))}" if ports else ""
        mine = down and not any(p.of_user for p in left)
        total = sum(p.resident + (p.gpu or 0) for p in left)
        pids = " ".join(str(p.pid) for p in left)
        yield LEFT_OVER.found(
            box,
            engine,
            f"{len(left)} {'process' if len(left) == 1 else 'processes'} of {engine} left over on {box}: "
            f"{size(total)}{also} held",
            *(p.line() for p in left[:8]),
            f"{unit} is {state.active if state else 'not there'}",
            fix=f"kill {pids}" if mine else f"stop it where it was started (kill {pids}), then fleetctl apply",
            remedy=Remedy((), (), tuple(Ending(p.pid, p.started, engine) for p in left)) if mine else None,
        )


def _outside(view: Settled, box: str, told: ProcessesTold) -> Iterator[Finding]:
    for unit, (engine, rank) in view.ranks(box).items():
        build = view.build(engine, rank)
        if build in view.lacks(box).leftovers:
            continue
        out = [p for p in told.with_gpus() if p.engine == build and p.unit != unit]
        # A container of Docker's has a control group of its own.
        out = [p for p in out if not (engine.image and p.unit and _CONTAINER.fullmatch(p.unit))]
        if out:
            pids = " ".join(str(p.pid) for p in out)
            yield OUTSIDE.found(
                box,
                build,
                f"processes of {engine.id} run outside {unit} on {box}",
                *(p.line() for p in out[:8]),
                fix=f"stop it where it was started (kill {pids}), then fleetctl apply",
            )


def _by_hand(view: Settled, box: str, told: ProcessesTold) -> Iterator[Finding]:
    live = view.scene.live
    if not (live.ranks_on(box) or live.lodgers_on(box)):
        return  # nothing of fleetctl is in its way
    gone = set(live.superseded.get(box, ()))
    found: dict[str, list[EngineProcess]] = {}
    for p in told.with_gpus():
        of_system = (p.unit or "").endswith(".service") and not p.of_user
        if p.engine is None and not of_system and p.unit not in gone:
            found.setdefault(p.group or str(p.pid), []).append(p)
    for processes in found.values():
        first = processes[0]
        orphans = [p for p in processes if p.parent == 1 and "::" in p.comm]
        left = ", left over from an API server that is gone" if len(orphans) == len(processes) else ""
        yield BY_HAND.found(
            box,
            f"pid {first.pid}",
            f"{first.program or first.comm} (pid {first.pid}) is an engine that fleetctl did not start{left}",
            *(p.line() for p in processes[:8]),
            fix=f"stop it where it was started (kill {' '.join(str(p.pid) for p in processes)}); if it shall stay, "
            f"raise reserve: of {box} by what it takes",
        )


def _ports(view: Settled, box: str) -> Iterator[Finding]:
    wanted = wanted_ports(view.scene, box)
    for port, owner in taken_ports(view, box).items():
        what, who = wanted[port], str(owner) if owner.pid else "a process that cannot be told"
        unit = owner.unit if owner.unit and owner.unit.endswith(".service") else None
        yield PORT.found(
            box,
            f"port {port}",
            f"port {port} of {box}, for {what}, belongs to {who}",
            f"LISTEN {port}: {who}",
            fix=f"systemctl disable --now {unit}, then fleetctl apply"
            if unit
            else f"ss -ltnp 'sport = :{port}' shows it; stop it, then fleetctl apply",
        )


def taken_ports(view: Settled, box: str) -> dict[int, ProcessFacts]:
    """Ports of the live layout that something else has on a box, with their owners."""
    facts, live = view.facts(box), view.scene.live
    ours = {*facts.ours, *view.ranks(box), *view.unseen}
    owners = {port: facts.ports[port] for port in wanted_ports(view.scene, box) if port in facts.ports}
    return {
        port: owner
        for port, owner in owners.items()
        if not owner.engine and not _allowed(owner, ours, live.superseded.get(box, ()), view, box)
    }


def _allowed(owner: ProcessFacts, ours: set[str], superseded: tuple[str, ...], view: Settled, box: str) -> bool:
    """A unit of ours has it (which one runs is another matter), one that was replaced, or a container of ours."""
    in_container = bool(owner.unit and _CONTAINER.fullmatch(owner.unit))
    containers = any(engine.image for engine, _ in view.ranks(box).values())
    return owner.unit in ours | set(superseded) | {PROXY_UNIT} or (in_container and containers)


def ask(scene: Scene, box: str) -> dict[str, Any]:
    """Ports that the box is to look at."""
    return {"ports": sorted(wanted_ports(scene, box))}


PROCESSES = Family("processes", KINDS, find, ProcessesTold, "examine_processes", ask)
