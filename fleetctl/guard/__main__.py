"""``python3 -m fleetctl.guard SETTINGS``: the guard of this box, until it is told to stop.

Runs as root on whatever python3 the box has (3.8 and later), from the standard library alone.
"""

import ctypes
import fcntl
import json
import os
import signal
import sys
import threading
import time
from typing import Any, Dict, List, Optional

from fleetctl.guard import box, systemd
from fleetctl.guard.agent import Agent, addresses
from fleetctl.guard.asking import Watch
from fleetctl.guard.decide import Guard, memory_told
from fleetctl.guard.fellows import Fellows
from fleetctl.guard.lodgers import Lodgers, Told
from fleetctl.guard.notes import Notes
from fleetctl.guard.seen import Action, Counters, Engine, Look, Settings, settings_from
from fleetctl.guard.uses import Uses
from fleetctl.onbox.connections import open_from
from fleetctl.onbox.services import Services

TICK = 1.0  # seconds from one look to the next
MINUTE = 60.0
MEASURE_EVERY = 5.0  # seconds from one look at the services to the next
FAREWELL = 2.5  # seconds in which a proxy that was told "down" asks once more
LOCKED_PAGES = 3  # MCL_CURRENT | MCL_FUTURE


class Service:
    """Looks, has it decided, and does it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._notes = Notes()
        self._boot = _boot()
        self._guard = Guard(settings, self._notes.saved(self._boot))
        self._layout = box.Layout(settings.box)
        self._lodgers = Lodgers(settings.box)
        self._watches: Dict[str, Watch] = {}
        self._fellows: Dict[str, Fellows] = {}
        self._agent: Optional[Agent] = None
        self._agent_said = ""
        self._proxies = addresses(settings.proxies)
        self._refused = 0
        self._over = threading.Event()
        self._leaving = False
        self._since = time.time()
        self._begun = box.now()
        self._lowest: Optional[int] = None
        self._minute: Dict[str, Any] = {}
        self._services = Services()
        self._uses = Uses(self._notes.folder + "/services.json")
        self._measured = box.now() - MEASURE_EVERY

    def stop(self, *_: Any) -> None:
        """Be told to stop."""
        self._over.set()

    def run(self) -> None:
        """Until told to stop. What fails in one second is tried again in the next."""
        self._notes.event("note", "", "on guard: %s" % self._settings.act)
        due = time.monotonic()
        while not self._over.is_set():
            try:
                self._tick()
            except (OSError, ValueError, KeyError) as error:
                sys.stderr.write("this look failed: %s: %s\n" % (type(error).__name__, error))
            due = max(due + TICK, time.monotonic() + TICK / 10)
            self._over.wait(max(0.0, due - time.monotonic()))
        self._farewell()

    def _tick(self) -> None:
        self._listen()
        places, pooled = self._layout.look(), self._lodgers.look()
        self._follow(places, pooled)
        states = systemd.states([place.unit for place in (*places, *pooled)])
        held = box.held()
        engines = tuple(self._engine(place, states.get(place.unit, {})) for place in places)

        def lodger(place: box.Place, told: Told, counted: Counters) -> Engine:
            return self._lodger(place, states.get(place.unit, {}), told, counted)

        look = Look(box.now(), box.memory(), engines, held, self._lodgers.pool(lodger))
        for action in self._guard.see(look):
            self._do(action, look)
        self._write_down(look)
        self._measure(look)

    def _listen(self) -> None:
        """The address may come late at boot, and a port may be taken for a while."""
        if self._agent is None:
            settings = self._settings
            try:
                askers = [*settings.proxies, *settings.others.values()]
                self._agent = Agent(settings.address, settings.port, askers, self._why_out)
            except OSError as error:
                if str(error) != self._agent_said:
                    self._agent_said = str(error)
                    text = "cannot listen on %s port %d: %s; no copy can be taken out of the proxy"
                    self._notes.event("note", "", text % (settings.address, settings.port, error))
        elif len(self._agent.refused) > self._refused:
            self._refused = len(self._agent.refused)
            self._notes.event("note", "", "asked by %s, not the proxy" % ", ".join(sorted(self._agent.refused)))

    def _why_out(self, server: str) -> str:
        if self._leaving:
            return ""
        why = next((self._guard.out(place.unit) for place in self._layout.places if place.server == server), "")
        fellows = self._fellows.get(server)
        return why or (fellows.why_out() if fellows is not None else "")

    def _follow(self, places: List[box.Place], pooled: List[box.Place]) -> None:
        """One watch for each engine of the current layout, and where this is the head's box one for its other ranks.

        A follower looks at its head's counters: they say how many requests run on the whole.
        """
        self._follow_fellows(places)
        wanted = {place.unit: place for place in (*places, *pooled)}
        for unit, watch in list(self._watches.items()):
            if wanted.get(unit) != watch.place:
                watch.end()
                del self._watches[unit]
        for unit, place in wanted.items():
            if unit not in self._watches:
                self._watches[unit] = Watch(place)

    def _follow_fellows(self, places: List[box.Place]) -> None:
        wanted = {}
        for place in places:
            known = [self._settings.others[name] for name in place.fellows if name in self._settings.others]
            if place.answers and known:
                wanted[place.server] = tuple((address, self._settings.port) for address in known)
        for server, fellows in list(self._fellows.items()):
            if wanted.get(server) != fellows.guards:
                fellows.end()
                del self._fellows[server]
        for server, guards in wanted.items():
            if server not in self._fellows:
                self._fellows[server] = Fellows(server, guards)

    def _engine(self, place: box.Place, state: Dict[str, str]) -> Engine:
        # Before the counters: requests that came before the proxy was told are in them.
        told = self._agent.told(place.server) if self._agent else 0
        watch = self._watches.get(place.unit)
        seen = watch.now() if watch else None
        return Engine(
            unit=place.unit,
            active=state.get("ActiveState", ""),
            run=state.get("InvocationID", ""),
            answers=place.answers,
            most=place.most,
            running=seen.running if seen else 0,
            waiting=seen.waiting if seen else 0,
            open=open_from(self._proxies, place.port) if place.answers else 0,
            counters=seen.counters if seen else None,
            answer=watch.answer if watch else None,
            told=told,
        )

    def _lodger(self, place: box.Place, state: Dict[str, str], told: Told, counted: Counters) -> Engine:
        """An engine of the pool: the worker says what runs on it, and what has ended is a sign of life too."""
        watch = self._watches.get(place.unit)
        seen = watch.now() if watch else None
        return Engine(
            unit=place.unit,
            active=state.get("ActiveState", ""),
            run=state.get("InvocationID", ""),
            most=place.most,
            running=max(told.running, seen.running if seen else 0),
            waiting=seen.waiting if seen else 0,
            counters=(*(seen.counters if seen else ()), *counted) or None,
            answer=watch.answer if watch else None,
        )

    def _do(self, action: Action, look: Look) -> None:
        if action.kind == "ask":
            watch = self._watches.get(action.unit)
            if watch is not None:
                watch.ask(self._settings.answer_within)
            return
        if action.kind == "note":
            self._notes.event("note", action.unit, action.why, **memory_told(look.memory))
            return
        with open(box.ACTING, "a", opener=lambda name, flags: os.open(name, flags, 0o600)) as acting:
            # A move takes this lock once after its claim: it waits for what has begun, and nothing begins after.
            fcntl.flock(acting, fcntl.LOCK_EX)
            held = box.held()
            places = [*self._layout.look(), *self._lodgers.look()]
            if held or action.unit not in [place.unit for place in places]:
                self._notes.event("note", action.unit, "no %s after all: %s" % (action.kind, held or "another layout"))
                return
            self._notes.event(action.kind, action.unit, action.why, **memory_told(look.memory))
            problem = systemd.act(action.kind, action.unit)
        if problem:
            self._notes.event("note", action.unit, "%s failed: %s" % (action.kind, problem))

    def _write_down(self, look: Look) -> None:
        memory, phases = look.memory, self._guard.phases()
        self._lowest = memory.available if self._lowest is None else min(self._lowest, memory.available)
        if self._guard.shortage.why:
            self._notes.append("shortages", dict(memory_told(memory), at=round(time.time(), 3), phases=phases))
        minute = self._minute or {"at": round(time.time()), "begun": look.now, **memory_told(memory)}
        minute["available"] = min(minute["available"], memory.available)
        minute["swap_free"] = min(minute["swap_free"], memory.swap_free)
        if memory.pressure is not None:
            minute["pressure"] = max(minute["pressure"] or 0.0, memory.pressure)
        if look.now - minute["begun"] >= MINUTE:
            self._notes.append("minutes", {key: value for key, value in minute.items() if key != "begun"})
            minute = {}
        self._minute = minute
        self._notes.save(self._boot, self._guard.keep())
        self._notes.status(
            {
                "since": self._since,
                "at": time.time(),
                "act": self._settings.act,
                "held": look.held,
                "short": self._guard.shortage.why,
                "total": memory.total,
                "lowest": self._lowest,
                "marks": [self._settings.memory_low, self._settings.memory_high],
                "listening": self._agent is not None,
                "asked": self._agent.asked if self._agent else 0,
                "refused": sorted(self._agent.refused) if self._agent else [],
                "pool": self._told_pool(look),
                "engines": [
                    {
                        "unit": engine.unit,
                        "active": engine.active,
                        "phase": phases.get(engine.unit, ""),
                        "out": self._guard.out(engine.unit),
                        "running": engine.running,
                        "waiting": engine.waiting,
                        "counters": engine.counters is not None,
                    }
                    for engine in look.engines
                ],
                **memory_told(memory),
            }
        )

    def _told_pool(self, look: Look) -> Optional[Dict[str, Any]]:
        """What the worker reads (fleetctl/pool/worker/guarded.py), and what the guard sees of the pool."""
        if look.pool is None:
            return None
        return dict(self._guard.pool.told(), worker=not look.pool.silent)

    def _measure(self, look: Look) -> None:
        """What the services take now. Last of all in a second, and not while memory is short: then seconds count."""
        spent = look.now - self._measured
        if spent >= MEASURE_EVERY and not self._guard.shortage.why:
            self._measured = look.now
            uses = self._services.look()
            self._uses.see(uses, look.memory.available, time.time(), min(spent, 2 * MEASURE_EVERY))

    def _farewell(self) -> None:
        """HAProxy takes a server back only at the word "up": one that was told "down" has to hear it."""
        told = self._agent is not None and any(
            self._agent.told_anyone(place.server) for place in self._layout.places if place.answers
        )
        self._leaving = True
        if told:
            time.sleep(FAREWELL)
        self._notes.event("note", "", "off guard")
        self._uses.save(time.time())
        if self._agent is not None:
            self._agent.end()


def _boot() -> str:
    """Which boot this is, also where boxes share a kernel: its id, and when PID 1 began."""
    with open("/proc/sys/kernel/random/boot_id") as source:
        boot = source.read().strip()
    with open("/proc/1/stat") as source:
        return "%s-%s" % (boot, source.read().rsplit(")", 1)[1].split()[19])


def main(path: str) -> int:
    """Run the guard with the settings in a file; the exit status."""
    try:
        with open(path, encoding="utf-8") as source:
            settings = settings_from(json.load(source))
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write("%s is no settings file of the guard: %s: %s\n" % (path, type(error).__name__, error))
        return 2
    os.umask(0o077)
    # When memory is short is when this program is needed: its own pages stay.
    if ctypes.CDLL(None, use_errno=True).mlockall(LOCKED_PAGES) != 0:
        sys.stderr.write("pages cannot be locked: %s\n" % os.strerror(ctypes.get_errno()))
    threading.stack_size(256 * 1024)
    service = Service(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, service.stop)
    service.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
