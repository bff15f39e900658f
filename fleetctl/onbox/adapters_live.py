"""LoRA adapters of engines that run here, and of the proxy: what they have, and making them have what the box keeps."""

import contextlib
import http.client
import json
import os
import time
from typing import Any, Dict, List, Optional, Tuple

from fleetctl.onbox import haproxy
from fleetctl.onbox.adapters import FOLDER, Item, changed, fault, folder_of, index, named, write_names
from fleetctl.onbox.lock import require_claim
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.reaching import connection_to
from fleetctl.onbox.units import environment_of, states

LOAD_WAIT = 60.0  # seconds for one adapter to be loaded or unloaded
ASK_WAIT = 60.0  # seconds for the one token that proves it
LOOK_WAIT = 5.0
GATEWAY_WAIT = 10.0  # seconds for a gateway to see another list of names; it looks twice a second
LARGEST = 4 * 1024 * 1024  # bytes of an answer
STOP_WAIT = 60.0  # seconds for a unit that is being stopped
PAUSE = 0.2


PROOFS: Dict[str, Tuple[str, Dict[str, Any]]] = {
    "generate": ("/v1/completions", {"prompt": "Hello", "max_tokens": 1}),
    "embed": ("/v1/embeddings", {"input": "Hello"}),
    "rerank": ("/v1/rerank", {"query": "Hello", "documents": ["Hello"]}),
}
"""Task of an engine -> what it is asked with each adapter, and where."""


class Engine:
    """A running engine, asked at its own address with its own key."""

    def __init__(self, address: str, port: int, pid: int) -> None:
        self._address, self._port = address, port
        key = environment_of(pid).get("VLLM_API_KEY", "").split(",")[0]
        self._headers = {"Authorization": "Bearer " + key} if key else {}

    def ask(self, method: str, path: str, body: Optional[Dict[str, Any]], wait: float) -> Tuple[int, bytes]:
        """Status and body of one exchange. OpError when there is none."""
        headers = {"Content-Type": "application/json", "Connection": "close", **self._headers}
        connection = connection_to(self._address, self._port, wait)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read(LARGEST)
        except (OSError, http.client.HTTPException) as error:
            raise OpError("the engine did not answer %s: %s" % (path, error or type(error).__name__)) from None
        finally:
            connection.close()

    def loaded(self) -> Dict[str, str]:
        """Names of the adapters it has, with the folder of each."""
        status, body = self.ask("GET", "/v1/models", None, LOOK_WAIT)
        try:
            cards = json.loads(body.decode("utf-8", "replace"))["data"]
            return {str(card["id"]): str(card.get("root") or "") for card in cards if card.get("parent")}
        except (ValueError, LookupError, TypeError, AttributeError):
            raise OpError("/v1/models got status %d and no list of models" % status) from None

    def load(self, name: str, path: str) -> None:
        """Load one. OpError with the engine's words when it does not."""
        self._change("load", name, {"lora_name": name, "lora_path": path})

    def unload(self, name: str) -> None:
        """Unload one. OpError with the engine's words when it does not."""
        self._change("unload", name, {"lora_name": name})

    def _change(self, verb: str, name: str, body: Dict[str, Any]) -> None:
        status, said = self.ask("POST", "/v1/%s_lora_adapter" % verb, body, LOAD_WAIT)
        if status != 200:
            raise OpError("it does not %s %s: %s" % (verb, name, words_of(status, said)))

    def prove(self, name: str, task: str) -> None:
        """One token, one vector or one score, made with the adapter."""
        path, body = PROOFS.get(task, PROOFS["generate"])
        status, said = self.ask("POST", path, {"model": name, **body}, ASK_WAIT)
        if status != 200:
            raise OpError("it does not answer with %s: %s" % (name, words_of(status, said)))


def words_of(status: int, said: bytes) -> str:
    """What an engine said of an error, in one line."""
    text = said.decode("utf-8", "replace")
    with contextlib.suppress(ValueError, LookupError, TypeError):  # as it is, then
        text = str(json.loads(text)["error"]["message"])
    if status == 404 and text in ("Not Found", '{"detail":"Not Found"}'):
        return "it was started without VLLM_ALLOW_RUNTIME_LORA_UPDATING; `fleetctl apply` starts it with that"
    return "status %d: %s" % (status, " ".join(text.split())[:400])


def _running(call: Call, unit: str, limit: float) -> Optional[int]:
    """The main process of a unit that serves, once it does; None for one that is down. OpError after ``limit``."""
    deadline = time.monotonic() + limit
    while True:
        state = states(call, [unit])[unit]
        if state["active"] == "active":
            return int(state["pid"])
        if state["active"] not in ("activating", "reloading"):
            return None
        if time.monotonic() > deadline:
            raise OpError("%s is still loading after %g s" % (unit, limit))
        call.check()
        time.sleep(PAUSE)


