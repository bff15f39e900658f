"""Giving boxes back: what setup and fleetctl put there is taken off, what was before is put back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from fleetctl.errors import FleetError, RefusedError
from fleetctl.facts.types import lead_of
from fleetctl.plan.types import Plan, PlannedStep, Stage
from fleetctl.run.planning import Look, Subject
from fleetctl.run.staying import staying

LAST = ("sudo", "key of ")
"""Parts that the way into the box rests on: they go when all else has gone."""

STRIP = Stage(name="units", summary="fleetctl's units off, and those that they replaced back")
PARTS = Stage(name="parts", summary="what setup put there, last first")
FOLDERS = Stage(name="folders", summary="/etc/fleetctl; the journals go when all is done")


@dataclass(frozen=True)
class Part:
    """A part that setup put on a box, by its record."""

    box: str
    part: dict[str, Any]
    packages: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name in the record."""
        return str(self.part["part"])

    def lines(self) -> list[str]:
        """What taking it back means."""
        lines = [f"{self.box}: {self.name}"]
        lines += [f"apt-get purge {' '.join(self.packages)}"] if self.packages else []
        lines += [f"{path}: as it was before" for path in self.files]
        lines += [f"rm -r {self.part['path']}"] if self.part["kind"] == "venv" else []
        lines += [f"{self.part['engine']} image rm {self.part['image']}"] if self.part["kind"] == "image" else []
        return lines


def parts_on(subject: Subject, boxes: Collection[str]) -> list[Part]:
    """What setup put on these boxes, in the order in which it goes."""
    found: list[Part] = []
    for box in boxes:
        told = subject.boxes[box].call("setup_record")
        mine = [
            Part(box, one["wanted"], tuple(one.get("packages", ())), tuple(one.get("files", ())))
            for one in told.values()
            if "wanted" in one
        ]
        mine.reverse()
        found += sorted(mine, key=lambda part: part.name.startswith(LAST))
    return found


def whole_fleet(subject: Subject, boxes: Collection[str]) -> bool:
    """All boxes of the file are to be given back."""
    return set(boxes) == set(subject.fleet.boxes)


def serving(subject: Subject, seen: Look, boxes: Collection[str]) -> list[str]:
    """Those of the boxes that have an engine or a proxy of the live layout."""
    live = seen.observed[lead_of(seen.observed, subject.fleet.proxy.lead)].release
    if live is None or live.layout is None:
        return []
    pool = {service.box for service in live.pool.services} if live.pool else set()
    return [box for box in boxes if live.ranks_on(box) or box in pool or (live.proxy and box in live.proxy.boxes)]


def refuse_serving(subject: Subject, seen: Look, boxes: Collection[str]) -> None:
    """Raises RefusedError where a box serves and is not drained, or keeps what the rest of the fleet needs."""
    found = serving(subject, seen, boxes)
    lead = lead_of(seen.observed, subject.fleet.proxy.lead)
    live = seen.observed[lead].release
    proxies = live.proxy.boxes if live is not None and live.proxy else ()
    for box in found:
        if box in proxies or box == lead:
            raise RefusedError(
                f"{box} runs the proxy of the live layout; nothing was changed",
                hint=f"give the whole fleet back: fleetctl teardown {' '.join(subject.fleet.boxes)}; or write "
                "another box under proxy: in fleet.yaml, and move to a layout without this one",
            )
        if seen.observed[box].drained is None:
            raise RefusedError(
                f"{box} serves in the live layout; nothing was changed",
                hint=f"fleetctl drain {box} first, or bring the fleet into a layout without it",
            )
    if lead in boxes and not whole_fleet(subject, boxes):
        raise RefusedError(
            f"{lead} keeps the lock and the history of the fleet; nothing was changed",
            hint=f"give the whole fleet back: fleetctl teardown {' '.join(subject.fleet.boxes)}; or write another box "
            "under proxy: in fleet.yaml first",
        )


def plan_teardown(subject: Subject, seen: Look, boxes: Collection[str], chosen: Iterable[Part]) -> Plan:
    """The plan that takes these parts, and fleetctl itself, off the boxes."""
    refuse_serving(subject, seen, boxes)
    steps: list[PlannedStep] = []
    last: dict[str, str] = {}

    def add(stage: Stage, kind: str, box: str, target: str, params: dict[str, Any], summary: str) -> None:
        name = f"{stage.name}.{kind}.{box}.{target.replace(' ', '-').replace('/', '_')}"
        after = (last[box],) if box in last else ()
        steps.append(
            PlannedStep(
                id=name,
                kind=kind,
                stage=stage.name,
                box=box,
                target=target,
                params=params,
                summary=f"{box}: {summary}",
                after=after,
            )
        )
        last[box] = name

    there = {box: subject.boxes[box].call("setup_strip_look") for box in boxes}
    taken = list(chosen)
    for box, told in there.items():
        mine = [part for part in taken if part.box == box]
        if told["files"] or told["superseded"]:
            add(STRIP, "strip", box, "units", {}, _strip_words(told))
        for part in mine:
            if not part.name.startswith(LAST):
                add(PARTS, "take_down", box, part.name, {"part": part.part}, _words(part))
        if told["etc"]:
            add(FOLDERS, "put_aside", box, "etc", {}, "/etc/fleetctl goes")
        for part in mine:
            if part.name.startswith(LAST):
                add(PARTS, "take_down", box, part.name, {"part": part.part}, _words(part))
    drained = serving(subject, seen, boxes)
    warnings = tuple(f"{box} is in the live layout: until the next cutover `status` misses it" for box in drained)
    why = "engines on drained boxes stop" if drained else "nothing that serves is touched"
    fleet, stages = subject.fleet, (STRIP, PARTS, FOLDERS)
    return staying(fleet.fleet, fleet.proxy.lead, seen, "teardown", stages, steps, warnings, why)


def _strip_words(told: dict[str, Any]) -> str:
    units = ", ".join(told["units"]) or "no unit"
    given = f"; back as they were: {', '.join(told['superseded'])}" if told["superseded"] else ""
    return f"stopped, disabled and removed: {units}{given}"


def _words(part: Part) -> str:
    return f"{part.name} off" + (f": {len(part.packages)} packages" if part.packages else "")


def forget(subject: Subject, boxes: Collection[str], say: Callable[[str], None]) -> None:
    """Remove journals and records of boxes from which all has gone. The lead box comes last: it tells what is open."""
    lead = subject.fleet.proxy.lead
    for box in sorted(boxes, key=lambda name: name == lead):
        try:
            subject.boxes[box].call("setup_forget", timeout=60)
        except FleetError as error:
            say(f"{error.message}: /var/lib/fleetctl stays there")
