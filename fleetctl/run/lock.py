"""One operator at a time: the fleet's lock, kept on the lead box, with a heartbeat."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from types import TracebackType

from fleetctl.errors import BoxError, LockedError
from fleetctl.facts.types import STALE_AFTER, Lock
from fleetctl.remote.boxes import Boxes
from fleetctl.remote.errors import ConnectionLost, OpFailed
from fleetctl.run.control import Control
from fleetctl.run.journal import whoami
from fleetctl.run.owner import is_gone, myself
from fleetctl.run.reach import Reach

BEAT_EVERY = 2.0
RETURN_WITHIN = 6.0  # seconds in which a holder whose connection broke comes back; then his lock is free to be taken
LOOK_EVERY = 0.5


class FleetLock:
    """Context manager: the lock, and the claim of every box for its holder.

    A lock is taken over without asking when its owner is known to be gone: a process of this machine that has ended,
    or a connection that was closed and did not come back. One that is merely silent needs ``take_over``. When
    somebody else takes this lock over, the control is told to abandon the move. ``aside``: no engine is touched, so
    guards go on with their work.
    """

    def __init__(
        self,
        boxes: Boxes,
        lead: str,
        command: str,
        *,
        take_over: bool,
        control: Control,
        say: Callable[[str], None],
        aside: bool = False,
    ) -> None:
        self._lead = boxes[lead]
        self._take_over = take_over
        self._control = control
        self._say = say
        self._holder = {
            "token": secrets.token_hex(8),
            "who": whoami(),
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "owner": myself(),
            "command": command,
        }
        self.reach = Reach(boxes, control, token=self._token, who=whoami(), aside=aside)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lock heartbeat", daemon=True)

    @property
    def _token(self) -> str:
        return str(self._holder["token"])

    def __enter__(self) -> FleetLock:
        try:
            before = self._take()  # Ctrl-C may come when the box has given the lock and this does not know it yet
            self._thread.start()
            self.reach.claim_all(instead_of=before)
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        self._stop.set()
        try:
            self._lead.call("lock_release", token=self._token, timeout=5)
        except BoxError:
            return  # the box is away; the lock is free to be taken there soon

    def _take(self) -> str:
        """Returns the token of the lock that was taken over, empty when there was none."""
        instead_of = ""
        waiting = False
        while True:
            told = self._lead.call("lock_take", holder=self._holder, instead_of=instead_of)
            if told["taken"]:
                return instead_of
            lock = Lock.model_validate(told["lock"])
            instead_of = ""
            if is_gone(lock.owner) or (not lock.connected and lock.silent >= RETURN_WITHIN):
                self._say(f"the command that held the fleet is gone; its lock is taken over: {lock}")
                instead_of = lock.token
            elif not lock.connected:
                if not waiting:
                    waiting = True
                    self._say(f"the connection of {lock.who}, who holds the fleet, is gone; seeing if it comes back")
                time.sleep(LOOK_EVERY)
            else:
                self._contend(lock)
                instead_of = lock.token

    def _contend(self, lock: Lock) -> None:
        """Raises LockedError unless the lock may be taken over and shall be."""
        if lock.silent < STALE_AFTER:
            raise LockedError(
                f"the fleet is held: {lock}",
                hint="wait until it is done; a lock whose owner falls silent can be taken over after "
                f"{STALE_AFTER:.0f} s with --take-over",
            )
        if not self._take_over:
            raise LockedError(
                f"the fleet is held by somebody silent for {lock.silent:.0f} s: {lock}",
                hint="if that command is gone, run this again with --take-over",
            )
        self._say(f"the lock of somebody silent for {lock.silent:.0f} s is taken over: {lock}")

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_EVERY):
            try:
                self._lead.call("lock_beat", token=self._token, timeout=30)
            except OpFailed as failure:
                if not self._stop.is_set() and self.reach.refused(failure):
                    return
            except ConnectionLost:
                if not self._come_back():
                    return

    def _come_back(self) -> bool:
        """Reach the lead box again, as a lock with nobody connected is soon taken. False when it was."""
        if self._stop.is_set():
            return True
        try:
            self.reach.back(self._lead.name, 0)
        except LockedError:
            return False
        except BoxError:
            return True  # not now; at the next beat again
        return True