@op("adapters_load")
def adapters_load(
    call: Call,
    unit: str,
    address: str,
    port: int,
    model: str,
    limit: float,
    items: Optional[List[Item]] = None,
    max_rank: int = 0,
    task: str = "generate",
) -> Dict[str, Any]:
    """Have an engine load adapters and answer with each: the ``items``, or (None) all of the index and no others.

    Of the index those are left out that are not whole, or of a higher rank than ``max_rank``. ``loaded`` are those that
    it did not have. ``down``: the unit does not run, and loads them when it starts. One that is starting is waited for,
    ``limit`` seconds at most. OpError with the engine's words when it refuses one.
    """
    require_claim()
    left_out = []
    if items is None:
        wanted = {}
        for name, entry in index()["adapters"].get(named(model, "model"), {}).items():
            path = folder_of(model, name, entry["digest"])
            if fault(path, entry["files"]) is None and entry["rank"] <= max_rank:
                wanted[name] = path
            else:
                left_out.append(name)
    else:
        wanted = {item["name"]: folder_of(model, item["name"], item["digest"]) for item in items}
    pid = _running(call, unit, limit)
    if pid is None:
        return {"down": True, "loaded": [], "unloaded": [], "left_out": left_out}
    engine = Engine(address, port, pid)
    done, gone = [], []
    try:
        there = engine.loaded()
        for name, path in wanted.items():
            call.check()
            if name in there and there[name] != path:
                engine.unload(name)
            if there.get(name) != path:
                engine.load(name, path)
                engine.prove(name, task)
                done.append(name)
        if items is None:
            gone = [name for name, root in there.items() if name not in wanted and root.startswith(FOLDER + "/")]
            for name in gone:
                engine.unload(name)
    except OpError:
        if not _was_stopped(call, unit):
            raise
        return {"down": True, "loaded": [], "unloaded": [], "left_out": left_out}
    return {"down": False, "loaded": done, "unloaded": gone, "left_out": left_out}


def _was_stopped(call: Call, unit: str) -> bool:
    """Somebody stops the unit, as a worker does with an engine that it evicts; one that died is another matter."""
    for _ in range(int(STOP_WAIT / PAUSE)):
        active = states(call, [unit])[unit]["active"]
        if active != "deactivating":
            return bool(active == "inactive")
        call.check()
        time.sleep(PAUSE)
    return False


@op("adapters_unload")
def adapters_unload(
    call: Call, unit: str, address: str, port: int, model: str, items: List[Item], limit: float
) -> Dict[str, Any]:
    """Have an engine forget adapters; what it does not have, or a unit that is down, is fine."""
    require_claim()
    pid = _running(call, unit, limit)
    if pid is None:
        return {"down": True, "unloaded": []}
    engine = Engine(address, port, pid)
    try:
        there = engine.loaded()
        # What somebody else loaded from elsewhere under the same name is not ours to take away.
        mine = [item["name"] for item in items if there.get(item["name"], "").startswith(FOLDER + "/")]
        for name in mine:
            engine.unload(named(name, "name of an adapter"))
    except OpError:
        if not _was_stopped(call, unit):
            raise
        return {"down": True, "unloaded": []}
    return {"down": False, "unloaded": mine}


@op("adapters_look")
def adapters_look(call: Call, engines: List[Dict[str, Any]]) -> Dict[str, Any]:
    """``loaded``: unit → adapters that its engine has, with their folders; None for one that does not serve or answer.

    ``changed``: ``MODEL/NAME`` → a file of which a byte is another than when it came.
    """
    loaded: Dict[str, Any] = {}
    for one in engines:
        state = states(call, [one["unit"]])[one["unit"]]
        loaded[one["unit"]] = None
        if state["active"] == "active":
            try:
                loaded[one["unit"]] = Engine(one["address"], one["port"], int(state["pid"])).loaded()
            except OpError:
                continue
    return {"loaded": loaded, "changed": changed(call)}


@op("adapters_tell")
def adapters_tell(
    call: Call, path: str, without: List[Item], also: List[Item], gateway: Optional[Dict[str, Any]] = None
) -> Dict[str, Any]:
    """The proxy at the socket ``path`` knows the names of the index, now and after a restart; but for some, or more.

    A proxy whose configuration does not ask for them, or that does not run, is left as it is. A gateway of a pool reads
    them by itself; the one at ``gateway`` (its address, port and models) is seen to have done so, if it runs. OpError
    where it has not.
    """
    require_claim()
    names = write_names(call, without, also)
    if gateway is not None:
        _await_gateway(call, gateway, without, also)
    if not os.path.exists(path):
        return {"told": False}
    word = ",".join("%s=%s" % (name, names[name]) for name in sorted(names)) or "-"
    answer = haproxy.ask(path, "fleetctl adapters " + word).strip()
    return {"told": answer.startswith("adapters:"), "answer": answer[:200]}


def _await_gateway(call: Call, gateway: Dict[str, Any], without: List[Item], also: List[Item]) -> None:
    listed = {item["name"]: yes for yes, items in ((False, without), (True, also)) for item in items
              if item["model"] in gateway["models"]}  # fmt: skip
    deadline = time.monotonic() + GATEWAY_WAIT
    while listed:
        there = _listed_by(gateway["address"], gateway["port"])
        if there is None or all((name in there) == yes for name, yes in listed.items()):
            return
        if time.monotonic() > deadline:
            raise OpError("the gateway does not see the adapters that there are: its /v1/models has others")
        call.check()
        time.sleep(PAUSE)


def _listed_by(address: str, port: int) -> Optional[List[str]]:
    """The names that a gateway lists; None for one that does not run."""
    connection = http.client.HTTPConnection(address, port, timeout=LOOK_WAIT)
    try:
        connection.request("GET", "/v1/models", headers={"Connection": "close"})
        found = json.loads(connection.getresponse().read(LARGEST).decode("utf-8", "replace"))
        return [str(card["id"]) for card in found["data"]]
    except ConnectionRefusedError:
        return None
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return []
    finally:
        connection.close()
