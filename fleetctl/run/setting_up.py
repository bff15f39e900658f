"""Setting boxes up: what each wants, what it has, and a plan of what was chosen. Carried out like any other change."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from fleetctl.engine.runtimes.known import RUNTIMES
from fleetctl.errors import BoxError, SpecError
from fleetctl.facts.setup import SetupFacts
from fleetctl.facts.types import first_fault
from fleetctl.plan.setup import digest_of, drafts
from fleetctl.plan.setup_wish import Draft, Remark, Wish
from fleetctl.plan.types import Plan, PlannedStep, Stage
from fleetctl.remote.program import installed_path, installed_program
from fleetctl.render.link import Link
from fleetctl.run.planning import Look, Subject
from fleetctl.run.staying import staying
from fleetctl.spec.fleet import Box, Fleet, PerBox, Placement, Ssh
from fleetctl.spec.fleet_model import Container, Model, Venv
from fleetctl.spec.fleet_proxy import Proxy

LOOK_LIMIT = 180.0  # seconds; apt on a slow disk takes its time
LINK_TRIAL = 90.0  # seconds after which a link that nobody keeps is taken back
JUMBO = 9000
"""MTU of a direct link where none is named: NCCL moves large buffers, and a link without a switch has one MTU."""


@dataclass(frozen=True)
class Choices:
    """What the operator named on the command line. ``network`` and ``interface`` are of the link."""

    keys: dict[str, str] = field(default_factory=dict)
    """Box → the operator's public key, as one line."""

    mtu: int | None = None
    network: ipaddress.IPv4Network | ipaddress.IPv6Network | None = None
    interface: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    """Package of an engine → version."""


@dataclass(frozen=True)
class Standing:
    """What one look found: parts that a box lacks and parts that it has, and what is not done."""

    lacking: tuple[Draft, ...]
    there: tuple[Draft, ...]
    remarks: tuple[Remark, ...]


def fleet_of_hosts(hosts: list[str]) -> Fleet:
    """A fleet of ``[USER@]HOST`` before there is a fleet.yaml: the first has the proxy. Raises SpecError.

    A box is called as its host, with dashes for what no name of a box has: ``10-0-0-5``.
    """
    boxes = {}
    for host in hosts:
        user, _, target = host.rpartition("@")
        if not target or target.startswith("-"):
            raise SpecError(f"{host} is not [USER@]HOST")
        name = re.sub(r"[^a-z0-9-]", "-", target.lower()).strip("-")[:31]
        if not name or name in boxes:
            raise SpecError(f"{target} is named twice" if name else f"{host} is not [USER@]HOST")
        boxes[name] = Box(address=target, memory=1, reserve=0, ssh=Ssh(user=user or None))
    names = list(boxes)
    model = Model(weights="/nowhere", context=1, launch=Venv(venv="/nowhere"))
    return Fleet(
        fleet="setup",
        boxes=boxes,
        models={"model": model},
        layouts={"replicas": {"model": Placement(copies={name: PerBox() for name in names})}},
        proxy=Proxy(box=names[0]),
    )


def wishes(
    fleet: Fleet, chosen: Collection[str], choices: Choices, *, named: bool, link: bool = True
) -> dict[str, Wish]:
    """Box → what it shall have. ``named``: there is a fleet.yaml; without one the engine's part is not known.

    Without ``link`` nothing is worked out about it.
    """
    found = {}
    program = installed_program()
    for number, (name, box) in enumerate(fleet.boxes.items(), 1):
        if name not in chosen:
            continue
        models = {model for layout in fleet.layouts.values() for model, place in layout.items() if name in place.boxes}
        launches = [(RUNTIMES[fleet.models[model].runtime], fleet.launch(model)) for model in sorted(models)]
        found[name] = Wish(
            key=choices.keys.get(name),
            proxy=name in (fleet.proxy.boxes or (fleet.proxy.box,)),
            floating=fleet.proxy.floating is not None and name in (fleet.proxy.boxes or ()),
            firewall=fleet.firewall is not None,
            nats=fleet.pool is not None and name in fleet.pool.nats.boxes,
            guard=fleet.guard is not None,
            venvs={
                launch.venv: (runtime.packages[0], runtime.program[0])
                for runtime, launch in launches
                if isinstance(launch, Venv)
            }
            if named
            else {},
            versions=choices.versions,
            images=tuple(
                dict.fromkeys((launch.engine, launch.image) for _, launch in launches if isinstance(launch, Container))
            ),
            link=_link(name, box, number, choices) if link else None,
            program=installed_path(),
            program_sha256=digest_of(program),
        )
    return found


def _link(name: str, box: Box, number: int, choices: Choices) -> Link | None:
    """The link's end on a box: address from the file, or the number of the box in the network. Raises SpecError."""
    interface = box.interface or choices.interface
    network = choices.network
    if box.link is None and network is None:
        return None
    if interface is None:
        raise SpecError(
            f"on which interface of {name} the link is, is not known",
            hint=f"write interface: of {name} into fleet.yaml, or name it: --interface NAME (`ip -brief link`)",
        )
    if box.link is None:
        assert network is not None
        address = f"{network.network_address + number}/{network.prefixlen}"
    else:
        prefix = network.prefixlen if network else (64 if ":" in box.link else 24)
        address = f"{box.link}/{prefix}"
        if network is not None and ipaddress.ip_address(box.link) not in network:
            raise SpecError(f"--link {network}: {box.link}, the link of {name} in fleet.yaml, is not in it")
    return Link(interface, address, choices.mtu)


