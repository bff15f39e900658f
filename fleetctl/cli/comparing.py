"""What ``compare --run`` does: load on one layout, the move to the other, load there, and the way back."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import asdict

from fleetctl.bench.patient import Patience, patient_client
from fleetctl.bench.prompts import Counting, Dialect, Prompts
from fleetctl.bench.stored import StoredRun
from fleetctl.cli.ask import confirm
from fleetctl.cli.mover import Mover
from fleetctl.cli.output import console, emit, say
from fleetctl.cli.show_plan import show_plan
from fleetctl.errors import FleetError, InterruptedMoveError, MoveUndoneError, RefusedError
from fleetctl.facts.types import lead_of
from fleetctl.plan.types import Plan
from fleetctl.run.benching import standing, through_proxy
from fleetctl.run.layout_load import Wish, measure
from fleetctl.run.planning import Books, plan_cutover, refuse_unfinished, wanted_release
from fleetctl.run.subject import Subject
from fleetctl.spec.units import seconds

Saw = dict[tuple[str, str], Patience]
"""Origin and goal of a move → what a client saw that asked all the time."""


def measure_both(
    subject: Subject,
    layouts: tuple[str, str],
    wish: Wish,
    books: Books,
    *,
    json: bool,
    yes: bool,
    take_over: bool,
) -> Saw:
    """Measure both layouts, each kept as a run of its own. What was seen on the way.

    The fleet ends in the generation where it began. Raises what went wrong, and says which layout the fleet is in.
    """
    return _Tour(subject, layouts, wish, books, json=json, yes=yes, take_over=take_over).go()


class _Tour:
    def __init__(
        self,
        subject: Subject,
        layouts: tuple[str, str],
        wish: Wish,
        books: Books,
        *,
        json: bool,
        yes: bool,
        take_over: bool,
    ) -> None:
        self._subject = subject
        self._wish = wish
        self._books = books
        self._json = json
        self._yes = yes
        self._take_over = take_over
        self._began = self._left = self._now()
        self._order = sorted(layouts, key=lambda name: name != self._began[0])
        self._saw: Saw = {}

    def go(self) -> Saw:
        """Ask, and do it."""
        with _stoppable():
            agreed = self._agree()
            try:
                self._there(agreed)
            except (FleetError, KeyboardInterrupt) as problem:
                error = _told(problem)
                self._return_after(error)
                raise error from None
            self._return()
        return self._saw

    def _agree(self) -> Plan:
        """Show all that will be done, and the plan of the first move; ask. The plan that was agreed to."""
        layout, number = self._began
        goal = next(name for name in self._order if name != layout)
        mover = self._mover()
        wanted = wanted_release(self._subject, goal)
        seen = mover.look(wanted)
        refuse_unfinished(seen.observed)
        drained = [name for name, facts in seen.observed.items() if facts.drained is not None]
        if drained:
            raise RefusedError(
                f"{', '.join(drained)} is drained: what a layout can do is not to be seen now",
                hint=f"`fleetctl undrain {drained[0]}` puts it back",
            )
        if seen.observed[lead_of(seen.observed, self._subject.fleet.proxy.lead)].generation != number:
            raise RefusedError("the fleet is being moved; nothing was changed")
        plan = plan_cutover(self._subject, wanted, seen, self._books)
        stages = self._stages(plan)
        if self._json:
            emit("tour", stages=stages, plan=plan.model_dump(mode="json"))
        else:
            out = console()
            for count, stage in enumerate(stages, 1):
                out.print(f"{count}. {stage}", markup=False)
            out.print(f"Ctrl-C ends it early, and the fleet comes back to {layout}.\n", markup=False)
            show_plan(plan, out, diffs=False)
        if not self._yes and not confirm(f"Load both layouts, with clients waiting longer, and end in {layout}?"):
            raise RefusedError("not done; nothing was sent and nothing was changed")
        return plan

    def _stages(self, plan: Plan) -> list[str]:
        """What will be done, one line each."""
        wish, (layout, number) = self._wish, self._began
        load = f"{wish.load}, {seconds(wish.warm_up)} and then {seconds(wish.duration)}"
        gap = "no engine is up for " + (
            "a time that was not measured yet" if plan.gap.expected is None else f"about {seconds(plan.gap.expected)}"
        )
        stages, where = [], layout
        for number_of, name in enumerate(self._order):
            if name != where:
                told = f": {gap}, and requests wait in the proxy" if where == layout else ""
                stages.append(f"cutover from {where} to {name}{told}")
            stages.append(f"the same on {name}" if number_of else f"load on {name}, through the proxy: {load}")
            where = name
        stages.append(f"back to {layout}, generation {number}, with the files that the boxes kept of it")
        return stages

    def _there(self, agreed: Plan) -> None:
        where = self._began[0]
        for name in self._order:
            if name != where:
                first = where == self._began[0]
                with self._watched(where, name):
                    self._mover().cutover(name, self._books, agreed if first else None)
                where = name
                self._left = self._now()
                # Guards act while load is sent, and whoever has to may move the fleet.
                self._subject.boxes.each(lambda box: box.call("claim_release"))
            run = measure(self._subject, self._wish, name, self._say)
            self._report(run)

    def _return(self) -> None:
        """Go back to the generation where it began. Raises what went wrong, and says where the fleet is."""
        layout, number = self._began
        try:
            now = self._now()
            if now == self._began:
                return
            if now != self._left:
                raise RefusedError(f"somebody has moved the fleet meanwhile, to {now[0]}: it is left there")
            with self._watched(now[0], layout):
                self._mover().rollback(number, self._books, undo=False)
        except FleetError as error:
            _add(error, f"{self._where()}; it began in {layout}: `fleetctl rollback --to {number}` brings it back")
            raise

    def _return_after(self, error: FleetError) -> None:
        """The same after something went wrong; ``error`` says then where the fleet is."""
        layout, number = self._began
        if not isinstance(error, RefusedError | MoveUndoneError | InterruptedMoveError) and error.exit_code != 1:
            # Somebody else holds the fleet, a box is lost or a move is half done: another move would make it worse.
            _add(error, f"{self._where()}; it began in {layout}, generation {number}")
            return
        try:
            self._return()
        except FleetError as second:
            _add(error, f"and the way back failed: {second.message}\n{second.hint or ''}".rstrip())
            return
        _add(error, f"the fleet is in {layout}, where it began")

    def _now(self) -> tuple[str, int | None]:
        """The layout that is live, and its generation. Raises RefusedError where none is."""
        now = standing(self._subject, None, None)
        return now.release.layout or "", now.generation

    def _where(self) -> str:
        try:
            return f"the fleet is in {self._now()[0]}"
        except FleetError:
            return "which layout the fleet is in is not known: `fleetctl status` tells"

    @contextlib.contextmanager
    def _watched(self, origin: str, goal: str) -> Iterator[None]:
        """A client asks through the proxy all the time, as those of the fleet do, where it answers at all."""
        try:
            found = standing(self._subject, self._wish.model, self._wish.mix.task)
            way = through_proxy(self._subject, found)
        except FleetError:
            yield
            return
        prompts = Prompts(self._wish.mix, Dialect(found.engines[0].served_as[0], exact=False), Counting())
        with patient_client(way.endpoint, prompts) as patience:
            yield
        self._saw[origin, goal] = patience

    def _mover(self) -> Mover:
        return Mover(self._subject, as_json=self._json, yes=True, take_over=self._take_over)

    def _report(self, run: StoredRun) -> None:
        if self._json:
            emit("measured", **run.model_dump(mode="json"))
            return
        told = run.figures
        self._say(
            f"{run.layout}: {told.tokens_out_rate:.1f} tokens/s out, {told.requests_per_minute:.1f} requests/min, "
            f"{told.answered} of {told.requests} answered"
        )

    def _say(self, text: str) -> None:
        say(text, as_json=self._json)


def saw_event(saw: Saw) -> list[dict[str, object]]:
    """What clients saw, for programs."""
    return [{"from": origin, "to": goal, **asdict(patience)} for (origin, goal), patience in saw.items()]


def _told(problem: FleetError | KeyboardInterrupt) -> FleetError:
    if isinstance(problem, FleetError):
        return problem
    return InterruptedMoveError("interrupted while load was sent; what was measured until then counts for nothing")


def _add(error: FleetError, text: str) -> None:
    error.hint = f"{error.hint}\n{text}" if error.hint else text


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM and SIGHUP end a load as Ctrl-C does, so that the fleet is brought back."""

    def interrupt(number: int, frame: object) -> None:
        signal.raise_signal(signal.SIGINT)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
