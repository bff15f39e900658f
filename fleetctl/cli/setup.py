"""``fleetctl setup``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, TakeOver, Yes

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

    from fleetctl.plan.setup_wish import Draft
    from fleetctl.run.planning import Subject
    from fleetctl.run.setting_up import Standing


def setup(
    boxes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BOX]…",
            help="Boxes of fleet.yaml (default: all), or [USER@]HOST without one.",
            autocompletion=completing.boxes,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PART", help="Just these: key, packages, sudo, link, earlyoom, engine, guard."),
    ] = None,
    skip: Annotated[list[str] | None, typer.Option("--skip", metavar="PART", help="All but these.")] = None,
    link: Annotated[
        str | None,
        typer.Option("--link", metavar="NETWORK", help="Network of the direct link, such as 192.168.100.0/24."),
    ] = None,
    interface: Annotated[
        str | None, typer.Option("--interface", metavar="NAME", help="Interface of the link, where the file has none.")
    ] = None,
    mtu: Annotated[
        int | None, typer.Option("--mtu", min=1280, max=65535, help="MTU of the link; default: 9000 on a new one.")
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", metavar="PACKAGE==VERSION", help="What environments are made with: vllm==0.11.0."),
    ] = None,
    fleet: FleetFile = DEFAULT_FLEET,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Make boxes ready: key, packages, limited sudo, direct link, earlyoom, engine. Each is shown and asked for.

    What is so already is left alone: a second run changes nothing. `fleetctl teardown` takes all of it back.
    """
    from fleetctl.cli.ask import confirm
    from fleetctl.cli.mover import Mover
    from fleetctl.cli.setup_session import open_boxes, wanted_families
    from fleetctl.errors import SpecError
    from fleetctl.facts.types import unfinished
    from fleetctl.plan.setup_wish import FAMILIES
    from fleetctl.plan.types import Plan
    from fleetctl.run.planning import Look, look, refuse_unfinished
    from fleetctl.run.setting_up import Choices, plan_setup, standing, wishes

    if only and skip:
        raise SpecError("--only and --skip exclude each other", hint="name what shall be done, or what shall not")
    families = (wanted_families(only, "--only") or frozenset(FAMILIES)) - wanted_families(skip, "--skip")
    network = _network(link)
    named = fleet.exists() or not boxes
    ways: Any = {"accept_new": accept_new, "ssh_config": ssh_config, "agree": lambda text: yes or confirm(text)}
    with open_boxes(boxes or [], fleet, **ways) as (subject, names):
        keys = _keys(subject, names, ssh_config, yes=yes, json=json) if "key" in families else {}
        choices = Choices(keys=keys, mtu=mtu, network=network, interface=interface, versions=_versions(engine))
        wanted = wishes(subject.fleet, names, choices, named=named, link="link" in families)
        seen = look(subject)
        cut_off = unfinished(seen.observed)
        mover = Mover(subject, as_json=json, yes=yes, take_over=take_over)
        if cut_off is not None:
            if cut_off[1].operation != "setup":
                refuse_unfinished(seen.observed)
            mover.work("setup", lambda seen: plan_setup(subject, seen, []))
        found = standing(subject, wanted, families)
        _tell(found, json=json)
        chosen = _chosen(found.lacking, yes=yes, json=json)
        asked = {(draft.box, draft.part["part"]) for draft in chosen}

        def make(seen: Look) -> Plan:
            now = standing(subject, wanted, families)
            left = [draft for draft in now.lacking if (draft.box, draft.part["part"]) in asked]
            return plan_setup(subject, seen, left, now.there)

        mover = Mover(subject, as_json=json, yes=yes or not chosen, take_over=take_over)
        mover.work("setup", make) if chosen else _nothing(names, found, json=json)
        if any(draft.family == "link" for draft in chosen):
            _measure(subject, names, json=json)
    _next_words(boxes or [], fleet, named=named, json=json)


def _network(text: str | None) -> IPv4Network | IPv6Network | None:
    import ipaddress

    from fleetctl.errors import SpecError

    if text is None:
        return None
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise SpecError(f"--link {text} is not a network: {error}", hint="write it like 192.168.100.0/24") from error


