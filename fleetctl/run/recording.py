"""What clients sent through the proxy, as a recording that can be sent again."""

from __future__ import annotations

from fleetctl.bench.replay import Recording, from_log
from fleetctl.errors import RefusedError, SpecError
from fleetctl.remote.connection import BoxConnection
from fleetctl.run.planning import Subject
from fleetctl.spec.problems import did_you_mean

TIME_FOR_LOG = 120.0  # seconds


def record(subject: Subject, since: float, model: str | None) -> Recording:
    """Answered requests since so many seconds ago, of one model or of all, from every proxy's log.

    Raises RefusedError where there is no proxy or were no requests.
    """

    def ask(box: BoxConnection) -> dict[str, object]:
        told: dict[str, object] = box.call("proxy_requests", since=since, limit=TIME_FOR_LOG, timeout=TIME_FOR_LOG + 60)
        return told

    found: list[list[int]] = []
    names: set[str] = set()
    proxies = 0
    for told in subject.boxes.each(ask).values():
        backends = [str(name) for name in _list(told["backends"])]
        names |= set(backends)
        proxies += bool(told["proxy"])
        found += [one for one in _list(told["requests"]) if model in (None, backends[one[0]])]
    if not proxies:
        raise RefusedError("no layout of fleetctl is live: there is no proxy whose log could be read")
    if model is not None and model not in names:
        raise SpecError(f"the proxy has no model {model}", hint=did_you_mean(model, names))
    recording = from_log(found)
    if not recording.arrivals:
        raise RefusedError("the proxy's log has no answered request in this time", hint="look further back: --since 1d")
    return recording


def _list(value: object) -> list[list[int]]:
    assert isinstance(value, list)
    return value
