"""What cutover and rollback share: the lock, an unfinished move first, the plan shown, Ctrl-C, the report."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from pydantic import ValidationError
from rich.markup import escape

from fleetctl.cli.ask import confirm
from fleetctl.cli.live import LiveView
from fleetctl.cli.output import console, emit, say
from fleetctl.cli.session import command_line
from fleetctl.cli.show_plan import show_plan, title
from fleetctl.errors import InterruptedMoveError, RefusedError, SpecError, UnfinishedError
from fleetctl.facts.operations import ASIDE, GUARDED, LORAS, ON_BOXES, left, road, with_article
from fleetctl.facts.types import lead_of, unfinished
from fleetctl.plan.types import Plan
from fleetctl.render.release import Release
from fleetctl.run.control import INTERRUPTED, ON_REQUEST, Control
from fleetctl.run.fill import Filler
from fleetctl.run.gate_tasks import have_suites
from fleetctl.run.journal import History, Record
from fleetctl.run.lock import FleetLock
from fleetctl.run.planning import (
    Books,
    Look,
    Subject,
    forget_ended,
    look,
    new_move_name,
    plan_cutover,
    plan_rollback,
    refuse_changed,
    refuse_unfinished,
    wanted_release,
)
from fleetctl.spec.units import seconds

if TYPE_CHECKING:
    from fleetctl.run.execute import Execution


def _named(plan: Plan) -> str:
    """The operation with its goal, where that is a layout."""
    goal = road(plan.operation, plan.from_layout, plan.to_layout) and f" to {plan.to_layout}"
    return f"{with_article(plan.operation)}{goal}"


class Mover:
    """Runs moves for one command."""

    def __init__(self, subject: Subject, *, as_json: bool, yes: bool, take_over: bool) -> None:
        self._subject = subject
        self._json = as_json
        self._yes = yes
        self._take_over = take_over
        self._control = Control()
        self._running = False
        self._fill = Filler()
        self._agreed: Plan | None = None

    def cutover(self, layout: str, books: Books, agreed: Plan | None = None) -> None:
        """Move to a layout; a cutover to it that was cut off is finished instead.

        ``agreed`` is a plan that was shown and agreed to before: where another one would be carried out, none is.
        """
        self._agreed = agreed
        wanted = wanted_release(self._subject, layout)
        self._agree(lambda seen: plan_cutover(self._subject, wanted, seen, books), wanted)
        with self._locked(wanted) as seen:
            found = unfinished(seen.observed)
            if found is not None:
                lead, move = found
                if move.operation != "cutover" or move.to_layout != layout:
                    refuse_unfinished(seen.observed)
                if not self._finish(lead, move.move):
                    return
                seen = self.look(wanted)
            self._execute(plan_cutover(self._subject, wanted, seen, books))

    def work(
        self,
        operation: str,
        make: Callable[[Look], Plan],
        *,
        finishes: bool = True,
        same: Callable[[Plan], bool] = lambda plan: True,
    ) -> Record | None:
        """Work on the live layout, planned by ``make`` after a look at it. Returns its end record, if any.

        The same operation that was cut off is finished first, if it may be and is the ``same``; a restart is done then.
        """
        self._agree(make)
        with self._locked(aside=operation in GUARDED) as seen:
            found = unfinished(seen.observed)
            if found is not None:
                lead, move = found
                if move.operation != operation or not finishes:
                    refuse_unfinished(seen.observed)
                if not self._finish(lead, move.move, same) and operation == "restart":
                    return None
                seen = self.look()
            return self._execute(make(seen))

    def rollback(self, number: int | None, books: Books, *, undo: bool) -> None:
        """Go back a generation; a cutover that was cut off is undone, a rollback that was cut off is finished."""
        if not undo:
            self._agree(lambda seen: plan_rollback(self._subject, seen, books, number))
        with self._locked() as seen:
            found = unfinished(seen.observed)
            if found is not None:
                lead, move = found
                if undo or move.operation != "rollback":
                    self._take_back(lead, move.move)
                    return
                if not self._finish(lead, move.move):
                    return
                seen = look(self._subject)
            elif undo:
                raise RefusedError("there is nothing to undo: no move was cut off")
            self._execute(plan_rollback(self._subject, seen, books, number))

    def execute_saved(self, path: Path) -> None:
        """Execute a saved plan, if the boxes are still as it saw them."""
        try:
            plan = Plan.model_validate_json(path.read_bytes())
        except OSError as error:
            raise SpecError(f"cannot read the plan {path}: {error.strerror}") from error
        except ValidationError as error:
            raise SpecError(
                f"{path} is not a plan of this fleetctl", hint="make it with `fleetctl plan --out`"
            ) from error
        self._agree(lambda seen: plan)
        with self._locked() as seen:
            refuse_unfinished(seen.observed)
            refuse_changed(self._subject, plan)
            # A move of its own, also when the same plan was carried out and undone before.
            self._execute(plan.model_copy(update={"move": new_move_name()}))

    def _agree(self, make: Callable[[Look], Plan], *releases: Release) -> None:
        """Show the plan and ask before the fleet is held: a question may be open for long, and guards would stand back.

        With --yes, and where a move was cut off or somebody else holds the fleet, all of that comes later.
        """
        if self._yes:
            return
        with self._interrupts():
            seen = self.look(*releases)
            lock = seen.observed[lead_of(seen.observed, self._subject.fleet.proxy.lead)].lock
            if unfinished(seen.observed) is None and (lock is None or not lock.alive):
                plan = make(seen)
                if not plan.nothing_to_do():
                    self._have_what_it_needs(plan)
                    self._show(plan)
                    self._ask(f"{title(plan)}. Do it?")
                    self._agreed = plan

    @contextmanager
    def _locked(self, *releases: Release, aside: bool = False) -> Iterator[Look]:
        """Hold the fleet's lock and look; Ctrl-C stops the move in order, a second one leaves it as it is.

        ``aside``: guards go on with their work, for no engine is touched.
        """
        subject = self._subject
        lead = subject.fleet.proxy.lead
        lock = FleetLock(
            subject.boxes,
            lead,
            command_line(),
            take_over=self._take_over,
            control=self._control,
            say=self._say,
            aside=aside,
        )
        with self._interrupts(), lock:
            self._reach = lock.reach
            seen = self.look(*releases)
            if unfinished(seen.observed) is None:
                forget_ended(subject, seen.observed)
            yield seen

    def look(self, *releases: Release) -> Look:
        """Look at the boxes with releases in mind, and with the secrets of now."""
        return look(self._subject, releases, self._fill)

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        def stop(number: int, frame: FrameType | None) -> None:
            if not self._running:
                raise KeyboardInterrupt
            # Nothing is printed here: the signal may have come while this thread was printing.
            self._control.ask_to_stop(f"{INTERRUPTED} ({signal.Signals(number).name})")

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        except KeyboardInterrupt:
            raise InterruptedMoveError("interrupted; nothing was changed") from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _execute(self, plan: Plan) -> Record | None:
        if plan.nothing_to_do():
            if self._json:
                emit(
                    "move",
                    state="nothing",
                    to=plan.to_layout,
                    generation=plan.generation,
                    warnings=list(plan.warnings),
                )
            else:
                show_plan(plan, console(), diffs=False)
            return None
        if self._agreed is None:
            self._have_what_it_needs(plan)
            self._show(plan)
            self._ask(f"{title(plan)}. Do it?")
        elif (plan.steps, plan.observed) != (self._agreed.steps, self._agreed.observed):
            raise RefusedError(
                "the fleet changed since the plan was shown; nothing was changed",
                hint="run the command again and look at the new plan",
            )
        from fleetctl.run.carry import carry_out  # not before there is something to do: it brings all the steps in

        with self._view(plan) as listen:
            end = carry_out(
                self._subject,
                plan,
                command=command_line(),
                fill=self._fill,
                listen=listen,
                control=self._control,
                reach=self._reach,
            )
        self._report(plan, end)
        return end

    def _have_what_it_needs(self, plan: Plan) -> None:
        """Raises SpecError, before anything is asked or done, when a secret or a suite of a gate is not to be had.

        On the way back the boxes have their secrets.
        """
        have_suites(plan)
        boxes = {step.box for step in plan.steps if step.kind == "stage_release" and plan.operation != "rollback"}
        for file in (file for box in sorted(boxes) for file in plan.release.files.get(box, ())):
            if file.secrets:
                self._fill(file)

    def _show(self, plan: Plan) -> None:
        if not self._json:
            show_plan(plan, console(), diffs=False)
            return
        self._running = True  # Ctrl-C must not cut the line in two
        emit("plan", plan=plan.model_dump(mode="json"))
        self._running = False
        if self._control.stop.is_set():
            raise KeyboardInterrupt

    def _ask(self, question: str) -> None:
        if not self._yes and not confirm(question):
            raise RefusedError("not done; nothing was changed")

    def _finish(self, lead: str, move: str, same: Callable[[Plan], bool] = lambda plan: True) -> bool:
        """Finish a move that was cut off. True when it had to be undone instead and a new plan has to be made."""
        history, execution = self._take_up(lead, move)
        plan = history.plan
        who = history.meta.get("who")
        if history.undoing:
            self._say(f"{_named(plan)} by {who} was being undone: finishing that first")
            with self._view(plan) as view:
                execution.listen_to(view)
                execution.undo(history.why)
            if self._control.stop.is_set():
                raise InterruptedMoveError(f"{self._control.reason}; the {plan.operation} is undone")
            return True
        self._say(f"{_named(plan)} by {who} was cut off")
        if not same(plan):
            raise UnfinishedError(
                f"the {plan.operation} by {who} that was cut off is not this one",
                hint=f"finish it with the command that began it ({history.meta.get('command') or 'see its history'}), "
                "or undo it: `fleetctl rollback`",
            )
        have_suites(plan)
        self._ask("Finish it?")
        with self._view(plan) as view:
            execution.listen_to(view)
            end = execution.run()
        self._report(plan, end)
        return False

    def _take_up(self, lead: str, move: str) -> tuple[History, Execution]:
        from fleetctl.run.carry import take_up

        return take_up(
            self._subject,
            lead,
            move,
            fill=self._fill,
            listen=self._plain(),
            control=self._control,
            reach=self._reach,
        )

    def _take_back(self, lead: str, move: str) -> None:
        history, execution = self._take_up(lead, move)
        plan = history.plan
        self._say(f"{_named(plan)} by {history.meta.get('who')} was cut off")
        self._ask("Undo it?")
        with self._view(plan) as view:
            execution.listen_to(view)
            execution.undo(history.why or f"{ON_REQUEST} after it was cut off")
        self._say(f"the {plan.operation} is undone; {left(plan.operation, plan.from_layout)}")

    @contextmanager
    def _view(self, plan: Plan) -> Iterator[Callable[[Record], None]]:
        self._running = True
        try:
            if self._json:
                yield self._plain()
            else:
                with LiveView(plan, console()) as view:
                    yield view.hear
        finally:
            self._running = False

    def _plain(self) -> Callable[[Record], None]:
        if not self._json:
            return lambda event: None
        return lambda event: emit(event["type"], **{key: value for key, value in event.items() if key != "type"})

    def _say(self, text: str) -> None:
        say(text, as_json=self._json)

    def _report(self, plan: Plan, end: Record) -> None:
        if self._json:
            return
        out = console()
        if plan.operation == "doctor":
            out.print(f"[bold green]done[/]: {len(plan.steps)} mended")
            return
        if plan.operation in (*ASIDE, *ON_BOXES):
            out.print(f"[bold green]done[/]: {escape(title(plan))}")
            return
        if plan.operation in LORAS:
            names = {item["name"] for step in plan.steps for item in step.params.get("items") or ()}
            out.print(f"[bold green]done[/]: {plan.operation} of {', '.join(sorted(names))}")
            return
        goal = plan.to_layout or "the state before fleetctl"
        out.print(f"[bold green]done[/]: the fleet is in {goal}", end="")
        out.print(f", generation {plan.generation}" if plan.generation is not None else "")
        for engine, load in end["loads"].items():
            out.print(f"  {engine} was ready after {seconds(load)}", markup=False)
        if end["gap"]:
            out.print(f"  {seconds(end['gap'])} without an engine; requests waited in the proxy meanwhile")
