"""From fleet.yaml to a Release: everything a layout puts on the boxes. Pure: the same input gives the same bytes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from fleetctl.capacity.budget import BoxBudget, box_budget
from fleetctl.engine.runtimes.command import served_names, task_of
from fleetctl.errors import SpecError
from fleetctl.render.backends import backend_of
from fleetctl.render.engine import Place, address_of, concurrency, render_rank, runtime_of, socket_of
from fleetctl.render.firewall import firewall_files, firewall_of
from fleetctl.render.floating import vrrp_files
from fleetctl.render.guard import guard_files
from fleetctl.render.launch import binary
from fleetctl.render.names import check_names, server_name
from fleetctl.render.pool import pool_files
from fleetctl.render.ports import check_ports, engine_ports
from fleetctl.render.programs import bundles_on
from fleetctl.render.proxy import proxy_config, proxy_files
from fleetctl.render.release import Budget, Engine, File, Lodger, Pool, Rank, Release, Service
from fleetctl.spec.fleet import Box, Fleet
from fleetctl.spec.fleet_model import Container


def render_layout(
    fleet: Fleet,
    layout: str,
    *,
    weights: Mapping[str, int] | None = None,
    spec_text: str = "",
    tasks: Mapping[str, str] | None = None,
) -> Release:
    """The Release of a layout.

    ``weights`` gives measured sizes (model → bytes), used where weights_size is not in the file; ``spec_text`` is the
    text of fleet.yaml and ``tasks`` that of each file of gates.evaluations, kept with the release. Raises SpecError for
    what cannot be rendered and RefusedError, with the arithmetic, when an engine does not fit its box.
    """
    _check_references(fleet, layout)
    check_names(fleet)
    check_ports(fleet, layout)
    budgets = _budgets(fleet, layout, weights or {})
    engines: list[Engine] = []
    lodgers: list[Lodger] = []
    files: dict[str, dict[str, File]] = {}
    for model, placement in fleet.layouts[layout].items():
        for boxes in _engines_of(fleet, layout, model):
            ranks: list[Rank] = []
            for number, box in enumerate(boxes):
                port, share = engine_ports(fleet, layout)[model], budgets[box].shares[model]
                rank, made = render_rank(fleet, Place(layout, model, box, number, boxes, port, share))
                ranks.append(rank)
                files.setdefault(box, {}).update((file.path, file) for file in made)
            engine = _engine(fleet, layout, model, tuple(ranks))
            if placement.pool is None:
                engines.append(engine)
            else:
                lodgers.append(_lodger(engine, budgets[boxes[0]]))
    for box in files:
        files[box].update((file.path, file) for file in guard_files(fleet, box))
    services: list[Service] = []
    for box in fleet.boxes:
        mine = tuple(one for one in lodgers if one.engine.head.box == box)
        room = budgets[box].pool if box in budgets else None
        of_pool, made = pool_files(fleet, layout, box, mine, room.memory if room else 0, weights or {})
        services += of_pool
        if made:
            files.setdefault(box, {}).update((file.path, file) for file in made)
    config = proxy_config(fleet, layout)
    for box in config.boxes:
        made = (*proxy_files(config, box), *vrrp_files(config, box))
        files.setdefault(box, {}).update((file.path, file) for file in made)
    firewall = firewall_of(fleet)
    if firewall is not None:
        for box in firewall.guarded:
            files.setdefault(box, {}).update((file.path, file) for file in firewall_files(firewall, box))
    store = fleet.pool.nats.store if fleet.pool else 0
    pool = Pool(services=tuple(services), lodgers=tuple(lodgers), store=store) if services else None
    return Release(
        fleet=fleet.fleet,
        layout=layout,
        engines=tuple(engines),
        proxy=config,
        files={box: tuple(files[box].values()) for box in fleet.boxes if box in files},
        superseded={box: tuple(units) for box in fleet.boxes if (units := fleet.superseded_on(box))},
        budgets=tuple(_budget(budget, fleet.boxes[name]) for name, budget in budgets.items()),
        gates=fleet.gates,
        tasks=dict(tasks or {}),
        firewall=firewall,
        pool=pool,
        programs={box: bundles for box in fleet.boxes if (bundles := bundles_on(fleet, layout, box))},
        spec=spec_text,
    )


def _check_references(fleet: Fleet, layout: str) -> None:
    """Every name that the layouts use exists. Raises SpecError with the nearest name there is."""

    def known(kind: str, name: str, names: Mapping[str, object], where: str) -> None:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(names)}"
            raise SpecError(f"{where}: there is no {kind} {name}", hint=hint)

    known("layout", layout, fleet.layouts, f"fleet {fleet.fleet}")
    for box in fleet.proxy.on:
        known("box", box, fleet.boxes, "proxy")
    if fleet.pool is None and fleet.pool_models(layout):
        raise SpecError(f"layout {layout} has a pool, and fleet.yaml has no pool:", hint="write pool: {nats: …}")
    for box in (*fleet.gateways, *(fleet.pool.nats.boxes if fleet.pool else ())):
        known("box", box, fleet.boxes, "pool")
    for name, models in fleet.layouts.items():
        for model, placement in models.items():
            known("model", model, fleet.models, f"layout {name}")
            for box in placement.boxes:
                known("box", box, fleet.boxes, f"layout {name}, model {model}")


def _lodger(engine: Engine, budget: BoxBudget) -> Lodger:
    assert budget.pool is not None
    known = next(one for one in budget.pool.lodgers if one.model == engine.model)
    return Lodger(engine=engine, pinned=known.pinned, memory=known.memory)


def _engines_of(fleet: Fleet, layout: str, model: str) -> list[tuple[str, ...]]:
    """Boxes of each engine of a model: one engine over all for a split, one each for copies and in a pool."""
    placement = fleet.layouts[layout][model]
    return [tuple(placement.boxes)] if placement.split is not None else [(box,) for box in placement.boxes]


def _budgets(fleet: Fleet, layout: str, weights: Mapping[str, int]) -> dict[str, BoxBudget]:
    used = {box for placement in fleet.layouts[layout].values() for box in placement.boxes}
    return {box: box_budget(fleet, layout, box, weights) for box in fleet.boxes if box in used}


def _budget(budget: BoxBudget, box: Box) -> Budget:
    return Budget(
        box=budget.box,
        memory=budget.memory,
        reserve=budget.reserve,
        share=budget.share,
        weights=budget.weights,
        lines=budget.lines,
        drop_page_cache=box.page_cache == "drop",
    )


def _engine(fleet: Fleet, layout: str, name: str, ranks: tuple[Rank, ...]) -> Engine:
    model, placement, head = fleet.models[name], fleet.layouts[layout][name], ranks[0].box
    launch, runtime = fleet.launch(name), runtime_of(fleet, name)
    split = placement.split is not None
    boxes = tuple(rank.box for rank in ranks)
    place = Place(layout, name, head, 0, boxes, engine_ports(fleet, layout)[name], ranks[0].share)
    return Engine(
        id=f"{layout}/{name}" if split else f"{layout}/{name}@{head}",
        model=name,
        kind="split" if split else "copy",
        ranks=ranks,
        address=address_of(fleet, place),
        port=0 if socket_of(fleet, layout, name) else place.port,
        master_port=placement.master_port if split else None,
        served_as=served_names(name, model),
        context=model.context,
        concurrency=concurrency(fleet, layout, name, head),
        load_limit=model.load_limit,
        stop_limit=model.stop_limit,
        weights=model.weights,
        revision=model.revision,
        hub=_hub_environment(fleet, layout, name),
        max_lora_rank=model.loras.max_lora_rank if model.loras else None,
        image=(launch.engine, launch.image) if isinstance(launch, Container) else None,
        image_id=launch.id if isinstance(launch, Container) else None,
        binary=binary(launch, runtime),
        runtime=runtime.name,
        task=task_of(runtime, name, model),
        backend=backend_of(fleet, name),
        server=server_name(layout, head),
    )


def _hub_environment(fleet: Fleet, layout: str, name: str) -> dict[str, str]:
    """What the hub's client goes by: HF_HOME and the like, and proxies."""
    given = {**fleet.models[name].environment, **fleet.layouts[layout][name].environment}
    return {
        key: value
        for key, value in given.items()
        if isinstance(value, str) and key.upper().startswith(("HF_", "HUGGING", "XDG_", "HTTP", "HTTPS", "NO_PROXY"))
    }
