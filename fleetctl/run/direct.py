"""Watching who talks to engines directly, on all boxes at once; and searching folders for engines' addresses."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fleetctl.errors import BoxError, FleetError, RefusedError, SpecError
from fleetctl.facts.clients import Client, clients, question, words
from fleetctl.facts.direct import ClientsTold, Connection, Log, Setting
from fleetctl.facts.gather import gather_some, questions
from fleetctl.facts.types import Observed, first_fault, lead_of
from fleetctl.onbox.search import Hits, search
from fleetctl.remote.boxes import Boxes
from fleetctl.remote.errors import SeveralBoxesError
from fleetctl.render.layout import render_layout
from fleetctl.render.release import Release
from fleetctl.run.planning import Subject
from fleetctl.spec.fleet import Fleet

LOG = 24 * 3600.0  # seconds of access logs that are read before a watch begins
OP = "examine_clients"


@dataclass(frozen=True)
class Standing:
    """The clients at one moment of a watch; ``changed`` are those that are new, or whose connections are."""

    at: float
    clients: tuple[Client, ...]
    changed: tuple[Client, ...]


class Direct:
    """Who talks to the engines of the live layout directly."""

    def __init__(self, subject: Subject) -> None:
        """Raises RefusedError where no layout is live, SeveralBoxesError when no box answers."""
        self._boxes, self.fleet = subject.boxes, subject.fleet
        self.observed, failed = gather_some(subject.boxes, questions(subject.fleet))
        self.away: dict[str, FleetError] = {**subject.unreachable, **failed}
        if not self.observed:
            raise SeveralBoxesError(self.away)
        self.live = _live(self.fleet, self.observed)
        if not self.live.engines:
            if self.live.layout is not None:
                raise RefusedError(
                    f"all models of {self.live.layout} are in the pool, and nobody reaches its engines round the queue"
                )
            raise RefusedError(
                "no layout is live, so there is no engine to talk to", hint="fleetctl cutover --to LAYOUT"
            )
        self._told: dict[str, ClientsTold] = {}
        self._before: dict[str, Client] = {}

    @property
    def refused(self) -> dict[str, tuple[str, ...]]:
        """Box → addresses that its firewall refused within a day."""
        firewalls = {box: facts.firewall for box, facts in self.observed.items()}
        return {box: firewall.refused for box, firewall in firewalls.items() if firewall and firewall.refused}

    def look(self, seconds: float) -> list[Client]:
        """Watch for a while, and read the engines' access logs of the last day."""

        def one(box: Any) -> ClientsTold | None:
            asked = question(self.fleet, self.live, self.observed, box.name)
            if asked is None:
                return None
            told = box.call_with(OP, {**asked, "seconds": seconds, "log": LOG, "sizes": True}, timeout=seconds + 60)
            return _understood(box.name, told)

        told = self._boxes.each(one)
        self._told = {box: one for box, one in told.items() if one is not None}
        return self.clients()

    def clients(self) -> list[Client]:
        """Everybody seen so far."""
        return clients(self.live, self.fleet, self.observed, self._told)

    def watched(self) -> list[Client]:
        """Those who were seen, or asked for something, since the watch began."""
        return [client for client in self.clients() if _count(self._before.get(client.name)) != _count(client)]

    def watch(self, seconds: float | None) -> Generator[Standing, None, None]:
        """Every second or so who is there, for so many seconds (None: for as long as it is asked).

        Requests in the engines' access logs are told some seconds late. Closing it ends the watch on the boxes.
        Raises FleetError when a box is lost.
        """
        news: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        began = time.time()
        self._told = {box: one.model_copy(update={"seen": ()}) for box, one in self._told.items()}
        self._before = {client.name: client for client in self.clients()}
        asked = {box: question(self.fleet, self.live, self.observed, box) for box in self._boxes}
        watched = {box: one for box, one in asked.items() if one is not None}

        def one(box: str, args: dict[str, Any]) -> None:
            try:
                self._boxes[box].call_with(
                    OP,
                    {**args, "seconds": seconds, "sizes": True, "follow": True},
                    # Reading a long log has a word of progress of its own.
                    on_event=lambda event: news.put((box, event)) if "seen" in event else None,
                )
                news.put((box, None))
            except FleetError as error:
                news.put((box, error))

        for box, args in watched.items():
            threading.Thread(target=one, args=(box, args), daemon=True).start()
        try:
            yield from self._standings(news, set(watched), began)
        finally:
            self._boxes.cancel([OP])

    def _standings(
        self, news: queue.SimpleQueue[tuple[str, Any]], running: set[str], began: float
    ) -> Iterator[Standing]:
        seen: dict[str, dict[tuple[tuple[str, int], tuple[str, int]], Connection]] = {box: {} for box in running}
        before: dict[str, Client] = {}
        while running:
            box, said = news.get()
            if isinstance(said, FleetError):
                raise said
            if said is None:
                running.discard(box)
                continue
            told = _understood(box, {"seen": said["seen"], "asked": said["asked"]})
            seen[box] |= {(one.local, one.remote): one for one in told.seen}
            earlier = self._told.get(box) or ClientsTold(began=began)
            asked = {
                **earlier.asked,
                **{port: earlier.asked.get(port, Log()).and_(log) for port, log in told.asked.items()},
            }
            self._told[box] = earlier.model_copy(update={"seen": tuple(seen[box].values()), "asked": asked})
            now = {client.name: client for client in self.watched()}
            changed = [one for name, one in now.items() if _count(before.get(name)) != _count(one)]
            before = now
            yield Standing(said["at"], tuple(now.values()), tuple(changed))


