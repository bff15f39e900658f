"""Whether an engine hangs: first by its own counters, then by a completion that it is asked for. Pure."""

from typing import NamedTuple, Optional

from fleetctl.guard.seen import Answer, Counters, Engine, Settings

SETTLE = 10.0  # seconds after a start in which nothing is judged
AGAIN = 5.0  # seconds between two completions when the first one failed with an error
ERRORS = 2  # failed completions in a row that make an engine a dead one; silence makes it one at once


class Verdict(NamedTuple):
    """``ask``: why a completion is to be asked for now. ``wedged``: why the engine counts as hung."""

    ask: str = ""
    wedged: str = ""


class Liveness:
    """Follows one engine from look to look."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._run = ""
        self._counters: Optional[Counters] = None
        self._busy = False
        self.moved = 0.0
        """When there last was a sign of life: a counter that moved, an answer, or nothing to do."""
        self.proved = 0.0
        """When the engine last worked for somebody."""
        self._asked: Optional[float] = None
        self._errors = 0
        self._again: Optional[float] = None
        self._heard: Optional[Answer] = None

    def forget(self, now: float) -> None:
        """Begin anew: what was seen before says nothing any more."""
        self.moved = self.proved = now
        self._asked, self._again, self._errors = None, None, 0

    def see(self, now: float, engine: Engine) -> Verdict:
        """Take one look at an engine that is active into account."""
        if engine.run != self._run:
            self._run, self._counters = engine.run, None
            self.forget(now + SETTLE)
        self._look_at_counters(now, engine)
        failed = self._look_at_answer(now, engine.answer)
        if failed:
            return Verdict(wedged="%s, and %s" % (self._quiet(now, engine), failed))
        if self._asked is not None:
            # A guard that was restarted meanwhile, or a thread that died, must not wait for an answer for ever.
            if now - self._asked > 2 * self._settings.answer_within + AGAIN:
                self._asked = None
            return Verdict()
        why = self._suspicion(now, engine)
        if why:
            self._asked, self._again = now, None
        return Verdict(ask=why)

    def _look_at_counters(self, now: float, engine: Engine) -> None:
        busy = engine.running + engine.waiting + engine.open > 0
        if engine.counters is None:
            return
        if self._counters is not None and engine.counters != self._counters:
            self.moved = max(self.moved, now)
            self.proved = max(self.proved, now)
            self._again, self._errors = None, 0
        elif not busy or not self._busy:
            self.moved = max(self.moved, now)
        self._counters, self._busy = engine.counters, busy

    def _look_at_answer(self, now: float, answer: Optional[Answer]) -> str:
        if answer is None or answer is self._heard or answer == self._heard:
            return ""
        self._heard = answer
        asked, self._asked = self._asked, None
        if asked is None or answer.asked < asked:
            return ""  # of an earlier question, which nobody waits for any more
        if answer.well:
            self.moved = self.proved = max(self.moved, now)
            self._again, self._errors = None, 0
            return ""
        if self.proved >= asked:
            return ""  # it works, for others: it was only busy
        self._errors += 1
        if answer.silent or self._errors >= ERRORS:
            return answer.said
        self._again = now + AGAIN
        return ""

    def _suspicion(self, now: float, engine: Engine) -> str:
        if self._again is not None:
            return "the last completion failed" if now >= self._again else ""
        quiet = now - self.moved
        if engine.counters is None:
            return "/metrics is silent for %.0f s" % quiet if quiet >= self._settings.silent else ""
        if self._busy and quiet >= self._settings.silent:
            return self._quiet(now, engine)
        idle = now - self.proved
        if self._settings.idle and not self._busy and idle >= self._settings.idle:
            return "idle for %.0f s" % idle
        return ""

    def _quiet(self, now: float, engine: Engine) -> str:
        if engine.counters is None:
            return "/metrics is silent"
        told = "%d running, %d waiting, %d connections of the proxy" % (engine.running, engine.waiting, engine.open)
        return "%s and no counter has moved for %.0f s" % (told, max(0.0, now - self.proved))
