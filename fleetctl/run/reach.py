"""Getting back to a box whose connection broke, as the holder of the fleet's lock or not at all."""

from __future__ import annotations

import threading
import time

from fleetctl.errors import BoxError, LockedError
from fleetctl.remote.boxes import Boxes
from fleetctl.remote.connection import BoxConnection, Call
from fleetctl.remote.errors import ConnectionLost, OpFailed
from fleetctl.run.control import Control

TRY_EVERY = 1.0  # seconds between two attempts to connect
CLAIM_LIMIT = 30.0  # seconds; an earlier program on the box gets some of them to end


class Reach:
    """Claims every box for the holder of the lock ``token``, and again after each new connection.

    ``aside``: for what touches no engine, so that guards go on with their work.
    """

    def __init__(self, boxes: Boxes, control: Control, *, token: str, who: str, aside: bool = False) -> None:
        self.boxes = boxes
        self.boots: dict[str, str] = {}
        self._control = control
        self._holder: dict[str, str | bool] = {"token": token, "who": who, **({"aside": True} if aside else {})}
        self._one_at_a_time = {name: threading.Lock() for name in boxes}

    def claim_all(self, instead_of: str) -> None:
        """Make the connected programs the ones that act on their boxes. Raises LockedError when one is another's."""

        self.boxes.each(lambda box: self._claim(box.name, _caller(box), instead_of=instead_of))

    def back(self, name: str, limit: float) -> None:
        """Reach a box again within so many seconds, whichever threads ask for it at once.

        ``boots`` has its boot then. Raises BoxError when it cannot be reached, and LockedError (after telling the
        control) when somebody else has taken the fleet over.
        """
        box = self.boxes[name]
        deadline = time.monotonic() + limit
        with self._one_at_a_time[name]:
            while True:
                try:
                    # Claimed before any other thread can use it: what a program does that has not claimed its box is
                    # refused. A connection that is good already was renewed by another thread.
                    box.reconnect(lambda call: self._claim(name, call, again=True))
                    self._claim(name, _caller(box), again=True)
                    return
                except BoxError:
                    if time.monotonic() > deadline or self._control.leave.is_set():
                        raise
                time.sleep(TRY_EVERY)

    def refused(self, failure: OpFailed) -> LockedError | None:
        """What a box's refusal means: the fleet was lost. None for any other failure."""
        if failure.kind != "NotHolderError":
            return None
        self._control.abandon(failure.reason)
        return lost(failure.reason)

    def _claim(self, name: str, call: Call, *, instead_of: str = "", again: bool = False) -> None:
        try:
            told = call("claim", {**self._holder, "instead_of": instead_of, "again": again}, CLAIM_LIMIT)
        except OpFailed as failure:
            if again and failure.kind == "Timeout":
                raise ConnectionLost(name, failure.reason) from failure
            if failure.kind != "NotHolderError":
                raise
            if again:
                self._control.abandon(failure.reason)
                raise lost(failure.reason) from failure
            raise LockedError(
                f"{name}: {failure.reason}", hint="is there another fleet.yaml with this box in it?"
            ) from failure
        self.boots[name] = str(told["boot"])


def _caller(box: BoxConnection) -> Call:
    return lambda op, args, timeout: box.call_with(op, args, timeout=timeout)


def lost(reason: str) -> LockedError:
    """The error of a command whose lock is gone."""
    return LockedError(
        f"this command does not hold the fleet any more: {reason}; it has stopped and left everything to them",
        hint="`fleetctl status` shows what is under way",
    )