def _count(client: Client | None) -> tuple[int, int, int]:
    if client is None:
        return (0, 0, 0)
    return (client.open, client.connections, client.requests.work if client.requests else 0)


def _live(fleet: Fleet, observed: Observed) -> Release:
    lead = lead_of(observed, fleet.proxy.lead)
    facts = observed.get(lead) or max(observed.values(), key=lambda one: one.generation or 0)
    return facts.release or Release(fleet=fleet.fleet, layout=None)


def _understood(box: str, told: Any) -> ClientsTold:
    try:
        return ClientsTold.model_validate(told)
    except ValidationError as error:
        raise BoxError(box, f"its answer about clients is not understood: {first_fault(error)}") from error


@dataclass(frozen=True)
class Searched:
    """A folder that was searched; ``box`` None: on this machine. ``why``: why not all of it was."""

    box: str | None
    path: str
    found: tuple[Setting, ...]
    files: int
    why: str | None


def places(fleet: Fleet, wanted: list[str]) -> list[tuple[str | None, str]]:
    """Box (None: this machine) and path of each ``[BOX:]DIR``. Raises SpecError for what cannot be searched."""
    found: list[tuple[str | None, str]] = []
    for word in wanted:
        box, colon, path = word.partition(":")
        if colon and box in fleet.boxes:
            if not path.startswith("/"):
                raise SpecError(f"--search {word}: a folder on a box is written from the root", hint=f"{box}:/etc")
            found.append((box, path))
        elif Path(word).exists():
            found.append((None, word))
        elif colon and path.startswith("/"):
            raise SpecError(f"--search {word}: there is no box {box}", hint=f"boxes: {', '.join(fleet.boxes)}")
        else:
            hint = f"boxes: {', '.join(fleet.boxes)}; a folder there is written BOX:/etc"
            raise SpecError(f"--search {word}: there is no such file or folder here", hint=hint)
    return found


def search_here(fleet: Fleet, path: str) -> Searched:
    """Search a file or folder of this machine for addresses of engines in any layout."""
    hits = Hits()
    search(path, _words(fleet), hits)
    return Searched(None, path, tuple(Setting.model_validate(hit) for hit in hits.found), hits.files, hits.why)


def search_on(fleet: Fleet, boxes: Boxes, box: str, path: str) -> Searched:
    """Search a file or folder of a box. Raises SpecError when there is none."""
    told = boxes[box].call("search_addresses", path=path, words=_words(fleet), timeout=120)
    if told["missing"]:
        raise SpecError(f"--search {box}:{path}: there is no such file or folder on {box}")
    found = tuple(Setting.model_validate(hit) for hit in told["found"])
    return Searched(box, path, found, told["files"], told["why"])


def _words(fleet: Fleet) -> list[list[Any]]:
    return words(fleet, [render_layout(fleet, layout) for layout in fleet.layouts])
