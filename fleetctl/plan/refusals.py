"""Why a move cannot be carried out as things are, and what an operator should know before it: pure checks of facts."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fleetctl.facts.types import BoxFacts, Observed
from fleetctl.plan.difference import Difference, has_guard
from fleetctl.plan.firewall import guards, is_foreign, who_is_shut_out
from fleetctl.plan.floating import floating_refusals
from fleetctl.plan.images import image_refusals, image_warnings
from fleetctl.render.names import FIREWALL_UNIT
from fleetctl.render.programs import PYTHON
from fleetctl.render.proxy import endpoint
from fleetctl.render.release import Release
from fleetctl.spec.units import gib

ROOM = 16 * 1024**2  # bytes that /etc/fleetctl and /var/lib/fleetctl need at most for one more generation and journal


def refusals(
    source: Release, target: Release, observed: Observed, difference: Difference, *, lenient: bool = False
) -> list[str]:
    """Everything that stands in the way, one sentence each, with the box and what to do.

    ``lenient``: for the way back, and for engines that start again as they were.
    """
    return [
        *_other_fleet(target, observed),
        *_memory(target, observed),
        *_programs(target, observed, difference),
        *image_refusals(target, observed, difference, lenient=lenient),
        *_firewall(observed, difference),
        *_ports(target, observed, difference),
        *_clashes(target, observed, difference),
        *floating_refusals(target, observed),
        *_room(observed),
    ]


def unnamed_boxes(source: Release, target: Release, observed: Observed) -> list[str]:
    """Boxes that have a part in the move and are not in fleet.yaml: nothing else can be said before they are."""
    layouts = [(source, "the live layout"), (target, "the layout to move to")]
    return [
        f"{what}, {release.layout}, uses {', '.join(missing)}, which fleet.yaml does not name: put it there "
        "until the fleet has left that layout"
        for release, what in layouts
        if (missing := sorted(set(release.boxes()) - set(observed)))
    ]


def _other_fleet(target: Release, observed: Observed) -> Iterable[str]:
    """Two files for the same boxes would take them from each other."""
    for box, facts in observed.items():
        if facts.release is not None and facts.release.fleet != target.fleet:
            yield (
                f"{box}: it belongs to fleet {facts.release.fleet}, and this file is of fleet {target.fleet}: use that "
                "fleet's file, or bring it back to before fleetctl first (fleetctl rollback --via HOST)"
            )


def _memory(target: Release, observed: Observed) -> Iterable[str]:
    for budget in target.budgets:
        total = observed[budget.box].memory["total"]
        if budget.memory > total:
            yield (
                f"{budget.box}: fleet.yaml says memory {gib(budget.memory)}, the box has {gib(total)}: "
                f"write memory: {total // 2**20}MiB"
            )


def _programs(target: Release, observed: Observed, difference: Difference) -> Iterable[str]:
    lodging = [engine for box in difference.boxes.values() for engine, _ in box.lodging.values()]
    for engine in (*difference.start, *lodging):
        for rank in engine.ranks:
            paths = observed[rank.box].paths
            binary = paths.get(engine.binary or "")
            if binary is not None and not (binary.kind == "file" and binary.executable):
                yield f"{rank.box}: {engine.binary} is not a program there: check launch: of model {engine.model}"
            weights = paths.get(engine.weights)
            if weights is not None and weights.kind == "missing":
                yield (
                    f"{rank.box}: the weights {engine.weights} of model {engine.model} are not there: "
                    f"`fleetctl weights push {engine.model}` brings them from a box that has them"
                )
    for box in target.proxy.boxes if target.proxy else ():
        if observed[box].haproxy is None:
            yield f"{box}: HAProxy is not installed: fleetctl setup {box} --only packages"
    for service in target.pool.services if target.pool else ():
        program = observed[service.box].paths.get(service.program)
        if service.kind == "nats" and program is not None and not program.executable:
            yield (
                f"{service.box}: {service.program} is not a program there: fleetctl setup {service.box} --only "
                "packages brings nats-server, or program: under pool: nats: says where it is"
            )
    for box in target.programs:
        if python_of(observed[box].python) < PYTHON:
            yield (
                f"{box}: the pool's programs need Python {PYTHON[0]}.{PYTHON[1]}, and its python3 is "
                f"{observed[box].python}: take {box} out of the pool"
            )


def python_of(version: str) -> tuple[int, ...]:
    """A version such as 3.11.2 as numbers."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _firewall(observed: Observed, difference: Difference) -> Iterable[str]:
    for box, facts in observed.items():
        if difference.boxes[box].firewall != "apply":
            continue
        if facts.nft is None:
            yield f"{box}: nftables is not installed: fleetctl setup {box} --only packages"
        if is_foreign(facts, box):
            yield (
                f"{box}: there is a table inet fleetctl that fleetctl did not load: look at it with "
                "`nft list table inet fleetctl`, and remove or rename it"
            )