def _versions(given: list[str] | None) -> dict[str, str]:
    """Package → version of ``PACKAGE==VERSION``. Raises SpecError."""
    import re

    from fleetctl.errors import SpecError

    found = {}
    for word in given or ():
        told = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.+!_-]*)", word)
        if told is None:
            raise SpecError(f"--engine {word} is not PACKAGE==VERSION", hint="write it like vllm==0.11.0")
        found[told[1]] = told[2]
    return found


def _keys(subject: Subject, names: list[str], config: Path | None, *, yes: bool, json: bool) -> dict[str, str]:
    """Box → the operator's public key; one is made where there is none at all, after a question."""
    from fleetctl.cli.ask import confirm
    from fleetctl.cli.output import say
    from fleetctl.run.own_key import make_key, new_key_path, own_keys

    found = own_keys(subject.fleet, names, config)
    path = new_key_path()
    if found or path.exists():
        return found
    if not yes and not confirm(f"There is no SSH key here. Make {path} and {path}.pub?"):
        return {}
    make_key(path, ask=not yes)
    say(f"made {path}", as_json=json)
    return own_keys(subject.fleet, names, config)


def _tell(found: Standing, *, json: bool) -> None:
    """What is so already, and what is left to a person."""
    from fleetctl.cli.output import console, emit

    for draft in found.there:
        if json:
            emit("part", box=draft.box, part=draft.part["part"], family=draft.family, state="there")
        else:
            console().print(f"{draft.box}: already so: {draft.lines[0]}", markup=False)
    for remark in found.remarks:
        if json:
            emit("remark", box=remark.box, family=remark.family, text=remark.text)
        else:
            console().print(f"{remark.box}: {remark.family}: {remark.text}", markup=False, style="yellow")


def _chosen(lacking: tuple[Draft, ...], *, yes: bool, json: bool) -> list[Draft]:
    """The parts that shall be made: each is shown, and asked for."""
    from fleetctl.cli.ask import confirm
    from fleetctl.cli.output import console, emit

    chosen = []
    for draft in lacking:
        first, *more = draft.lines
        if json:
            emit(
                "part", box=draft.box, part=draft.part["part"], family=draft.family, state="lacking", lines=draft.lines
            )
        else:
            console().print(f"\n{draft.box}: {first}", style="bold", markup=False)
            for line in more:
                console().print(f"    {line}", markup=False)
        if yes or confirm(f"Set up {draft.part['part']} on {draft.box}?"):
            chosen.append(draft)
    return chosen


def _nothing(names: list[str], found: Standing, *, json: bool) -> None:
    from fleetctl.cli.output import console, emit

    if json:
        emit("move", state="nothing", boxes=names)
    else:
        word = "nothing was chosen" if found.lacking else "nothing to do"
        console().print(f"{word}: {', '.join(names)} {'are' if len(names) > 1 else 'is'} as before", markup=False)


def _measure(subject: Subject, names: list[str], *, json: bool) -> None:
    """The link test, once the link is there."""
    from dataclasses import replace

    from fleetctl.cli.output import console, emit
    from fleetctl.cli.show_link import show, told
    from fleetctl.doctor.link.measured import Measured
    from fleetctl.run.linktest import GENTLE, measure, pairs

    linked = [name for name in names if subject.fleet.boxes[name].link is not None]
    if len(linked) < 2:
        return
    for one in measure(subject, pairs(subject.fleet, linked), replace(GENTLE), lambda line: None):
        if json:
            emit("pair", **told(one))
        elif isinstance(one, Measured):
            show(one)
        else:
            console().print(f"{one.first} and {one.second}: {one.error.message}", style="yellow", markup=False)


def _next_words(names: list[str], fleet: Path, *, named: bool, json: bool) -> None:
    from fleetctl.cli.output import console

    if json:
        return
    hint = "fleetctl plan --to LAYOUT" if named else f"fleetctl init {' '.join(names)}"
    console().print(f"next: {hint}", markup=False)
