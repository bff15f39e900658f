"""What the guard does with the pool of its box: how much its engines may take, and which of them hang. Pure.

The worker of the box starts and stops them. So the guard tells it, in its status file, what it may load and what has to
go; the requests of what goes wait in the queue. It acts on a unit itself only to end one: what does not stop in time,
what hangs, and where no worker answers. It starts none.

When memory is short nothing is loaded. Then goes what is idle and not pinned, then what is not pinned, then engines
beside the pool, and what is pinned last. Afterwards the pool may take what is there beyond twice ``memory_low``, until
there is room again for all that it gave back.
"""

from typing import Any, Dict, List, Optional

from fleetctl.guard.liveness import SETTLE, Liveness
from fleetctl.guard.seen import Action, Lodger, Look, Pool, Settings
from fleetctl.guard.shortage import GIB, Shortage

HOUR = 3600.0
DRAIN = 30.0  # seconds that running requests get at most when memory runs short
SETTLED = 10.0  # seconds after an engine has gone until the memory that it held counts as back
HASTE = 3.0  # the same, when no time is left: as long as it takes the worker to hear and to tell
HURRY = 2.0  # seconds until memory is at the mark below which nothing is waited for


class Pooled:
    """Follows the pool of a box from look to look."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._hangs: Dict[str, List[float]] = {}
        self._forget()

    def _forget(self) -> None:
        """As if nothing had been seen, but for what has hung."""
        self.hold = ""
        """Why nothing may be loaded."""
        self.limit: Optional[int] = None
        """Bytes that its engines may take; None: all that is the pool's."""
        self.reach = ""
        """What goes to keep to it: idle, unpinned or pinned, as fleetctl/pool/residency.py has it."""
        self.out: Dict[str, str] = {}
        """unit → why it stays out."""
        self.spent = True
        """Nothing of it is left that goes before engines beside the pool."""
        self._acted = 0.0
        self._silent: Optional[float] = None
        self._before = self._first = self._taken = self._gave = 0
        self._going: Dict[str, float] = {}
        self._ended: Dict[str, float] = {}
        self._lives: Dict[str, Liveness] = {}

    def told(self) -> Dict[str, Any]:
        """For the worker."""
        return {"hold": self.hold, "memory": self.limit, "reach": self.reach, "out": dict(self.out)}

    def see(self, look: Look, shortage: Shortage) -> List[Action]:
        """One second."""
        pool = look.pool
        if pool is None or look.held or not pool.lodgers:
            self._forget()
            return []
        self._silent = (look.now if self._silent is None else self._silent) if pool.silent else None
        actions = self._hung(look, pool)
        if self._settings.act == "watch":
            return actions
        return actions + (self._short(look, pool, shortage) if shortage.why else self._eased(look, pool, shortage))

    # Memory

    def _short(self, look: Look, pool: Pool, shortage: Shortage) -> List[Action]:
        now, hurry = look.now, shortage.seconds_left(look.memory) < HURRY
        self.hold = shortage.why
        if pool.silent:
            return self._without_a_worker(look, pool, hurry)
        if any(not one.phase and one.engine.active in ("active", "activating") for one in pool.lodgers):
            self.spent = False  # its word is still to come
            return []
        loaded = [one for one in pool.lodgers if one.phase == "loaded"]
        loose = [one for one in loaded if not one.pinned]
        going = [one for one in pool.lodgers if one.phase == "unloading"]
        loading = [one for one in pool.lodgers if one.phase == "loading"]
        self.spent = not loose and not going and not loading and (now - self._acted >= SETTLED or not self._acted)
        if going:
            self._acted = now
            return self._overdue(look, going, hurry)
        self._going = {}
        if self._acted and now - self._acted < (HASTE if hurry else SETTLED):
            return []
        if any(not one.engine.running for one in loose):
            reach = "idle"
        elif loading:
            return self._end(look, pool, loading, "it loads, and memory is short")
        elif loose:
            reach = "unpinned"
        elif loaded and not any(one.active in ("active", "activating") for one in look.engines):
            reach = "pinned"
        else:
            return []
        taken = _taken(pool)
        if self.reach == reach and self._taken == taken:
            return self._end(look, pool, loose or loaded, "the worker has not stopped it")
        self._give(look, pool, max(1, self._settings.memory_high - look.memory.available))
        self.reach, self._taken = reach, taken
        words = {"idle": "what is idle goes", "unpinned": "what is not pinned goes", "pinned": "pinned models go"}
        return [Action("note", "", "the pool may take %.2f GiB: %s" % ((self.limit or 0) / GIB, words[reach]))]

    def _give(self, look: Look, pool: Pool, size: int) -> None:
        """The pool has so much less from now on."""
        taken = _taken(pool)
        if self.limit is None:
            self._before, self._first = look.memory.available, taken
        self.limit, self._acted = max(0, taken - size), look.now

    def _overdue(self, look: Look, going: List[Lodger], hurry: bool) -> List[Action]:
        """What has to go and takes too long is killed; its requests are given out anew."""
        self._going = {one.engine.unit: self._going.get(one.engine.unit, look.now) for one in going}
        actions = []
        for engine in (one.engine for one in going):
            waited = look.now - self._going[engine.unit]
            hard = look.memory.available < self._settings.memory_hard and waited >= 1.0
            busy = engine.running > 0 and (hurry or waited >= DRAIN)
            if (hard or busy) and look.now - self._ended.get(engine.unit, 0.0) >= DRAIN:
                self._ended[engine.unit] = look.now
                why = "%.2f GiB are left, %d requests are given out anew" % (
                    look.memory.available / GIB,
                    engine.running,
                )
                actions.append(Action("kill", engine.unit, why))
        return actions

    def _without_a_worker(self, look: Look, pool: Pool, hurry: bool) -> List[Action]:
        up = [one for one in pool.lodgers if one.engine.active in ("active", "activating")]
        self.spent = not up
        if not up or (self._acted and look.now - self._acted < SETTLED):
            return []
        # One that is started again answers within seconds, and has read by then what has to go.
        if not hurry and look.now - (self._silent or look.now) < SETTLED:
            return []
        return self._end(look, pool, up, "no worker answers, and memory is short")

    def _end(self, look: Look, pool: Pool, of: List[Lodger], why: str) -> List[Action]:
        """Stop the largest, those that are pinned last."""
        one = min(of, key=lambda lodger: (lodger.pinned, -lodger.engine.most))
        self._give(look, pool, one.engine.most)
        return [Action("stop", one.engine.unit, why)]

    def _eased(self, look: Look, pool: Pool, shortage: Shortage) -> List[Action]:
        self.hold, self.reach, self.spent = "", "", True
        if self.limit is None:
            self._acted, self._taken = 0.0, 0
            return []
        if pool.silent:
            return []
        taken = _taken(pool)
        available = look.memory.available
        self._gave = max(self._gave, min(available - self._before, self._first - taken))
        loading = sum(one.engine.most for one in pool.lodgers if one.phase == "loading")
        self.limit = max(0, taken - loading) + max(0, available - self._settings.memory_high)
        room = available - self._gave >= self._settings.memory_high
        if not (shortage.enough() and look.now - self._acted >= SETTLED and (room or self.limit >= pool.memory)):
            return []
        self.limit, self._acted, self._gave, self._taken = None, 0.0, 0, 0
        return [Action("note", "", "the pool has its memory again: %.2f GiB available" % (available / GIB))]

    # Engines that hang

    def _hung(self, look: Look, pool: Pool) -> List[Action]:
        actions: List[Action] = []
        for unit, hangs in self._hangs.items():
            hangs[:] = [at for at in hangs if look.now - at < HOUR]
            if unit in self.out and len(hangs) < self._settings.restarts:
                del self.out[unit]
        # One that loads is the worker's to wait for; without a word of the worker nothing is known of any.
        judged = [] if pool.silent else [one for one in pool.lodgers if one.phase in ("loaded", "unloading")]
        engines = [one.engine for one in judged if one.engine.active == "active"]
        self._lives = {unit: life for unit, life in self._lives.items() if unit in [one.unit for one in engines]}
        for engine in engines:
            if engine.unit not in self._lives:
                self._lives[engine.unit] = Liveness(self._settings)
                self._lives[engine.unit].forget(look.now + SETTLE)
            verdict = self._lives[engine.unit].see(look.now, engine)
            if verdict.ask:
                actions.append(Action("ask", engine.unit, verdict.ask))
            if not verdict.wedged:
                continue
            self._lives[engine.unit].forget(look.now)
            if self._settings.act == "watch":
                actions.append(Action("note", engine.unit, "nothing is done (act: watch): %s" % verdict.wedged))
                continue
            # systemd starts it again, and the worker waits for that: its requests are given out anew.
            actions.append(Action("kill", engine.unit, "it hangs: %s" % verdict.wedged))
            hangs = self._hangs.setdefault(engine.unit, [])
            hangs.append(look.now)
            if len(hangs) > self._settings.restarts:
                self.out[engine.unit] = "it hung %d times within an hour" % len(hangs)
                actions.append(Action("stop", engine.unit, self.out[engine.unit]))
        return actions


def _taken(pool: Pool) -> int:
    """Bytes of the engines that take memory; where no worker tells, of those that run."""
    if pool.silent:
        return sum(one.engine.most for one in pool.lodgers if one.engine.active in ("active", "activating"))
    return sum(one.engine.most for one in pool.lodgers if one.phase in ("loading", "loaded", "unloading"))