def _goes(facts: BoxFacts, unit: str | None, foreign: Collection[str]) -> bool:
    """A unit that the move stops, or that is fleetctl's: its port will be free."""
    return unit is not None and (unit in facts.ours or unit in foreign)


def _ports(target: Release, observed: Observed, difference: Difference) -> Iterable[str]:
    wanted: dict[str, dict[int, str]] = {name: {} for name in observed}
    for engine in difference.start:
        wanted[engine.head.box].update(engine.listens)
    for service in difference.pool.start:
        wanted[service.box].update({service.port: f"the pool ({service.unit})"} if service.port else {})
    proxy = target.proxy
    for box in proxy.boxes if proxy else ():
        assert proxy is not None
        wanted[box][proxy.port] = "the proxy"
    for box, ports in wanted.items():
        for port, purpose in sorted(ports.items()):
            owner = observed[box].ports.get(port)
            if (
                owner is not None
                and owner.engine is None
                and not _goes(observed[box], owner.unit, target.superseded.get(box, ()))
            ):
                yield (
                    f"{box}: port {port} for {purpose} is taken by {owner}: stop it, list its unit "
                    "under superseded:, or give another port"
                )


def _clashes(target: Release, observed: Observed, difference: Difference) -> Iterable[str]:
    for box, facts in observed.items():
        ranks = (*target.ranks_on(box), *target.lodgers_on(box))
        wanted = {rank.unit: "rename the layout or the model, or remove" for _, rank in ranks}
        wanted |= {service.unit: "remove" for service in (target.pool.on(box) if target.pool else [])}
        if target.proxy and box in target.proxy.boxes:
            wanted[target.proxy.unit] = "remove"
            wanted |= {target.proxy.vrrp_unit: "remove"} if target.proxy.floating else {}
        if guards(target, box):
            wanted[FIREWALL_UNIT] = "remove"
        for name, way_out in wanted.items():
            unit = facts.units.get(name)
            if unit and unit.fragment and name not in facts.ours:
                yield (
                    f"{box}: there is a unit {name} ({unit.fragment}) that fleetctl did not write: {way_out} that file"
                )


def _room(observed: Observed) -> Iterable[str]:
    for box, facts in observed.items():
        for path, free in sorted(facts.free.items()):
            if free < ROOM:
                room = f"{free // 1024} KiB free, {ROOM // 2**20} MiB wanted"
                yield f"{box}: no space left on the disk of {path} ({room})"


def warnings(
    source: Release, target: Release, observed: Observed, difference: Difference, *, lenient: bool = False
) -> list[str]:
    """What does not stop the move but should be known."""
    found = []
    for box, facts in observed.items():
        for mention in facts.mentions:
            found.append(
                f"{box}: {mention.unit} names {mention.names} (in {mention.where}): if it starts or restarts it, "
                f"list it under superseded: too"
            )
        if has_guard(target, box):
            found += [f"{box}: {text}" for text in others_on_guard(facts)]
        if facts.drained is not None and difference.boxes[box].forget_drained:
            found.append(f"{box} is {facts.drained}; the move sends requests to its engines again")
        for unit in set(facts.superseded) - {*target.superseded.get(box, ()), *difference.boxes[box].give_back}:
            found.append(f"{box}: {unit} is not listed under superseded: any more; it stays as it is until a rollback")
        for path in facts.drift:
            found.append(f"{box}: {path} was edited or removed since it was put there; the move replaces it")
        for unit, state in facts.units.items():
            if state.drop_ins and unit in facts.ours:
                found.append(f"{box}: {unit} is overridden by {', '.join(state.drop_ins)}")
    generations = {facts.generation for facts in observed.values()}
    if len(generations) > 1:
        told = ", ".join(f"{box} {facts.generation}" for box, facts in observed.items())
        found.append(f"the boxes are not in the same generation ({told}); the move brings them together")
    found += [*_new_place(source, target), *_leaving(target), *_not_served(source, target)]
    found += [*_store(target, observed, difference)]
    found += image_warnings(target, observed, difference, lenient=lenient)
    found += [f"no box has a unit {unit}, which superseded: names" for unit in _unknown_superseded(target, observed)]
    return found + list(who_is_shut_out(source, target))


