"""The pool of this box: its engines from the release and the worker's configuration, and what the worker says."""

import http.client
import json
import os
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from fleetctl.guard import box
from fleetctl.guard.asking import LATE, LIMIT, connection_to
from fleetctl.guard.box import Place
from fleetctl.guard.seen import Counters, Engine, Lodger, Pool

CONFIG = "/etc/fleetctl/pool/worker.json"
EVERY = 1.0  # seconds between two questions to the worker
FRESH = 4.0  # seconds for which its answer counts


class Config(NamedTuple):
    """What the worker of this box was told: where it listens, what its engines may take, and what each takes."""

    address: str
    port: int
    memory: int
    places: Tuple[Place, ...]
    pinned: Tuple[str, ...]


class Told(NamedTuple):
    """What the worker says of one engine."""

    phase: str
    pinned: bool
    running: int
    busy: float
    """Seconds in which it worked: they grow when a request of it ends."""


def config_in(release: Dict[str, Any], config: Dict[str, Any], name: str) -> Optional[Config]:
    """The pool of a box, as far as release and configuration agree; None: it has none."""
    wanted = {}
    for lodger in (release.get("pool") or {}).get("lodgers", ()):
        engine = lodger["engine"]
        for rank in engine["ranks"]:
            if rank["box"] == name:
                wanted[str(rank["unit"])] = engine
    backends = {one["name"]: one for one in (release.get("proxy") or {}).get("backends", ())}
    places, pinned = [], []
    for one in config["engines"]:
        engine = wanted.get(str(one["unit"]))
        if engine is None:
            continue
        address, port = _endpoint(str(one["address"]))
        backend = backends.get(engine["backend"], {})
        place = Place(
            unit=str(one["unit"]),
            id=str(engine["id"]),
            answers=True,
            server="",
            address=address,
            port=port,
            model=str(one["served_as"][0]),
            most=int(one["memory"]),
            path=str(backend.get("path", "")),
            question=str(backend.get("question", "")),
        )
        places.append(place)
        if one["pinned"]:
            pinned.append(place.unit)
    listen = config["listen"]
    if not places:
        return None
    return Config(str(listen["host"]), int(listen["port"]), int(config["memory"]), tuple(places), tuple(pinned))


def _endpoint(address: str) -> Tuple[str, int]:
    """``unix:PATH`` stays; http://HOST:PORT becomes its parts."""
    if address.startswith("unix:"):
        return address, 0
    host, _, port = address.split("://", 1)[-1].rstrip("/").rpartition(":")
    return host.strip("[]"), int(port)


def told_in(state: Dict[str, Any]) -> Dict[str, Told]:
    """unit → what the worker's state says of it."""
    return {
        str(engine["unit"]): Told(
            str(engine["phase"]), bool(engine["pinned"]), int(engine["running"]), float(engine["busy_seconds"])
        )
        for model in state["models"].values()
        for engine in model["engines"]
    }


class Lodgers:
    """Reads the configuration when it changes, and asks the worker in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._read: Tuple[Any, ...] = ()
        self.config: Optional[Config] = None
        self._at = box.now()  # before it was asked it is not silent
        self._told: Dict[str, Told] = {}
        self._over = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def look(self) -> List[Place]:
        """Engines of the pool here; none where the current layout has no pool, or what says so is damaged."""
        try:
            stamp = (os.readlink(box.CURRENT), os.stat(CONFIG).st_mtime_ns)
        except OSError:
            self._read, self.config = (), None
            return []
        if stamp != self._read:
            path = os.path.join(os.path.dirname(box.CURRENT), stamp[0], "release.json")
            try:
                with open(path, encoding="utf-8") as release, open(CONFIG, encoding="utf-8") as config:
                    self.config = config_in(json.load(release), json.load(config), self._name)
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                self.config = None
            self._read = stamp
        return list(self.config.places) if self.config is not None else []

    def pool(self, engine: Callable[[Place, Told, Counters], Engine]) -> Optional[Pool]:
        """The pool as it is now; ``engine`` looks at one of it, given what the worker says and has counted."""
        config = self.config
        if config is None:
            return None
        silent = box.now() - self._at >= FRESH
        lodgers = []
        for place in config.places:
            told = None if silent else self._told.get(place.unit)
            known = told or Told("", place.unit in config.pinned, 0, 0.0)
            counted = () if told is None else (("worker", known.busy),)
            lodgers.append(Lodger(engine(place, known, counted), known.phase, known.pinned))
        return Pool(config.memory, tuple(lodgers), silent)

    def _run(self) -> None:
        while not self._over.wait(EVERY):
            config = self.config
            if config is None:
                continue
            try:
                self._told = told_in(_state(config))
                self._at = box.now()
            except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError):
                continue  # it counts as silent after a while

    def end(self) -> None:
        """Stop asking."""
        self._over.set()


def _state(config: Config) -> Dict[str, Any]:
    connection = connection_to(config.address, config.port, LATE)
    try:
        connection.request("GET", "/state", headers={"Connection": "close"})
        return dict(json.loads(connection.getresponse().read(LIMIT)))
    finally:
        connection.close()
