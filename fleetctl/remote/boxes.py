"""Several boxes at once."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, TypeVar, Unpack

from fleetctl.errors import FleetError, SpecError
from fleetctl.remote.connection import BoxConnection, connect
from fleetctl.remote.errors import SeveralBoxesError
from fleetctl.spec.fleet import Fleet

Result = TypeVar("Result")
Thing = TypeVar("Thing")

GIVE_UP = 5.0  # seconds that calls get to end after Ctrl-C


class Wishes(TypedDict, total=False):
    """How the operator wants boxes to be connected; see :func:`fleetctl.remote.connection.connect`."""

    ask_password: Callable[[str], str] | None
    ask_passphrase: Callable[[Path], str] | None
    accept_new: bool
    timeout: float
    reach: float | None
    config: Path | None
    ask_login: Callable[[str], str] | None
    confirm_host: Callable[[str], str] | None
    full: bool


class Boxes(Mapping[str, BoxConnection]):
    """Connections by the name of the box, in the order of fleet.yaml."""

    def __init__(self, connections: Mapping[str, BoxConnection]) -> None:
        self._connections = dict(connections)

    @classmethod
    def open(cls, fleet: Fleet, names: Iterable[str] | None = None, **ways: Unpack[Wishes]) -> Boxes:
        """Connect to boxes of the fleet (all by default) in parallel; see :func:`connect` for the options.

        Raises SpecError for a name that is no box's; BoxError, or SeveralBoxesError with all that went wrong, when
        boxes cannot be connected; nothing stays connected then.
        """
        boxes, failed = cls.open_some(fleet, names, **ways)
        if failed:
            boxes.close()
            raise next(iter(failed.values())) if len(failed) == 1 else SeveralBoxesError(failed)
        return boxes

    @classmethod
    def open_some(
        cls, fleet: Fleet, names: Iterable[str] | None = None, **ways: Unpack[Wishes]
    ) -> tuple[Boxes, dict[str, FleetError]]:
        """As :meth:`open`, with those that can be connected, and what is wrong with the others."""
        asked = set(fleet.boxes) if names is None else set(names)
        if unknown := sorted(asked - set(fleet.boxes)):
            raise SpecError(f"no box {', '.join(unknown)} in the fleet", hint=f"boxes: {', '.join(fleet.boxes)}")
        wanted = [name for name in fleet.boxes if name in asked]
        desk = _Desk(len(wanted))
        mine: Wishes = {
            **ways,
            "ask_password": desk.asking(ways.get("ask_password")),
            "ask_passphrase": desk.asking(ways.get("ask_passphrase")),
            "ask_login": desk.asking(ways.get("ask_login")),
            "confirm_host": desk.asking(ways.get("confirm_host")),
        }
        opened: dict[str, BoxConnection] = {}
        failed: dict[str, FleetError] = {}

        def one(name: str) -> None:
            try:
                opened[name] = connect(name, fleet.boxes[name], **mine)
            except FleetError as error:
                failed[name] = error

        try:
            _on_each({name: name for name in wanted}, one, lambda: None, desk)
        except BaseException:
            cls(opened).close()
            raise
        there = cls({name: opened[name] for name in wanted if name in opened})
        return there, {name: failed[name] for name in wanted if name in failed}

    def each(self, fn: Callable[[BoxConnection], Result]) -> dict[str, Result]:
        """Run ``fn`` on every box at once and return the results by name, in the order of the boxes.

        All are waited for. FleetErrors of several boxes are raised as one SeveralBoxesError, that of one box as it is;
        any other exception is raised as it is. Ctrl-C cancels the calls under way.
        """
        return _on_each(self._connections, fn, self.cancel, _Desk(len(self._connections)))

    def cancel(self, ops: Collection[str] | None = None) -> None:
        """Cancel the calls under way on every box, of the ops named only or of all."""
        for connection in self._connections.values():
            connection.cancel(ops)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()

    def __getitem__(self, name: str) -> BoxConnection:
        return self._connections[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._connections)

    def __len__(self) -> int:
        return len(self._connections)

    def __enter__(self) -> Boxes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class _Question:
    ask: Callable[[], str]
    answers: queue.SimpleQueue[str | BaseException]


class _Desk:
    """Where the threads of boxes bring questions for the operator, and report that they are done.

    Questions are asked in the caller's thread, one after the other: Ctrl-C reaches only that one, and a prompt that
    is cut off in any other would leave the terminal without echo.
    """

    def __init__(self, threads: int) -> None:
        self._inbox: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        self._busy = threads

    def asking(self, ask: Callable[[Thing], str] | None) -> Callable[[Thing], str] | None:
        """The same question, to be called from any thread."""
        if ask is None:
            return None

        def brought(thing: Thing) -> str:
            answers: queue.SimpleQueue[str | BaseException] = queue.SimpleQueue()
            self._inbox.put(_Question(lambda: ask(thing), answers))
            answer = answers.get()
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return brought

    def done(self) -> None:
        """One thread is done."""
        self._inbox.put(None)

    def attend(self) -> None:
        """Answer questions until all threads are done. An error of a question is raised here and where it came from."""
        while self._busy > 0:
            question = self._inbox.get()
            if question is None:
                self._busy -= 1
                continue
            try:
                question.answers.put(question.ask())
            except BaseException as error:
                question.answers.put(error)
                raise

    def dismiss(self, seconds: float) -> None:
        """Let all threads come to their end, with no more questions, for so long."""
        end = time.monotonic() + seconds
        with contextlib.suppress(queue.Empty):
            while self._busy > 0:
                question = self._inbox.get(timeout=max(0.0, end - time.monotonic()))
                if question is None:
                    self._busy -= 1
                else:
                    question.answers.put(FleetError("interrupted"))


def _on_each(
    things: Mapping[str, Thing], fn: Callable[[Thing], Result], cancel: Callable[[], None], desk: _Desk
) -> dict[str, Result]:
    results: dict[str, Result] = {}
    failures: dict[str, BaseException] = {}

    def work(name: str, thing: Thing) -> None:
        try:
            results[name] = fn(thing)
        except BaseException as error:  # carried over to the caller's thread
            failures[name] = error
        finally:
            desk.done()

    # Daemon threads and not a pool: a call that hangs must not keep the process from ending.
    for name, thing in things.items():
        threading.Thread(target=work, args=(name, thing), name=f"{name}-work", daemon=True).start()
    try:
        desk.attend()
    except BaseException:
        cancel()
        desk.dismiss(GIVE_UP)
        raise
    known: dict[str, FleetError] = {}
    for name in things:
        error = failures.get(name)
        if isinstance(error, FleetError):
            known[name] = error
        elif error is not None:
            raise error
    if len(known) == 1:
        raise next(iter(known.values()))
    if known:
        raise SeveralBoxesError(known)
    return {name: results[name] for name in things}
