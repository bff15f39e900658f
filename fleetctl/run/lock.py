"""One operator at a time: the fleet's lock, kept on the lead box, with a heartbeat."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from types import TracebackType

from fleetctl.errors import BoxError, LockedError
from fleetctl.facts.types import Lock
from fleetctl.remote.connection import BoxConnection
from fleetctl.remote.errors import ConnectionLost, OpFailed
from fleetctl.run.journal import whoami

BEAT_EVERY = 2.0
STALE_AFTER = 15.0  # seconds without a heartbeat after which a lock may be taken over


class FleetLock:
    """Context manager. ``lost`` is called once when somebody took the lock over."""

    def __init__(self, lead: BoxConnection, command: str, *, take_over: bool, lost: Callable[[str], None]) -> None:
        self._lead = lead
        self._command = command
        self._take_over = take_over
        self._lost = lost
        self._token = secrets.token_hex(8)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lock heartbeat", daemon=True)

    def __enter__(self) -> FleetLock:
        holder = {
            "token": self._token,
            "who": whoami(),
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "command": self._command,
        }
        told = self._lead.call("lock_take", holder=holder, take_over=False)
        if not told["taken"]:
            self._contend(Lock.model_validate(told["lock"]), holder)
        self._thread.start()
        return self

    def _contend(self, lock: Lock, holder: dict[str, object]) -> None:
        if lock.silent < STALE_AFTER:
            raise LockedError(
                f"the fleet is held: {lock}",
                hint="wait until it is done; a lock whose owner is gone turns stale after "
                f"{STALE_AFTER:.0f} s and can then be taken over",
            )
        if not self._take_over:
            raise LockedError(
                f"the fleet is held by somebody silent for {lock.silent:.0f} s: {lock}",
                hint="if that command is gone, run this again with --take-over",
            )
        self._lead.call("lock_take", holder=holder, take_over=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        try:
            self._lead.call("lock_release", token=self._token, timeout=5)
        except BoxError:
            return  # the box is away; the lock turns stale there

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_EVERY):
            try:
                self._lead.call("lock_beat", token=self._token, timeout=30)
            except OpFailed as failure:
                if not self._stop.is_set():
                    self._lost(str(failure))
                return
            except ConnectionLost:
                continue  # whoever reconnects the box brings the heartbeat back
            except BoxError:
                continue
