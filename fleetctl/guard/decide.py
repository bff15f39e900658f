"""What the guard does, and why: one state machine per engine of the current layout. Pure.

An engine is *in* until memory runs short or it hangs. Then it is *leaving*: the proxy is told that it is out, and what
runs on it gets a short while. What comes next depends on why:

    hung           in → leaving → starting (killed, started anew) → in
    memory short   in → leaving → stopping → stopped → starting → in

It is in again when it has answered a completion, and memory has been enough for a while. While somebody
works on the fleet nothing is done and the proxy hears nothing bad: what is on the box is that somebody's business.
"""

from typing import Any, Dict, List, Optional

from fleetctl.guard.liveness import Liveness
from fleetctl.guard.pooled import Pooled
from fleetctl.guard.seen import Action, Answer, Engine, Look, Memory, Settings
from fleetctl.guard.shortage import GIB, Shortage

IN, LEAVING, STOPPING, STOPPED, STARTING = "in", "leaving", "stopping", "stopped", "starting"
MEMORY, HUNG = "memory", "hung"
HOUR = 3600.0  # seconds in which at most `restarts` starts happen
BACK_OFF = 30.0  # seconds from one start of an engine to the next; doubled with each one within the hour
DRAIN = 30.0  # seconds that running requests get at most when memory runs short
PASSED_ON = 4  # times that the guard of the head, which asks twice a second, was told; the proxy asks as often
UNHEARD = 4.0  # seconds in which a proxy that watches would have asked: later, nobody watches
SETTLED = 10.0  # seconds after an engine has stopped until the memory that it held counts as back
STOP_AGAIN = 15.0  # seconds until a unit that systemd does not stop is to be stopped once more
HURRY = 2.0  # seconds until memory is at the mark below which nothing is waited for
PROVE_AGAIN = 5.0  # seconds between two completions for an engine that is to come back


class _State:
    """Where one engine is. Times are seconds since boot, sizes bytes."""

    def __init__(self, settings: Settings, unit: str) -> None:
        self.unit = unit
        self.phase = IN
        self.cause = ""
        self.since = 0.0
        self.starts: List[float] = []
        self.before = 0
        """Available when it was told to stop."""
        self.held = 0
        """The most that it was ever seen to give back."""
        self.asked: Optional[float] = None
        self.run = ""
        """The process that is to leave."""
        self.given_up = False
        self.active_since: Optional[float] = None
        self.life = Liveness(settings)

    def enter(self, phase: str, now: float) -> None:
        self.phase, self.since = phase, now
        self.asked = None


