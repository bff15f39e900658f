"""What the worker and the gateway of a pool on this box say at this moment, each over its own interface."""

import http.client
import json
import socket
import threading
import time
from typing import Any, Dict, List, Optional

from fleetctl.onbox.metricspage import chosen, page_of

COUNTED = {
    "fleetctl_gateway_connected",
    "fleetctl_gateway_requests_under_way",
    "fleetctl_gateway_requests_total",
}


class PoolPages:
    """The pages of the programs of a pool here, each read in a thread of its own."""

    def __init__(self, services: List[Dict[str, Any]], deadline: float) -> None:
        self._deadline = deadline
        self._told: Dict[str, Dict[str, Any]] = {}
        asked = [service for service in services if service["kind"] in ("worker", "gateway")]
        self._kinds = [service["kind"] for service in asked]
        self._threads = [threading.Thread(target=self._read, args=(service,), daemon=True) for service in asked]
        for thread in self._threads:
            thread.start()

    def told(self) -> Dict[str, Dict[str, Any]]:
        """Kind → ``state`` of the worker, ``lines`` of the gateway's /metrics, or ``why`` there is neither; and ``at``,
        the seconds of this box's steady clock. Returns when all are there, or the time is over."""
        for thread in self._threads:
            thread.join(max(0.0, self._deadline + 0.1 - time.monotonic()))
        return {kind: dict(self._told.get(kind, {"why": "it did not answer in time"})) for kind in self._kinds}

    def _read(self, service: Dict[str, Any]) -> None:
        kind, address, port = service["kind"], service["address"], service["port"]
        try:
            if kind == "worker":
                state = json.loads(page_of(address, port, self._deadline, "/state").decode("utf-8", "replace"))
                found: Dict[str, Any] = {"state": state if isinstance(state, dict) else None}
            else:
                found = {"lines": chosen(page_of(address, port, self._deadline), COUNTED)}
        except (OSError, ValueError, http.client.HTTPException) as error:
            found = {"why": "it does not answer at port %d: %s" % (port, _reason(error))}
        self._told[kind] = {**found, "at": time.monotonic()}


def _reason(error: Exception) -> str:
    if isinstance(error, socket.timeout):
        return "not in time"
    said: Optional[str] = getattr(error, "strerror", None)
    return "".join(c if c.isprintable() else "?" for c in str(said or error)[:120]) or type(error).__name__
