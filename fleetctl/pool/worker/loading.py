"""Which models are loaded: what the policy decides (``fleetctl/pool/residency.py``), done through systemd's units.

An engine is loaded once its health check says yes. One that dies while it is loaded is loading again as soon as systemd
starts it again. If systemd does not, somebody has stopped it, or it
has given up: then the policy decides when it is started, after a while that grows from one time to the next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from pathlib import Path

from fleetctl.errors import FleetError
from fleetctl.pool import residency
from fleetctl.pool.worker.beside import Beside
from fleetctl.pool.worker.demand import Waiting
from fleetctl.pool.worker.engine import Engine
from fleetctl.pool.worker.guarded import STATUS, said
from fleetctl.pool.worker.units import UnitError, Units
from fleetctl.pool.worker.wishing import keep, restore

log = logging.getLogger(__name__)

LOOK = 0.1
"""Seconds between two health checks of an engine that loads, at first; longer as it takes longer."""
MOST_LOOK = 1.0
WATCH = 2.0
"""Seconds between two health checks of an engine that is loaded."""
MISSES = 5
"""Health checks in a row that a loaded engine may leave unanswered while its process runs: it may be very busy."""
AGAIN = 10
"""Times that it is looked whether systemd starts an engine again that has died."""
PATIENCE = 5.0
"""Seconds that requests wait at least, before a model is loaded here that another box has loaded already."""


class RefusedLoadError(FleetError):
    """What an operator wishes cannot be done."""


class Loading:
    """Loads and evicts the engines of a box. ``changed`` is called when one begins or ends to serve, with whether its
    model is served here; ``elsewhere`` says whether another box has a model loaded, or loads it."""

    def __init__(
        self,
        memory: int,
        engines: list[Engine],
        units: Units,
        waiting: Callable[[Engine], Waiting],
        changed: Callable[[Engine], None],
        elsewhere: Callable[[Engine], Awaitable[bool]],
        rules: residency.Rules = residency.RULES,
    ) -> None:
        self.memory = memory
        self.engines = engines
        self.rules = rules
        self.held = False
        """The box is drained: no engine is started, and none goes but those that shall."""
        self._units = units
        self._waiting = waiting
        self._changed = changed
        self._elsewhere = elsewhere
        self.guard = STATUS
        """The file in which the guard of the box says what may be loaded."""
        self._kept: Path | None = None
        self._task = Beside(_unexpected).start

    def keep_wishes(self, path: Path) -> None:
        """Wish what was wished before, and keep in this file what is wished from now on."""
        restore(path, self.engines)
        self._kept = path

    def _keep(self) -> None:
        if self._kept is not None:
            keep(self._kept, self.engines)

    async def begin(self) -> None:
        """Find what runs already: a worker that is started again leaves the engines as they are."""
        for engine in self.engines:
            try:
                active = await self._units.is_active(engine.config.unit)
            except UnitError as error:
                log.warning("%s", error)
                continue
            if active:
                self._start_loading(engine, "it runs already")

    async def run(self) -> None:
        """Decide every second, until cancelled."""
        while True:
            await self.decide()
            for engine in self.engines:
                if engine.serves and not engine.watched:
                    engine.watched = True
                    self._task(self._watch(engine))
            await asyncio.sleep(0.25)

    async def decide(self) -> None:
        """Ask the policy once, and begin what it says. Nothing goes here for a model that another box has."""
        if self.held:
            for engine in self.engines:
                if engine.wish == "evict" and not engine.pinned:
                    self._start_unloading(engine, "an operator wishes it")
            return
        if not residency.decide(time.monotonic(), self.state(time.monotonic()), self.rules):
            return
        wanted = [one for one in self.engines if one.phase in ("absent", "failed") and self._waiting(one).requests]
        worth = await asyncio.gather(*(self._worth_it(engine) for engine in wanted))
        others = {engine.name for engine, is_worth in zip(wanted, worth, strict=True) if not is_worth}
        now = time.monotonic()
        by_name = {engine.name: engine for engine in self.engines}
        for action in residency.decide(now, self.state(now, others), self.rules):
            engine = by_name[action.model]
            if isinstance(action, residency.Evict):
                self._start_unloading(engine, action.reason)
            else:
                self._start_loading(engine, action.reason)

    def state(self, now: float, others: Collection[str] = ()) -> residency.State:
        """The box as the policy sees it; the requests of ``others`` are for other boxes.

        What the guard keeps out is as if an operator wished it, and the memory may be less than the pool's share.
        """
        guard = said(self.guard)
        seen = []
        for engine in self.engines:
            one = self._seen(engine, now)
            if engine.config.unit in guard.out:
                one = replace(one, pinned=False, wish="evict")
            seen.append(replace(one, requests_waiting=0) if one.model in others else one)
        memory = self.memory if guard.memory is None else min(self.memory, guard.memory)
        return residency.State(memory, seen, hold=bool(guard.hold), reach=guard.reach)

    def _seen(self, engine: Engine, now: float) -> residency.Engine:
        waiting = self._waiting(engine)
        return residency.Engine(
            model=engine.name,
            memory=engine.config.memory,
            weights=engine.config.weights,
            load_seconds=engine.load_seconds,
            pinned=engine.pinned,
            phase=engine.phase,
            loaded_at=engine.loaded_at,
            last_used=engine.last_used,
            requests_waiting=waiting.requests,
            oldest_wait=waiting.oldest(now),
            running=len(engine.running),
            demand=engine.demand.now(now),
            failures=engine.failures,
            failed_at=engine.failed_at,
            wish=engine.wish,
        )

    async def _worth_it(self, engine: Engine) -> bool:
        """Whether to load a model here that others have: if its requests wait nonetheless, they need help."""
        if engine.pinned or engine.wish == "load":
            return True
        patience = max(PATIENCE, 2 * residency.load_seconds(self._seen(engine, time.monotonic()), self.rules))
        if self._waiting(engine).oldest(time.monotonic()) >= patience:
            return True
        engine.considered = time.monotonic()
        try:
            return not await self._elsewhere(engine)
        finally:
            engine.considered = None

    # What operators wish

    def wish(self, name: str, what: residency.Wish) -> None:
        """Load or evict the engines of a model, or one by its own name. Raises RefusedLoadError."""
        engines = self.named(name)
        if what == "evict" and any(engine.pinned for engine in engines):
            raise RefusedLoadError(f"{name} is pinned on this box", hint="unpin it first")
        never = []
        if what == "load":
            never = residency.never_fits(replace(self.state(time.monotonic()), memory=self.memory))
            if why := next((said(self.guard).out.get(engine.config.unit, "") for engine in engines), ""):
                raise RefusedLoadError(f"the guard keeps {name} out of the memory of this box: {why}")
        if any(engine.name in never for engine in engines):
            raise RefusedLoadError(f"{name} does not fit the memory that the pinned models of this box leave")
        for engine in engines:
            engine.wish = what if what == "evict" or engine.phase != "loaded" else None
            if what == "load" and engine.phase == "failed":
                engine.failed_at = None  # now, and not when its turn comes
        self._keep()

    def leave(self, name: str) -> None:
        """Wish no load any more that has not come about. Raises RefusedLoadError."""
        for engine in self.named(name):
            if engine.wish == "load":
                engine.wish = None
        self._keep()

    def pin(self, name: str, pinned: bool) -> None:
        """Pin or unpin, in place of what fleet.yaml says. Raises RefusedLoadError."""
        engines = self.named(name)
        if pinned:
            needed = sum(engine.config.memory for engine in self.engines if engine.pinned or engine in engines)
            if needed > self.memory:
                raise RefusedLoadError(f"{name} does not fit the memory beside the other pinned models of this box")
        for engine in engines:
            engine.pinned = pinned
            if pinned:
                engine.wish = None
        self._keep()

    def restart(self, name: str) -> None:
        """Start engines anew, each after its last request, with its memory kept for it. One that is not loaded is only
        loaded. Raises RefusedLoadError for one that comes or goes just now."""
        engines = self.named(name)
        busy = [f"{engine.name} is {engine.phase}" for engine in engines if engine.phase in ("loading", "unloading")]
        if busy:
            raise RefusedLoadError(f"{', '.join(busy)}: it can be started anew afterwards")
        for engine in engines:
            if engine.phase == "loaded":
                self._task(self._restart(engine))
            else:
                self._start_loading(engine, "an operator wishes it")

    async def _restart(self, engine: Engine) -> None:
        log.info("%s: started anew: an operator wishes it", engine.name)
        engine.phase, engine.loaded_at = "unloading", None
        self._changed(engine)
        await engine.idle.wait()
        engine.client.close()
        await self._stop(engine)
        engine.phase = "loading"
        await self._load(engine)

    def named(self, name: str) -> list[Engine]:
        """Engines of a model, or one. Raises RefusedLoadError."""
        found = [engine for engine in self.engines if name in (engine.name, engine.config.model, engine.config.unit)]
        if not found:
            known = ", ".join(sorted({engine.config.model for engine in self.engines}))
            raise RefusedLoadError(f"this box has no model {name!r}; it has {known or 'none'}")
        return found

    # What is done about it

    def died(self, engine: Engine) -> None:
        """A call has found that an engine is gone."""
        if engine.phase == "loaded":
            engine.deaths += 1
            engine.client.close()
            log.warning("%s: it died", engine.name)
            engine.phase, engine.loaded_at = "loading", None
            self._task(self._revive(engine))
            self._changed(engine)

    async def _revive(self, engine: Engine) -> None:
        """Wait for systemd to start it again."""
        try:
            for _ in range(AGAIN):
                if await self._units.is_active(engine.config.unit):
                    await self._load(engine)
                    return
                await asyncio.sleep(LOOK)
        except UnitError as error:
            log.warning("%s", error.message)
        await self._load_failed(engine, f"{engine.config.unit} ended, and was not started again")

    def _start_loading(self, engine: Engine, why: str) -> None:
        if engine.phase not in ("absent", "failed"):
            return
        log.info("%s: loading: %s", engine.name, why)
        engine.phase, engine.loaded_at = "loading", None
        self._task(self._load(engine))
        self._changed(engine)

    async def _load(self, engine: Engine) -> None:
        began, config = time.monotonic(), engine.config
        try:
            was_active = await self._units.is_active(config.unit)
            if not was_active:
                await self._units.start(config.unit)
            await self._until_it_answers(engine, began)
        except UnitError as error:
            await self._load_failed(engine, error.message)
            return
        engine.phase, engine.loaded_at = "loaded", time.monotonic()
        if not was_active:
            engine.load_seconds = engine.loaded_at - began
        engine.failures, engine.failed_at, engine.reason = 0, None, ""
        if engine.wish == "load":
            engine.wish = None
            self._keep()
        log.info("%s: loaded after %.1f s", engine.name, engine.loaded_at - began)
        self._changed(engine)

    async def _until_it_answers(self, engine: Engine, began: float) -> None:
        config, stopped = engine.config, 0
        while not await engine.answers():
            taken = time.monotonic() - began
            if taken > config.load_limit:
                raise UnitError(f"{config.unit} was not ready within {config.load_limit:g} s")
            # Between two starts by systemd a unit is inactive for a moment.
            stopped = 0 if await self._units.is_active(config.unit) else stopped + 1
            if stopped >= 3:
                raise UnitError(f"{config.unit} ended before it was ready", hint=f"journalctl -u {config.unit}")
            await asyncio.sleep(min(MOST_LOOK, max(LOOK, taken / 10)))

    async def _load_failed(self, engine: Engine, reason: str) -> None:
        log.error("%s: %s", engine.name, reason)
        await self._stop(engine)
        engine.phase, engine.reason = "failed", reason
        engine.failures, engine.failed_at = engine.failures + 1, time.monotonic()
        self._changed(engine)

    async def _stop(self, engine: Engine) -> None:
        """Have systemd stop its unit; where that fails, the log says so."""
        try:
            await self._units.stop(engine.config.unit, engine.config.stop_limit)
        except UnitError as error:
            log.warning("%s", error.message)

    def _start_unloading(self, engine: Engine, why: str) -> None:
        if engine.phase != "loaded":
            return
        log.info("%s: evicted: %s", engine.name, why)
        engine.phase, engine.loaded_at = "unloading", None
        self._task(self._unload(engine))
        self._changed(engine)

    async def _unload(self, engine: Engine) -> None:
        await engine.idle.wait()
        engine.client.close()
        await self._stop(engine)
        engine.phase = "absent"
        self._changed(engine)

    async def _watch(self, engine: Engine) -> None:
        """Look whether a loaded engine is still there, so that nothing is pulled for one that is not."""
        misses = 0
        while engine.serves:
            await asyncio.sleep(WATCH)
            if not engine.serves or await engine.answers(WATCH):
                misses = 0
                continue
            misses += 1
            try:
                active = await self._units.is_active(engine.config.unit)
            except UnitError:
                active = True
            if not active or misses >= MISSES or not await engine.listens():
                self.died(engine)
        engine.watched = False


def _unexpected(error: BaseException) -> None:
    log.error("%s", error, exc_info=error)
