"""The pool's worker on this box (fleetctl/pool/worker), asked over its Unix socket: what it has, what is wished."""

import http.client
import json
import time
from typing import Any, Dict, NamedTuple, Optional, Tuple
from urllib.parse import quote

from fleetctl.onbox.main import Call, CancelledError, OpError, op
from fleetctl.onbox.reaching import UNIX, connection_to, place_of
from fleetctl.onbox.watch import invocation

CONFIG = "/etc/fleetctl/pool/worker.json"
WISHES = ("load", "evict", "pin", "unpin", "leave")
WAIT = 10.0  # seconds for an answer
MOST = 8 << 20  # bytes of one
LOOK_EVERY = 0.5  # seconds between two looks at a worker
EVERYWHERE = ("", "0.0.0.0", "::")


class Listens(NamedTuple):
    """Where the worker is asked: ``unix:PATH``, or an address with a port."""

    address: str
    port: int


@op("pool_state")
def pool_state(call: Call) -> Dict[str, Any]:
    """``worker``: whether this box has one. Then ``state`` is what it says of itself; None where ``why`` says why."""
    listen = _listen()
    if listen is None:
        return {"worker": False, "state": None, "why": ""}
    try:
        status, told = _ask(listen, "GET", "/state")
    except OpError as error:
        return {"worker": True, "state": None, "why": str(error)}
    if status != 200 or not isinstance(told, dict):
        return {"worker": True, "state": None, "why": _message(told) or "the worker answers %d to GET /state" % status}
    return {"worker": True, "state": told, "why": ""}


@op("pool_wish")
def pool_wish(call: Call, model: str, wish: str) -> Dict[str, Any]:
    """Tell the worker what is wished of a model, one of :data:`WISHES`; what it answers. OpError where it refuses."""
    if wish not in WISHES:
        raise OpError("a model of a pool can be told %s, not %r" % (", ".join(WISHES), wish))
    listen = _listen()
    if listen is None:
        raise OpError("there is no worker of a pool here (%s)" % CONFIG)
    status, told = _ask(listen, "POST", "/models/%s/%s" % (quote(model, safe=""), wish))
    if not 200 <= status < 300:
        raise OpError(_message(told) or "the worker answers %d" % status)
    return told if isinstance(told, dict) else {}


@op("pool_idle")
def pool_idle(call: Call, limit: float) -> Dict[str, Any]:
    """Wait until the worker of this box, which is drained, has nothing at work; ``left`` still is after ``limit`` s.

    A worker that does not answer has nothing at work: what it had is back in the queue.
    """
    start = time.monotonic()
    while True:
        waited = time.monotonic() - start
        try:
            state = _state()
        except OpError:
            return {"waited": round(waited, 2), "left": 0}
        if "drained" not in state:
            raise OpError(
                "the worker is of an earlier fleetctl, and takes requests although its box is drained; "
                "`fleetctl apply` starts one that does not"
            )
        left = int(state.get("held", 0)) if state.get("draining") else -1
        if left == 0 or waited > limit:
            if left < 0:
                raise OpError("the worker takes requests although its box is drained (journalctl -u fleetctl-worker)")
            return {"waited": round(waited, 2), "left": left}
        if call.cancelled.is_set():
            raise CancelledError("waiting for the worker was cancelled")
        call.event(running=max(0, left), waited=round(waited, 1))
        time.sleep(LOOK_EVERY)


@op("pool_restart")
def pool_restart(call: Call, model: str, unit: str, limit: float) -> Dict[str, Any]:
    """Have the worker start an engine anew, after its last request; returns when it is loaded again.

    OpError where the worker refuses, the engine does not load, or ``limit`` seconds are over.
    """
    start, before = time.monotonic(), invocation(unit)
    listen = _listen()
    if listen is None:
        raise OpError("there is no worker of a pool here (%s)" % CONFIG)
    status, told = _ask(listen, "POST", "/models/%s/restart" % quote(model, safe=""))
    if not 200 <= status < 300:
        raise OpError(_message(told) or "the worker answers %d" % status)
    while True:
        engine = _engine(_state(), unit)
        waited = time.monotonic() - start
        if engine["phase"] == "loaded" and invocation(unit) != before:
            return {"waited": round(waited, 2)}
        if engine["phase"] == "failed":
            raise OpError("%s does not load: %s" % (unit, engine.get("reason") or "no reason told"))
        if waited > limit:
            raise OpError("%s is %s, and not loaded anew, after %.0f s" % (unit, engine["phase"], waited))
        if call.cancelled.is_set():
            raise CancelledError("waiting for %s was cancelled" % unit)
        call.event(running=int(engine.get("running", 0)), waited=round(waited, 1), log="it is %s" % engine["phase"])
        time.sleep(LOOK_EVERY)


def _state() -> Dict[str, Any]:
    """What the worker says of itself. OpError where it does not answer."""
    listen = _listen()
    if listen is None:
        raise OpError("there is no worker of a pool here (%s)" % CONFIG)
    status, told = _ask(listen, "GET", "/state")
    if status != 200 or not isinstance(told, dict):
        raise OpError(_message(told) or "the worker answers %d to GET /state" % status)
    return told


def _engine(state: Dict[str, Any], unit: str) -> Dict[str, Any]:
    for model in state.get("models", {}).values():
        for engine in model.get("engines", []):
            if engine.get("unit") == unit:
                return dict(engine)
    raise OpError("the worker has no engine %s" % unit)


def _listen() -> Optional[Listens]:
    """Where the worker listens; None where there is none. One of an earlier version has a port alone."""
    try:
        with open(CONFIG, encoding="utf-8") as source:
            config = json.load(source)
        if config.get("control"):
            return Listens(UNIX + str(config["control"]), 0)
        host, port = str(config["listen"]["host"]), int(config["listen"]["port"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OpError("%s cannot be read: %s" % (CONFIG, error)) from error
    return Listens("127.0.0.1" if host in EVERYWHERE else host, port)


def _ask(listen: Listens, method: str, path: str) -> Tuple[int, Any]:
    """Status and JSON of an answer (None: it is none)."""
    connection = connection_to(listen.address, listen.port, WAIT)
    try:
        connection.request(method, path, headers={"Connection": "close"})
        answer = connection.getresponse()
        said = answer.read(MOST + 1)
    except (OSError, http.client.HTTPException) as error:
        raise OpError(
            "the worker does not answer at %s: %s (journalctl -u fleetctl-worker)" % (place_of(*listen), error)
        ) from error
    finally:
        connection.close()
    if len(said) > MOST:
        raise OpError("the worker's answer is longer than %d bytes" % MOST)
    try:
        return answer.status, json.loads(said.decode("utf-8", "replace"))
    except ValueError:
        return answer.status, None


def _message(told: Any) -> str:
    """The message of an error as OpenAI's API has it."""
    try:
        return str(told["error"]["message"])[:500]
    except (KeyError, TypeError):
        return ""
