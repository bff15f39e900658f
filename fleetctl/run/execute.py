"""Executing a plan: steps in order, each with its record in the journal; undone backwards when one fails."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from fleetctl.errors import BoxError, FleetError, InterruptedMoveError, MoveStuckError, MoveUndoneError, StepError
from fleetctl.facts.operations import left
from fleetctl.plan.types import Plan, PlannedStep
from fleetctl.remote.errors import ConnectionLost, OpFailed
from fleetctl.render.release import File
from fleetctl.run.control import Control
from fleetctl.run.journal import History, Journal, whoami
from fleetctl.run.measures import measures
from fleetctl.run.reach import Reach, lost
from fleetctl.run.schedule import among, reversed_order, run_in_order
from fleetctl.steps import KINDS
from fleetctl.steps.base import Context, Record, Step

Listener = Callable[[Record], None]
"""Receives every event of a move as a JSON object: type, state, step, at, and what the step says."""

WAITS = (
    "await_ready", "await_free", "proxy_idle", "image_pull", "read_ahead", "trial_run",
    "weights_prove", "weights_begin", "weights_serve", "weights_receive", "image_send", "image_receive",
    "fetch_weights", "adapters_load", "setup_fetch",
)  # fmt: skip
"""Ops that only wait, or fetch what nothing rests on: cut short when the move is going to be undone anyway."""

ATTEMPTS = 4  # at one step, when its box goes away again and again
RECONNECT = 60.0  # seconds to wait for a box that went away in the middle of a step
MOVES_KEPT = 50  # folders of moves on a box; of each that goes, a line stays (onbox/history.py)
RECONNECT_UNDO = 300.0  # when undoing there is nothing better to do than wait: a box may be booting


class Execution:
    """One plan being carried out (or taken back)."""

    def __init__(
        self,
        plan: Plan,
        journal: Journal,
        reach: Reach,
        *,
        fill: Callable[[File], str],
        listen: Listener,
        control: Control,
        history: History | None = None,
    ) -> None:
        self.plan = plan
        self.history = history or History(plan, {})
        self._journal = journal
        self._reach = reach
        self._boots = dict(reach.boots)
        self._listen = listen
        self._control = control
        self._context = Context(plan, reach.boxes, fill, self._progress, control.stop.is_set)
        self._steps = {step.id: step for step in plan.steps}
        self._patience = RECONNECT
        self._stopping = False
        self._broken_turns: set[int] = set()

    # Forward

    def run(self) -> Record:
        """Carry the plan out, or finish it. Returns the end record.

        When a step fails or the operator stops it, everything is undone and MoveUndoneError or InterruptedMoveError
        raised; LockedError without undoing when the lock was lost, MoveStuckError when the operator asked to leave it.
        """
        order = {step.id: step.after for step in self.plan.steps}
        failures = run_in_order(order, self._forward, stopped=self._control.stop.is_set, watch=self._watch)
        self._leave_if_told()
        if failures or self._control.stop.is_set():
            cause = self._cause(failures)
            self.undo(str(cause))
            back = left(self.plan.operation, self.plan.from_layout)
            if isinstance(cause, InterruptedMoveError):
                raise InterruptedMoveError(f"the {self.plan.operation} was {cause} and undone; {back}")
            raise MoveUndoneError(
                f"the {self.plan.operation} failed and was undone; {back}: "
                f"{cause.message if isinstance(cause, FleetError) else cause}",
                hint=cause.hint if isinstance(cause, FleetError) else None,
            ) from cause
        end = {"result": "done", "by": whoami(), **measures(self.plan, self.history.results)}
        self._append("end", **end)
        self._close()
        self._tell("move", "done", **end)
        return end

    def _forward(self, name: str) -> None:
        step = self._steps[name]
        kind = KINDS[step.kind]
        if name in self.history.results and (kind.once or (kind.once_a_turn and self._turn_is_over(step))):
            self._tell("step", "already", step, seconds=0.0)
            return
        began = time.monotonic()
        try:
            result = self._carry_on(step, kind)
        except FleetError as error:
            self._tell("step", "failed", step, message=str(error), seconds=round(time.monotonic() - began, 3))
            raise
        took = round(time.monotonic() - began, 3)
        if result is None:
            self._tell("step", "already", step, seconds=took)
            return
        self._tell("step", "done", step, seconds=took, result=result)

    def _turn_is_over(self, step: PlannedStep) -> bool:
        """The last step of the engine's turn was done before a cut."""
        last = next((other.id for other in reversed(self.plan.steps) if other.turn == step.turn), None)
        return step.turn is not None and last in self.history.results

    def _carry_on(self, step: PlannedStep, kind: Step) -> Record | None:
        """Do a step and have it in the journal. Each time that a box went away it is checked again before it is done
        again. None: it was so already."""
        prior = self.history.priors.get(step.id)
        told = False
        for attempt in range(ATTEMPTS):
            try:
                self._same_boots()
                if kind.check(self._context, step):
                    return self._already(step)
                if prior is None:
                    prior = kind.prior(self._context, step)
                if not told:
                    self._append("begin", step=step.id, prior=prior)
                    self.history.priors.setdefault(step.id, prior)
                    self._tell("step", "begin", step)
                    told = True
                result = kind.do(self._context, step)
                self._done(step, result)
                return result
            except ConnectionLost as gone:
                if attempt == ATTEMPTS - 1:
                    raise
                self._progress(step, {"log": f"{gone.box} does not answer; trying to reach it again"})
                self._reach.back(gone.box, self._patience)
        raise AssertionError("unreachable")

    def _already(self, step: PlannedStep) -> Record | None:
        """Already so. A step that was begun before a cut is done now, and can be undone."""
        if step.id not in self.history.priors or step.id in self.history.results:
            return None
        self._done(step, {})
        return None

    def _done(self, step: PlannedStep, result: Record) -> None:
        self._append("done", step=step.id, result=result)
        self.history.results[step.id] = result

    def _same_boots(self) -> None:
        """Raises StepError when a box was rebooted since the move began: what was started there is gone."""
        for name, boot in self._reach.boots.items():
            if boot != self._boots.get(name, boot):
                raise StepError(f"{name} was rebooted in the middle of the move")

    def listen_to(self, listen: Listener) -> None:
        """Send events to this listener from now on."""
        self._listen = listen

    def _watch(self, halted: bool) -> None:
        """Once nothing new will begin, waits are cut short; when all is to be left as it is, every call is."""
        if self._control.stop.is_set() and not self._control.lost.is_set() and not self._stopping:
            self._stopping = True
            self._tell("move", "stopping", text=STOPPING)
        if halted or self._control.leave.is_set():
            for box in self._reach.boxes.values():
                box.cancel(None if self._control.leave.is_set() else WAITS)

    def _leave_if_told(self) -> None:
        if self._control.lost.is_set():
            raise lost(self._control.reason)
        if self._control.leave.is_set():
            raise MoveStuckError(f"the move was left as it is: {self._control.reason}", hint=HOW_TO_GO_ON)

    def _append(self, kind: str, **what: Any) -> None:
        """Write to the journal, over a new connection where the old one broke."""
        record = self._journal.record(kind, **what)
        for _ in range(ATTEMPTS):
            try:
                self._journal.append(record)
                return
            except ConnectionLost as gone:
                self._reach.back(gone.box, self._patience)
            except OpFailed as failure:
                raise self._reach.refused(failure) or failure from None
        raise StepError(f"the journal on {self.plan.lead} cannot be written: its connection breaks again and again")

    def _cause(self, failures: dict[str, BaseException]) -> BaseException:
        """What made the move fail: not the waits that were cancelled because of it."""
        causes = [error for error in failures.values() if getattr(error, "kind", "") != "Cancelled"]
        if not causes and self._control.stop.is_set():
            return InterruptedMoveError(self._control.reason)
        return next(iter(causes or failures.values()))

    # Backward

    def undo(self, why: str) -> None:
        """Take back every step that was begun, last first. Raises MoveStuckError when something could not be."""
        self._patience = RECONNECT_UNDO
        try:
            self._append("undoing", why=why)
        except OpFailed:
            # No room for the journal, for example. Undoing matters more than telling; what cannot be told is reported
            # as not undone, and stays to be undone again.
            self._leave_if_told()
        except (BoxError, StepError) as error:
            self._leave_if_told()
            raise MoveStuckError(f"{why}\nand it cannot be undone: {error}", hint=HOW_TO_GO_ON) from error
        self._tell("move", "undoing", why=why)
        begun = self.history.begun()
        after = among({step.id: step.after for step in self.plan.steps}, begun)
        failures = run_in_order(
            reversed_order(after),
            self._backward,
            stopped=self._control.leave.is_set,
            watch=lambda halted: self._watch(False),
            keep_going=True,
        )
        self._leave_if_told()
        if failures:
            told = "\n".join(f"- {name}: {error}" for name, error in failures.items())
            self._tell("move", "stuck", why=told)
            raise MoveStuckError(f"{why}\nand these could not be undone:\n{told}", hint=HOW_TO_GO_ON)
        self._append("end", result="undone", why=why, by=whoami())
        self._close()
        self._tell("move", "undone", why=why)

    def _close(self) -> None:
        """The move is over: what the boxes kept to undo it goes, and so do the folders of moves of long ago.

        A box that is away keeps them until the next time.
        """
        for box in self._reach.boxes.values():
            with contextlib.suppress(BoxError):
                box.call("move_close", move=self.plan.move, timeout=30)
                box.call("move_end", move=self.plan.move, timeout=30)
                box.call("moves_prune", keep=MOVES_KEPT, timeout=30)

    def _backward(self, name: str) -> None:
        step = self._steps[name]
        began = time.monotonic()
        self._spare(step)
        self._tell("step", "undo", step)
        try:
            self._take_back(step)
        except BaseException:
            if step.turn is not None:
                self._broken_turns.add(step.turn)
            raise
        self.history.undone.add(name)
        self._tell("step", "undone", step, seconds=round(time.monotonic() - began, 3))

    def _take_back(self, step: PlannedStep) -> None:
        for attempt in range(ATTEMPTS):
            try:
                result = KINDS[step.kind].undo(self._context, step, self.history.priors[step.id])
                self._append("undone", step=step.id, result=result)
                return
            except ConnectionLost as gone:
                if attempt == ATTEMPTS - 1:
                    raise
                self._reach.back(gone.box, self._patience)
            except FleetError as error:
                self._tell("step", "undo-failed", step, message=str(error))
                raise

    def _spare(self, step: PlannedStep) -> None:
        """Raises StepError where a later turn could not be undone: this one's engine may be the last that serves."""
        turn = step.turn
        if turn is not None and any(broken > turn for broken in self._broken_turns):
            raise StepError(f"{step.target} is left as it is, for a copy that was to serve meanwhile did not come back")

    # Telling

    def _progress(self, step: PlannedStep, said: Record) -> None:
        self._tell("step", "progress", step, seen=said)

    def _tell(self, kind: str, state: str, step: PlannedStep | None = None, **more: Any) -> None:
        about = {"step": step.id, "stage": step.stage, "summary": step.summary} if step else {}
        event = {"type": kind, "state": state, "at": round(time.time(), 3), "move": self.plan.move, **about, **more}
        try:
            self._listen(event)
        except OSError:  # the terminal or the reader of the pipe is gone; the move goes on without
            self._listen = lambda event: None


STOPPING = "running steps finish, then all is undone; Ctrl-C once more leaves everything as it is"
HOW_TO_GO_ON = "`fleetctl status` shows what is under way; `fleetctl rollback` undoes it, the same cutover finishes it"