def standing(subject: Subject, wanted: dict[str, Wish], families: Collection[str]) -> Standing:
    """Look at the boxes, and ask each which of the parts it has. Raises FleetError for one that cannot be looked at."""
    chosen = {name: _within(wish, families) for name, wish in wanted.items()}

    def one(box: Any) -> tuple[list[Draft], list[Draft], list[Remark]]:
        wish = chosen.get(box.name)
        if wish is None:
            return [], [], []
        facts = look_at(box, wish)
        if wish.link is not None and wish.link.mtu is None:
            wish = replace(wish, link=replace(wish.link, mtu=_usual_mtu(facts)))
        told = [one for one in drafts(box.name, wish, facts) if one.family in families]
        made = [one for one in told if isinstance(one, Draft)]
        so = box.call("setup_so", parts=[draft.part for draft in made], timeout=LOOK_LIMIT)
        lacking = [draft for draft, is_so in zip(made, so, strict=True) if not is_so]
        there = [draft for draft, is_so in zip(made, so, strict=True) if is_so]
        return lacking, there, [one for one in told if isinstance(one, Remark)]

    found = subject.boxes.each(one)
    return Standing(
        tuple(draft for lacking, _, _ in found.values() for draft in lacking),
        tuple(draft for _, there, _ in found.values() for draft in there),
        tuple(remark for _, _, remarks in found.values() for remark in remarks),
    )


def _within(wish: Wish, families: Collection[str]) -> Wish:
    """A wish without what is not asked for, so that it is not looked at either."""
    return replace(
        wish,
        link=wish.link if "link" in families else None,
        venvs=wish.venvs if "engine" in families else {},
        images=wish.images if "engine" in families else (),
    )


def _usual_mtu(facts: SetupFacts) -> int | None:
    """Jumbo frames where the address comes with this; an address that is there keeps its MTU."""
    state = facts.link.state if facts.link else None
    if state is None:
        return None
    kept = facts.record.get(f"link {facts.link.interface}", {}).get("wanted", {}) if facts.link else {}
    mtu: int | None = kept.get("mtu", min(JUMBO, state.most))
    return mtu


def look_at(box: Any, wish: Wish) -> SetupFacts:
    """What a box is like, as far as this wish asks. Raises BoxError."""
    told = box.call(
        "setup_look",
        packages=wish.packages(),
        venvs={path: list(pair) for path, pair in wish.venvs.items()},
        images=[list(pair) for pair in wish.images],
        interface=wish.link.interface if wish.link else None,
        timeout=LOOK_LIMIT,
    )
    try:
        return SetupFacts.model_validate(told)
    except ValidationError as error:
        raise BoxError(box.name, f"its answer is not understood: {first_fault(error)}") from error


def plan_setup(subject: Subject, seen: Look, chosen: Iterable[Draft], there: Iterable[Draft] = ()) -> Plan:
    """The plan that makes these parts so; those of one box follow each other, and a link waits for its neighbours.

    Of the parts that are ``there`` the links are neighbours too.
    """
    steps: list[PlannedStep] = []
    last: dict[str, str] = {}
    links: list[tuple[Draft, PlannedStep]] = []
    for draft in chosen:
        if draft.family == "link":
            step = _step("link", "link_try", draft, last, {"part": draft.part, "limit": LINK_TRIAL})
            links.append((draft, step))
        else:
            step = _step("setup", "set_up", draft, last, {"part": draft.part})
        steps.append(step)
        last[draft.box] = step.id
    both = [*(draft for draft, _ in links), *(draft for draft in there if draft.family == "link")]
    ends = {draft.box: str(draft.part["address"]).split("/")[0] for draft in both}
    for draft, _ in links:
        peers = [address for box, address in ends.items() if box != draft.box]
        params = {"part": draft.part, "limit": LINK_TRIAL, "peers": peers}
        step = _step("link", "link_keep", draft, last, params, before=[one.id for _, one in links])
        steps.append(step)
    fleet = subject.fleet
    why = "nothing that serves is touched"
    return staying(fleet.fleet, fleet.proxy.lead, seen, "setup", (SETUP, LINK), steps, why=why)


SETUP = Stage(name="setup", summary="what was chosen, box by box")
LINK = Stage(name="link", summary="addresses on trial, then proved, then kept")


def _step(
    stage: str, kind: str, draft: Draft, last: dict[str, str], params: dict[str, Any], before: Iterable[str] = ()
) -> PlannedStep:
    after = tuple(dict.fromkeys([*before, *([last[draft.box]] if draft.box in last else [])]))
    words = {"link_try": "on trial: ", "link_keep": "proved and kept: "}.get(kind, "")
    return PlannedStep(
        id=f"{stage}.{kind}.{draft.box}.{draft.part['part'].replace(' ', '-').replace('/', '_')}",
        kind=kind,
        stage=stage,
        box=draft.box,
        target=draft.part["part"],
        params=params,
        summary=f"{draft.box}: {words}{draft.lines[0]}",
        after=after,
    )