def _store(target: Release, observed: Observed, difference: Difference) -> Iterable[str]:
    """What NATS may keep and its disk has no room for: requests would be refused long before the store is full."""
    for service in difference.pool.start:
        free = observed[service.box].free.get("/var/lib/fleetctl") if service.box in observed else None
        if target.pool and service.kind == "nats" and free is not None and target.pool.store > free:
            yield (
                f"{service.box}: NATS may keep {gib(target.pool.store)} (pool: nats: store:), and {gib(free)} are free "
                "on its disk, beside what it already keeps there: make room, or write a smaller store:"
            )


def _unknown_superseded(target: Release, observed: Observed) -> list[str]:
    """Superseded units that systemd knows on none of their boxes: misspelled, or long gone."""

    def unknown(unit: str) -> bool:
        boxes = [observed[box] for box, names in target.superseded.items() if unit in names]
        states = [facts.units.get(unit) for facts in boxes]
        return all(state is not None and state.load == "not-found" for state in states) and not any(
            unit in facts.superseded for facts in boxes
        )

    return sorted({unit for units in target.superseded.values() for unit in units if unknown(unit)})


def _leaving(target: Release) -> list[str]:
    """Prompts that leave the fleet are said so before each move."""
    bridge = target.proxy.bridge if target.proxy else None
    if bridge is None:
        return []
    plain = "" if bridge.tls else ", unencrypted" + (", and its key with them" if bridge.api_key else "")
    return [f"while no engine is up, prompts leave the fleet: they go to {bridge.name} (the proxy's bridge){plain}"]


def _not_served(source: Release, target: Release) -> list[str]:
    """Names that clients use now and for which no engine will be there, and what becomes of such requests."""
    if target.proxy is None:
        return []
    names = {name for engine in source.all_engines for name in engine.served_as}
    gone = sorted(names - {name for engine in target.all_engines for name in engine.served_as})
    bridged = target.proxy.bridge.models if target.proxy.bridge else {}
    empty = {backend.name for backend in target.proxy.backends} - {engine.backend for engine in target.all_engines}
    waiting = {name: one.name for one in target.proxy.backends if one.name in empty for name in one.served_as}
    fate = {name: "go to the bridge" if backend in bridged else "wait and get 503" for name, backend in waiting.items()}
    return [f"{target.layout} has no engine for {name}: such requests {fate.get(name, 'get 404')}" for name in gone]


def _new_place(source: Release, target: Release) -> list[str]:
    """What clients have to know of a proxy that moves."""
    before, after = source.proxy, target.proxy
    if before is None or after is None:
        return []
    if not set(before.boxes) & set(after.boxes):
        there, here = ", ".join(before.boxes), ", ".join(after.boxes)
        return [f"the proxy moves from {there} to {here}: requests to the old address are not held"]
    lost = sorted(before.listens - after.listens)
    if lost or before.port != after.port:
        gone = ", ".join(endpoint(address, before.port) for address in lost or sorted(before.listens))
        return [
            f"{gone} is not answered any more once the move is done: clients use {endpoint(after.address, after.port)}"
        ]
    return []


def others_on_guard(facts: BoxFacts) -> list[str]:
    """Services that end something too when memory runs short, and what that means beside fleetctl's guard."""
    found = []
    for unit, does in _OOM_DAEMONS.items():
        state = facts.units.get(unit)
        if state is not None and not state.down:
            found.append(f"{unit} is active beside the guard: {does}")
    return found


_ENDS_PROCESSES = (
    "it kills the process that it likes least, by default when a tenth of the memory is left, before the guard has "
    "taken the copy out of the proxy: disable it there, or give it a mark below half of memory_low"
)
_OOM_DAEMONS = {
    "earlyoom.service": _ENDS_PROCESSES,
    "nohang.service": _ENDS_PROCESSES,
    "nohang-desktop.service": _ENDS_PROCESSES,
    "systemd-oomd.service": (
        "it ends whole units of slices with ManagedOOMSwap= or ManagedOOMMemoryPressure= (see oomctl); the guard acts "
        "before its defaults, so that both can stay"
    ),
}
