"""The pool's worker on this box (fleetctl/pool/worker), asked over its Unix socket: what it has, what is wished."""

import http.client
import json
from typing import Any, Dict, NamedTuple, Optional, Tuple
from urllib.parse import quote

from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.reaching import UNIX, connection_to, place_of

CONFIG = "/etc/fleetctl/pool/worker.json"
WISHES = ("load", "evict", "pin", "unpin", "leave")
WAIT = 10.0  # seconds for an answer
MOST = 8 << 20  # bytes of one
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
        return {"worker": True, "state": None, "why": "the worker answers %d to GET /state" % status}
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
