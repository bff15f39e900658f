"""Asking one box again and again, without anybody having to wait for one that is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from fleetctl.errors import FleetError, reason
from fleetctl.facts.types import first_fault
from fleetctl.remote.connection import BoxConnection, ConnectionLost
from fleetctl.watch.told import Told

MARGIN = 0.5  # seconds beyond what the box itself takes at most
GIVEN_UP = 10.0  # seconds after which a question is asked anew
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds between two tries to reach a box

Connect = Callable[[], BoxConnection]


class Asked:
    """One box. ``told`` has its last answer, if that is of this time; ``why`` says why there is none."""

    def __init__(
        self, name: str, connection: BoxConnection | None, connect: Connect | None, away: FleetError | None = None
    ) -> None:
        self.name = name
        self.told: Told | None = None
        self.why: str | None = reason(name, away) if away is not None else "it is not connected"
        self._connection = connection
        self._connect = connect
        self._call: threading.Thread | None = None
        self._late = False
        self._reaching: threading.Thread | None = None
        self._over = threading.Event()

    def ask(self, args: dict[str, Any], limit: float) -> None:
        """Send the question; :meth:`wait` for the answer. While one is still out nothing is sent, nor waited for."""
        self.told = None
        self._late = self._call is not None and self._call.is_alive()
        if self._late:
            return
        if self._connection is None or self._busy_reaching():
            self._reach()
            return
        self.why = f"no answer within {limit + MARGIN:g} s"
        self._call = threading.Thread(
            target=self._ask, args=(self._connection, args), name=f"{self.name}-watch", daemon=True
        )
        self._call.start()

    def wait(self, deadline: float) -> None:
        """Until the answer is there, or the time has come."""
        if self._call is not None and not self._late:
            self._call.join(max(0.0, deadline - time.monotonic()))

    def end(self) -> None:
        """Do not try to reach it any more. A connection that was made here is closed."""
        self._over.set()
        if self._connect is not None and self._connection is not None:
            self._connection.close()

    def _ask(self, connection: BoxConnection, args: dict[str, Any]) -> None:
        try:
            told = Told.model_validate(connection.call_with("watch", args, timeout=GIVEN_UP))
        except ValidationError as error:
            self.why = f"what is kept there is by another version of fleetctl: {first_fault(error)}"
        except ConnectionLost as error:
            self.why = reason(self.name, error)
            self._reach()
        except FleetError as error:
            self.why = reason(self.name, error)
        else:
            self.told, self.why = told, None

    def _busy_reaching(self) -> bool:
        return self._reaching is not None and self._reaching.is_alive()

    def _reach(self) -> None:
        """Begin to connect in the background, if nobody does."""
        if self._busy_reaching() or (self._connection is None and self._connect is None):
            return
        self._reaching = threading.Thread(target=self._try_on, name=f"{self.name}-reach", daemon=True)
        self._reaching.start()

    def _try_on(self) -> None:
        pause = FIRST_PAUSE
        while not self._over.is_set():
            try:
                if self._connection is not None:
                    self._connection.reconnect()
                elif self._connect is not None:
                    self._connection = self._connect()
                return
            except FleetError as error:
                self.why = reason(self.name, error)
            self._over.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
