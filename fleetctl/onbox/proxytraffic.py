"""Where requests went and who reads metrics through the proxy, by its log: counts, so that no log leaves the box."""

import json
import re
from typing import Any, Dict, Mapping, Optional

MOST_CLIENTS = 50
# Keys of the line follow each other so; in a path quotes would be escaped, so that no client can write this.
_WHERE = re.compile(rb'"backend":"([^"\\]{1,120})","server":"([^"\\]{1,120})"')
_POST = b'"method":"POST"'
_METRICS = b"metrics"


class Traffic:
    """Takes lines in the form of ``journalctl -o short-unix --reverse``.

    ``since`` says for each backend from when on (epoch seconds) the requests of its servers are counted.
    """

    def __init__(self, since: Mapping[str, float]) -> None:
        self._since = dict(since)
        self.lines = 0
        self.oldest: Optional[float] = None
        self.sent: Dict[str, Dict[str, int]] = {}
        self.metrics: Dict[str, Dict[str, Any]] = {}

    def add(self, line: bytes) -> None:
        """Take one line, whatever is in it."""
        prefix, _, message = line.partition(b": ")
        stamp = prefix.split(b" ", 1)[0]
        if not re.fullmatch(rb"[0-9]{1,12}\.[0-9]{1,9}", stamp):
            return
        at = float(stamp)
        self.lines += 1
        self.oldest = at
        if _POST in message:
            self._request(message, at)
        elif _METRICS in message and message.startswith(b"{"):
            self._read(message, at)

    def _request(self, message: bytes, at: float) -> None:
        where = _WHERE.search(message)
        if where is None:
            return
        backend, server = (word.decode("utf-8", "replace") for word in where.group(1, 2))
        if backend in self._since and at >= self._since[backend] and not server.startswith("<"):
            servers = self.sent.setdefault(backend, {})
            servers[server] = servers.get(server, 0) + 1

    def _read(self, message: bytes, at: float) -> None:
        try:
            line = json.loads(message.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return
        if not isinstance(line, dict) or line.get("method") != "GET" or not isinstance(line.get("path"), str):
            return
        if line["path"].rstrip("/").rpartition("/")[2] != "metrics":
            return
        client = str(line.get("client"))
        if client not in self.metrics and len(self.metrics) >= MOST_CLIENTS:
            return
        one = self.metrics.setdefault(client, {"count": 0, "answered": 0, "last": at, "first": at, "servers": {}})
        one["count"] += 1
        one["answered"] += line.get("status") == 200
        one["first"] = at
        server = str(line.get("server"))
        if server in one["servers"] or len(one["servers"]) < 100:
            one["servers"][server] = one["servers"].get(server, 0) + 1

    def told(self) -> Dict[str, Any]:
        """All of it, for JSON. Times are epoch seconds."""
        return {"lines": self.lines, "oldest": self.oldest, "sent": self.sent, "metrics": self.metrics}
