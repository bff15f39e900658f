"""Executing a plan: steps in order, each with its record in the journal; undone backwards when one fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fleetctl.errors import BoxError, FleetError, MoveStuckError, MoveUndoneError, StepError
from fleetctl.plan.types import Plan, PlannedStep
from fleetctl.remote.boxes import Boxes
from fleetctl.remote.errors import ConnectionLost
from fleetctl.render.release import File
from fleetctl.run.control import Control
from fleetctl.run.journal import History, Journal
from fleetctl.run.schedule import reversed_order, run_in_order
from fleetctl.steps import KINDS
from fleetctl.steps.base import Context, Record

Listener = Callable[[Record], None]
"""Receives every event of a move as a JSON object: type, state, step, at, and what the step says."""

WAITS = ("await_ready", "await_free", "proxy_idle")
"""Ops that only wait: these may be cut short when the move is going to be undone anyway."""

RECONNECT = 60.0  # seconds to wait for a box that went away in the middle of a step
RECONNECT_UNDO = 300.0  # when undoing there is nothing better to do than wait: a box may be booting


class Execution:
    """One plan being carried out (or taken back)."""

    def __init__(
        self,
        plan: Plan,
        boxes: Boxes,
        journal: Journal,
        *,
        fill: Callable[[File], str],
        listen: Listener,
        control: Control,
        history: History | None = None,
    ) -> None:
        self.plan = plan
        self.history = history or History(plan, {})
        self._boxes = boxes
        self._journal = journal
        self._listen = listen
        self._control = control
        self._context = Context(plan, boxes, fill, self._progress)
        self._steps = {step.id: step for step in plan.steps}
        self._boot: dict[str, str] = {}

    # Forward

    def run(self) -> Record:
        """Carry the plan out, or finish it. Returns the end record; raises after undoing when a step fails."""
        order = {step.id: step.after for step in self.plan.steps}
        failures = run_in_order(order, self._forward, stopped=self._control.stop.is_set, on_failure=self._cancel_waits)
        if self._control.leave.is_set():
            raise MoveStuckError(f"the move was left as it is: {self._control.reason}", hint=HOW_TO_GO_ON)
        if failures or self._control.stop.is_set():
            cause = _first_cause(failures) or FleetError(self._control.reason)
            self.undo(str(cause))
            raise MoveUndoneError(
                f"the {self.plan.operation} failed and was undone; the fleet is back in "
                f"{self.plan.from_layout or 'the state before fleetctl'}: {cause}",
                hint=cause.hint if isinstance(cause, FleetError) else None,
            ) from cause
        end = {"result": "done", **measures(self.plan, self.history.results)}
        self._journal.append("end", **end)
        self._tell("move", "done", **end)
        return end

    def _forward(self, name: str) -> None:
        step = self._steps[name]
        kind = KINDS[step.kind]
        if name in self.history.results and kind.once:
            return
        began = time.monotonic()
        prior: Record | None = self.history.priors.get(name)
        attempt = 0
        while True:
            try:
                if kind.check(self._context, step):
                    self._skip(step, time.monotonic() - began)
                    return
                if prior is None:
                    prior = kind.prior(self._context, step)
                if attempt == 0:
                    self._journal.append("begin", step=name, prior=prior)
                    self.history.priors.setdefault(name, prior)
                    self._tell("step", "begin", step)
                result = kind.do(self._context, step)
                break
            except ConnectionLost as lost:
                attempt += 1
                if attempt > 3:
                    raise
                self._progress(step, {"log": f"{lost.box} does not answer; trying to reach it again"})
                self._come_back(lost, RECONNECT)
            except FleetError as error:
                self._tell("step", "failed", step, message=str(error), seconds=round(time.monotonic() - began, 3))
                raise
        self.history.results[name] = result
        self._journal.append("done", step=name, result=result)
        self._tell("step", "done", step, seconds=round(time.monotonic() - began, 3), result=result)

    def _skip(self, step: PlannedStep, took: float) -> None:
        """Already so. A step that was begun before a cut is done now, and can be undone."""
        if step.id in self.history.priors and step.id not in self.history.results:
            self.history.results[step.id] = {}
            self._journal.append("done", step=step.id, result={})
        self._tell("step", "already", step, seconds=round(took, 3))

    def _come_back(self, lost: ConnectionLost, limit: float) -> None:
        """Reach the box again. A box that rebooted has lost what was started on it: that fails the step."""
        box = self._boxes[lost.box]
        deadline = time.monotonic() + limit
        while True:
            try:
                box.reconnect()
                break
            except BoxError:
                if time.monotonic() > deadline or self._control.leave.is_set():
                    raise
                time.sleep(1.0)
        boot = str(box.call("boot"))
        before = self._boot.get(lost.box)
        self._boot[lost.box] = boot
        if before is not None and boot != before:
            raise StepError(f"{lost.box} was rebooted in the middle of the move")

    def listen_to(self, listen: Listener) -> None:
        """Send events to this listener from now on."""
        self._listen = listen

    def remember_boots(self) -> None:
        """Note which boot each box is in, so that a reboot in the middle is noticed."""
        self._boot = {name: str(boot) for name, boot in self._boxes.each(lambda box: box.call("boot")).items()}

    def _cancel_waits(self) -> None:
        """One engine failed: the others are not waited for, the move is going to be undone."""
        for box in self._boxes.values():
            box.cancel(WAITS)

    # Backward

    def undo(self, why: str) -> None:
        """Take back every step that was begun, last first. Raises MoveStuckError when something could not be."""
        self._journal_undoing(why)
        self._tell("move", "undoing", why=why)
        begun = self.history.begun()
        order = {step.id: [b for b in step.after if b in begun] for step in self.plan.steps if step.id in begun}
        order = self._closed(order, begun)
        failures = run_in_order(reversed_order(order), self._backward, keep_going=True)
        if failures:
            told = "\n".join(f"- {name}: {error}" for name, error in failures.items())
            self._tell("move", "stuck", why=told)
            raise MoveStuckError(f"{why}\nand these could not be undone:\n{told}", hint=HOW_TO_GO_ON)
        self._journal.append("end", result="undone", why=why)
        self._tell("move", "undone", why=why)

    def _journal_undoing(self, why: str) -> None:
        for _ in range(3):
            try:
                self._journal.append("undoing", why=why)
                return
            except ConnectionLost as lost:
                self._wait_for(lost)
        raise MoveStuckError(f"{why}\nand the journal on {self.plan.lead} cannot be written", hint=HOW_TO_GO_ON)

    def _wait_for(self, lost: ConnectionLost) -> None:
        try:
            self._come_back(lost, RECONNECT_UNDO)
        except StepError:
            return  # it was rebooted: undoing goes on, from what is there now

    def _closed(self, order: dict[str, list[str]], begun: set[str]) -> dict[str, list[str]]:
        """Dependencies through steps that were skipped still count: follow them to the next begun ones."""
        steps = self._steps

        def begun_before(name: str, seen: set[str]) -> set[str]:
            found: set[str] = set()
            for before in steps[name].after:
                if before in seen:
                    continue
                seen.add(before)
                found |= {before} if before in begun else begun_before(before, seen)
            return found

        return {name: sorted(begun_before(name, set())) for name in order}

    def _backward(self, name: str) -> None:
        step = self._steps[name]
        began = time.monotonic()
        self._tell("step", "undo", step)
        for attempt in range(4):
            try:
                result = KINDS[step.kind].undo(self._context, step, self.history.priors[name])
                self._journal.append("undone", step=name, result=result)
                break
            except ConnectionLost as lost:
                if attempt == 3:
                    raise
                self._wait_for(lost)
            except FleetError as error:
                self._tell("step", "undo-failed", step, message=str(error))
                raise
        self.history.undone.add(name)
        self._tell("step", "undone", step, seconds=round(time.monotonic() - began, 3))

    # Telling

    def _progress(self, step: PlannedStep, said: Record) -> None:
        self._tell("step", "progress", step, seen=said)

    def _tell(self, kind: str, state: str, step: PlannedStep | None = None, **more: Any) -> None:
        about = {"step": step.id, "stage": step.stage, "summary": step.summary} if step else {}
        self._listen(
            {"type": kind, "state": state, "at": round(time.time(), 3), "move": self.plan.move, **about, **more}
        )


HOW_TO_GO_ON = "`fleetctl status` shows what is under way; `fleetctl rollback` undoes it, the same cutover finishes it"


def _first_cause(failures: dict[str, BaseException]) -> BaseException | None:
    """The failure that made the others: waits that were cancelled because of it do not count."""
    causes = [error for error in failures.values() if getattr(error, "kind", "") != "Cancelled"]
    return next(iter(causes or failures.values()), None)


def measures(plan: Plan, results: dict[str, Record]) -> Record:
    """What a finished move measured, in seconds: ``gap`` without an engine, ``loads`` by engine, ``stops`` by unit."""
    by_kind: dict[str, dict[str, Record]] = {}
    for step in plan.steps:
        if step.id in results:
            by_kind.setdefault(step.kind, {})[step.id] = results[step.id]
    params = {step.id: step for step in plan.steps}
    held = [r["held_from"] for r in by_kind.get("hold", {}).values() if "held_from" in r]
    opened = [r["open_at"] for r in by_kind.get("open", {}).values() if "open_at" in r]
    started: dict[str, float] = {}
    for name, result in by_kind.get("start_engine", {}).items():
        if "at" in result:
            started[params[name].params["unit"] + "@" + params[name].box] = result["at"]
    loads = {}
    ready = {}
    for name, result in by_kind.get("await_ready", {}).items():
        step = params[name]
        begun = [started.get(f"{rank['unit']}@{rank['box']}") for rank in step.params["ranks"]]
        times = [at for at in begun if at is not None]
        if times and "ready_at" in result:
            loads[step.params["engine"]] = round(result["ready_at"] - min(times), 3)
            ready[step.params["engine"]] = result["ready_at"]
    stops = {
        f"{params[name].box}/{params[name].params['unit']}": result["took"]
        for name, result in by_kind.get("stop_engine", {}).items()
        if "took" in result
    }
    gap = round(min(opened) - max(held), 3) if held and opened else None
    return {"gap": gap, "held_from": max(held, default=None), "ready": ready, "loads": loads, "stops": stops}