class Guard:
    """Takes one look after the other, and says what is to be done. ``kept`` is what an earlier guard has left."""

    def __init__(self, settings: Settings, kept: Optional[Dict[str, Any]] = None) -> None:
        self._settings = settings
        self.shortage = Shortage(settings)
        self.pool = Pooled(settings)
        self._states: Dict[str, _State] = {}
        self._held = ""
        self._kept = kept or {}

    def out(self, unit: str) -> str:
        """Why the proxy is to send no requests to an engine; empty: it may."""
        state = self._states.get(unit)
        if state is None or state.phase == IN or self._held:
            return ""
        return {MEMORY: "memory is short", HUNG: "it hangs"}[state.cause]

    def phases(self) -> Dict[str, str]:
        """unit → where it is, for who asks."""
        return {unit: state.phase for unit, state in self._states.items()}

    def keep(self) -> Dict[str, Any]:
        """What a guard that is started anew in the same boot has to know."""
        names = ("phase", "cause", "since", "starts", "before", "held")
        return {unit: {name: getattr(state, name) for name in names} for unit, state in self._states.items()}

    def see(self, look: Look) -> List[Action]:
        """One second: what was seen, and what is to be done about it."""
        begun = self.shortage.why
        self.shortage.see(look.now, look.memory)
        actions = self._on_memory(begun, self.shortage.why) + self.pool.see(look, self.shortage)
        self._states = {engine.unit: self._state(engine.unit) for engine in look.engines}
        if look.held:
            return actions + self._stand_back(look)
        if self._held:
            actions.append(Action("note", "", "on guard again"))
            self._held = ""
        for engine in look.engines:
            actions += self._about(look, engine)
        return actions

    def _state(self, unit: str) -> _State:
        state = self._states.get(unit)
        if state is None:
            state = _State(self._settings, unit)
            for name, value in self._kept.pop(unit, {}).items():
                setattr(state, name, value)
        return state

    def _stand_back(self, look: Look) -> List[Action]:
        for engine in look.engines:
            state = self._states[engine.unit]
            down = engine.active in ("inactive", "failed")
            # One that this guard has stopped and nobody has started meanwhile is still its business afterwards.
            if not (down and state.phase == STOPPED):
                state.enter(STOPPED if down and state.phase == STOPPING else IN, look.now)
            state.given_up, state.active_since = False, None
            state.life.forget(look.now)
        if look.held == self._held:
            return []
        self._held = look.held
        return [Action("note", "", "standing back: %s" % look.held)]

    def _on_memory(self, before: str, now: str) -> List[Action]:
        if now and not before:
            return [Action("note", "", "memory is short: %s" % now)]
        return [Action("note", "", "memory is enough again")] if before and not now else []

    # One engine

    def _about(self, look: Look, engine: Engine) -> List[Action]:
        state = self._states[engine.unit]
        if engine.active == "active":
            state.active_since = look.now if state.active_since is None else state.active_since
        elif engine.active:
            state.active_since = None
        acts: Dict[str, Any] = {
            IN: self._in,
            LEAVING: self._leaving,
            STOPPING: self._stopping,
            STOPPED: self._stopped,
            STARTING: self._starting,
        }
        actions: List[Action] = acts[state.phase](look, engine, state)
        return actions

    def _in(self, look: Look, engine: Engine, state: _State) -> List[Action]:
        if engine.active not in ("active", "activating"):
            return []
        if self.shortage.why and self._is_next(look, engine):
            return self._leave(look, engine, state, MEMORY, self.shortage.why)
        if engine.active != "active" or not engine.answers:
            return []
        verdict = state.life.see(look.now, engine)
        if verdict.wedged:
            return self._leave(look, engine, state, HUNG, verdict.wedged)
        return [Action("ask", engine.unit, verdict.ask)] if verdict.ask else []

    def _is_next(self, look: Look, engine: Engine) -> bool:
        """One engine at a time, those that come first in the release: one may be enough. The pool gives first."""
        states = self._states.values()
        busy = any(state.phase in (LEAVING, STOPPING) and state.cause == MEMORY for state in states)
        gone = [state for state in states if state.phase == STOPPED]
        return not busy and self.pool.spent and all(look.now - state.since >= SETTLED for state in gone)

    def _leave(self, look: Look, engine: Engine, state: _State, cause: str, why: str) -> List[Action]:
        if self._settings.act == "watch":
            state.life.forget(look.now)
            if state.cause == cause and look.now - state.since < 60:
                return []
            state.cause, state.since = cause, look.now
            return [Action("note", state.unit, "nothing is done (act: watch): %s" % why)]
        state.cause, state.given_up = cause, False
        state.run, state.before = engine.run, look.memory.available
        state.enter(LEAVING, look.now)
        return [Action("note", state.unit, "out of the proxy: %s" % why)]

    def _leaving(self, look: Look, engine: Engine, state: _State) -> List[Action]:
        if engine.active and (engine.active not in ("active", "activating") or engine.run != state.run):
            state.enter(STARTING, look.now)  # it has gone by itself, and is waited for
            return []
        waited = look.now - state.since
        # What the guard of the head was told, it has to tell the proxy.
        known = engine.told > (0 if engine.answers else PASSED_ON) or waited >= UNHEARD
        if state.cause == HUNG:
            return self._leaving_hung(look, engine, state, known)
        if self.shortage.enough():
            return self._back(look, state, "memory is enough again")
        hurry = self.shortage.seconds_left(look.memory) < HURRY
        idle = known and engine.running + engine.waiting == 0 and engine.counters is not None
        if not (hurry or idle or waited >= DRAIN or (known and engine.active == "activating")):
            return []
        state.before = look.memory.available
        state.enter(STOPPING, look.now)
        left = engine.running + engine.waiting
        why = (self.shortage.why or "memory was short") + (", %d requests are cut" % left if left else "")
        return [Action("stop", engine.unit, why)]

    def _leaving_hung(self, look: Look, engine: Engine, state: _State, known: bool) -> List[Action]:
        verdict = state.life.see(look.now, engine)
        if state.life.proved >= state.since:
            return self._back(look, state, "it works again")
        if not known:
            return []
        wait = self._wait_to_start(look.now, state)
        if wait:
            if state.given_up:
                return [Action("ask", engine.unit, verdict.ask)] if verdict.ask else []
            state.given_up = True
            return [Action("note", engine.unit, "not restarted yet: %s" % wait)]
        state.given_up = False
        self._started(look.now, state)
        return [Action("kill_and_restart", engine.unit, "it hangs")]

    def _measure(self, look: Look, engine: Engine, state: _State) -> None:
        """What it gives back; never more than it was given, for others may give something back in these seconds too."""
        back = look.memory.available - state.before
        state.held = max(state.held, min(back, engine.most) if engine.most else back)

    def _stopping(self, look: Look, engine: Engine, state: _State) -> List[Action]:
        self._measure(look, engine, state)
        if engine.active in ("inactive", "failed"):
            state.enter(STOPPED, look.now)
            return [Action("note", engine.unit, "stopped; %.2f GiB are back" % (max(0, state.held) / GIB))]
        waited = look.now - state.since
        if look.memory.available < self._settings.memory_hard and waited >= 1.0 and state.asked is None:
            state.asked = look.now
            return [Action("kill", engine.unit, "%.2f GiB are left" % (look.memory.available / GIB))]
        if engine.active == "active" and waited >= STOP_AGAIN:
            state.enter(STOPPING, look.now)
            return [Action("stop", engine.unit, "it has not begun to stop")]
        return []

    def _stopped(self, look: Look, engine: Engine, state: _State) -> List[Action]:
        if engine.active in ("active", "activating"):
            state.enter(STARTING, look.now)  # somebody else has started it
            return [Action("note", engine.unit, "it was started")]
        since = look.now - state.since
        if since <= SETTLED:
            self._measure(look, engine, state)
        if self._settings.act != "restart" or since < SETTLED:
            return []
        # What it gave back it will take again: only what is there beyond that is room.
        if not self.shortage.enough() or look.memory.available - state.held < self._settings.memory_high:
            return []
        wait = self._wait_to_start(look.now, state)
        if wait:
            if state.given_up:
                return []
            state.given_up = True
            return [Action("note", engine.unit, "not started yet: %s" % wait)]
        state.given_up = False
        self._started(look.now, state)
        return [Action("start", engine.unit, "%.2f GiB available" % (look.memory.available / GIB))]

    def _starting(self, look: Look, engine: Engine, state: _State) -> List[Action]:
        if self.shortage.why and engine.active in ("active", "activating") and self._is_next(look, engine):
            return self._leave(look, engine, state, MEMORY, self.shortage.why)
        if engine.active != "active" or state.active_since is None:
            return []
        if state.cause == MEMORY and not self.shortage.enough():
            return []
        if not engine.answers:
            return self._back(look, state, "it runs")
        return self._prove(look, engine, state)

    def _prove(self, look: Look, engine: Engine, state: _State) -> List[Action]:
        """One good completion that was asked for after the start brings it back."""
        answer: Optional[Answer] = engine.answer
        if state.asked is not None and answer is not None and answer.asked >= state.asked:
            if answer.well:
                return self._back(look, state, "it answers")
            if answer.silent:
                return self._leave(look, engine, state, HUNG, answer.said)
            if look.now - state.asked < PROVE_AGAIN:
                return []
        elif state.asked is not None and look.now - state.asked < 2 * self._settings.answer_within:
            return []
        state.asked = look.now
        return [Action("ask", engine.unit, "to come back")]

    def _back(self, look: Look, state: _State, why: str) -> List[Action]:
        state.enter(IN, look.now)
        state.life.forget(look.now)
        return [Action("note", state.unit, "back in the proxy: %s" % why)]

    # Back-off and limit

    def _wait_to_start(self, now: float, state: _State) -> str:
        """Why the engine may not be started now; empty: it may."""
        state.starts = [at for at in state.starts if now - at < HOUR]
        count = len(state.starts)
        if count >= self._settings.restarts:
            return "%d restarts within an hour, which is the limit" % count
        if count and now - state.starts[-1] < BACK_OFF * 2 ** (count - 1):
            return "the last start was %.0f s ago" % (now - state.starts[-1])
        return ""

    def _started(self, now: float, state: _State) -> None:
        state.starts.append(now)
        state.enter(STARTING, now)


def memory_told(memory: Memory) -> Dict[str, Any]:
    """Memory as it is written down."""
    return {"available": memory.available, "swap_free": memory.swap_free, "pressure": memory.pressure}
