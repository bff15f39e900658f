"""LoRA adapters of a model in a pool: what is rendered for them, and how a push reaches boxes, engines and gateways."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
from planned import boxes_in, plan
from pooled import GATEWAY, PASSWORDS, SMALL, all_in_pool, pooled

from fleetctl.facts.adapters import AdaptersFacts
from fleetctl.facts.types import Observed
from fleetctl.onbox import adapters_live, loras_only
from fleetctl.onbox.main import Call, OpError
from fleetctl.plan.adapters import NewAdapter, engines_asked, push_steps, remove_steps
from fleetctl.plan.difference import compare
from fleetctl.render.release import Release
from fleetctl.run.adapters import model_for
from fleetctl.run.batching import targets_of
from fleetctl.run.planning import with_cache
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.fleet_model import Task

LORAS = {"models__small": {**SMALL, "loras": {"max_lora_rank": 32}}}
FILES = {"adapter_config.json": (10, "0" * 64), "adapter_model.safetensors": (20, "1" * 64)}


def live(**more: Any) -> Release:
    return pooled(**{**LORAS, **more})


def having(release: Release, *names: str) -> Observed:
    entries = {name: {"digest": "0" * 16, "files": FILES, "rank": 8} for name in names}
    told = AdaptersFacts.model_validate({"serial": 3, "adapters": {"small": entries} if names else {}})
    seen = all_in_pool(boxes_in(release), release)
    return {box: facts.model_copy(update={"adapters": told}) for box, facts in seen.items()}


def text_of(release: Release, box: str, end: str) -> str:
    return next(file.content for file in release.files[box] if file.path.endswith(end))


def test_its_engine_starts_with_what_the_box_keeps_and_the_gateway_reads_the_names() -> None:
    release = live()
    unit = text_of(release, "a", "fleetctl-pool-small.service")
    assert "adapters.py /var/lib/fleetctl/loras small --" in unit and "--enable-lora --max-loras" in unit
    assert json.loads(text_of(release, "a", "gateway.json"))["adapters"] == "/run/fleetctl-loras/names"
    assert "BindReadOnlyPaths=/var/lib/fleetctl/loras/.gateway:/run/fleetctl-loras" in text_of(release, "a", GATEWAY)
    without = pooled()
    assert "fleetctl-loras" not in text_of(without, "a", GATEWAY)
    assert json.loads(text_of(without, "a", "gateway.json"))["adapters"] == ""


def test_a_push_asks_the_engine_of_every_box_and_the_gateway_comes_last() -> None:
    release = live()
    new = NewAdapter("small", "x", "f" * 16, FILES, 8, "/x")
    steps = push_steps([new], release, having(release), by="me", at=1.0)
    loads = [step.params["engine"] for step in steps if step.kind == "load_adapters"]
    assert loads == ["pool/small@a", "pool/small@b"]
    last = steps[-1]
    assert (last.kind, last.box, last.summary) == ("name_adapters", "a", "the proxy and the gateway on a know x")
    asked = last.params["gateway"]
    service = next(one for one in release.pool.services if one.kind == "gateway")  # type: ignore[union-attr]
    assert (asked["address"], asked["port"]) == (service.address, service.port) and "small" in asked["models"]
    gone = remove_steps([("small", "x")], release, having(release, "x"))
    assert [step.params["engine"] for step in gone if step.kind == "unload_adapters"] == loads
    assert [one["unit"] for one in engines_asked(release, "b")] == ["fleetctl-pool-small.service"]


def test_a_box_with_a_gateway_and_no_proxy_has_the_names_too() -> None:
    nats = {"boxes": ["a"], "passwords": PASSWORDS}
    release = live(pool={"nats": nats, "gateways": ["a", "b"]})
    steps = push_steps([], release, having(release), by="me", at=1.0)
    named = [(step.box, step.summary) for step in steps if step.kind == "name_adapters"]
    assert [box for box, _ in named] == ["a", "b"] and named[1][1].startswith("the gateway on b knows")


def test_a_move_into_the_pool_has_the_gateway_know_them_and_looks_at_pinned_engines() -> None:
    source = pooled("replicas", **LORAS)
    placed = {"small": {"pool": ["a", "b"], "memory": "12GiB", "pin": True}}
    target = live(layouts__pool=placed)
    made = plan(source, target, having(source, "x"))
    starts = [step.params["adapters"] for step in made.steps if step.kind in ("start_gateway", "start_worker")]
    assert sorted(starts) == [False, False, True]
    loads = [step.id for step in made.steps if step.kind == "load_adapters"]
    assert loads == ["prove.load_adapters.pool/small@a", "prove.load_adapters.pool/small@b"]


def test_the_sum_of_a_pools_engine_is_made_before_a_move_with_its_slots_for_adapters() -> None:
    source, target = pooled("replicas", **LORAS), live()
    difference = compare(source, target, boxes_in(source), 2)
    sized = with_cache(difference)
    assert [engine.id for engine in sized] == ["pool/small@a", "pool/small@b"], "an encoder has no cache"


def test_a_user_who_may_push_may_do_so_into_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    release = live()
    monkeypatch.setattr(loras_only, "_live", lambda: release.model_dump(mode="json"))
    (engine,) = engines_asked(release, "a")
    loras_only.check("adapters_load", {**engine, "model": "small"})
    loras_only.check("checkpoint_files", {"path": "/models/small"})
    service = next(one for one in release.pool.services if one.kind == "gateway")  # type: ignore[union-attr]
    asked: dict[str, Any] = {"address": service.address, "port": service.port, "models": []}
    loras_only.check("adapters_tell", {"path": loras_only.SOCKET, "gateway": asked})
    with pytest.raises(loras_only.NotAllowedError, match="no gateway"):
        loras_only.check("adapters_tell", {"path": loras_only.SOCKET, "gateway": {**asked, "port": 22}})


def test_lines_of_a_batch_job_may_name_an_adapter() -> None:
    fleet = cast(Fleet, _fleet())
    made = targets_of(fleet, "x", {"x": "small", "old": "gone"})
    assert (made.chosen, made.adapter, made.key_of("old")) == ("small", "x", None)
    assert targets_of(fleet, "small", {"small": "minilm"}).adapter == "", "a model's own name counts"
    assert targets_of(fleet, "x").chosen == "", "the boxes have not been asked yet"
    assert model_for(fleet, None) == "small"


def _fleet() -> Any:
    def model(loras: object) -> Any:
        return SimpleNamespace(served_as=(), loras=loras)

    return SimpleNamespace(models={"small": model({}), "minilm": model(None)})


class Engine(adapters_live.Engine):
    """One that is gone when it is asked."""

    def __init__(self, *_: object) -> None:
        pass

    def loaded(self) -> dict[str, str]:
        raise OpError("the engine did not answer")


@pytest.mark.parametrize(
    ("after", "down"), [(["deactivating", "inactive"], True), (["deactivating", "failed"], False), (["active"], False)]
)
def test_an_engine_that_is_evicted_meanwhile_loads_them_when_it_starts_and_one_that_dies_is_told(
    monkeypatch: pytest.MonkeyPatch, after: list[str], down: bool
) -> None:
    told = iter(["active", *after])
    monkeypatch.setattr(adapters_live, "states", lambda *_: {"u": {"active": next(told), "pid": 1}})
    monkeypatch.setattr(adapters_live, "Engine", Engine)
    monkeypatch.setattr(adapters_live, "require_claim", lambda: None)
    monkeypatch.setattr(adapters_live, "PAUSE", 0.001)
    call = Call(1, lambda event: None)
    asked: dict[str, Any] = {"unit": "u", "address": "x", "port": 1, "model": "m", "limit": 1.0, "items": []}
    if down:
        assert adapters_live.adapters_load(call, **asked)["down"]
    else:
        with pytest.raises(OpError):
            adapters_live.adapters_load(call, **asked)


def test_a_push_ends_when_the_gateway_lists_the_name_and_one_that_does_not_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = iter([[], [], ["x"]])

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"data": [{"id": name} for name in next(pages, ["x"])]}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Pages)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(adapters_live, "require_claim", lambda: None)
    monkeypatch.setattr(adapters_live, "write_names", lambda *_: {})
    monkeypatch.setattr(adapters_live, "PAUSE", 0.001)
    monkeypatch.setattr(adapters_live, "GATEWAY_WAIT", 0.5)
    call, items = Call(1, lambda event: None), [{"model": "m", "name": "x"}]
    at: dict[str, Any] = {"address": "127.0.0.1", "port": server.server_port, "models": ["m"]}
    adapters_live.adapters_tell(call, "/none", [], items, at)
    with pytest.raises(OpError, match="does not see"):
        adapters_live.adapters_tell(call, "/none", items, [], at)
    adapters_live.adapters_tell(call, "/none", items, [], {**at, "models": ["other"]})
    server.shutdown()
    server.server_close()
    adapters_live.adapters_tell(call, "/none", items, [], at)  # it does not run, and reads them when it starts


def test_every_task_has_a_question_that_proves_an_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(adapters_live.PROOFS) == set(get_args(Task))
    asked: list[tuple[str, dict[str, Any]]] = []

    def ask(_: object, method: str, path: str, body: dict[str, Any], wait: float) -> tuple[int, bytes]:
        asked.append((path, body))
        return (200, b"") if path == "/v1/embeddings" else (404, b"")

    monkeypatch.setattr(adapters_live.Engine, "ask", ask)
    engine = Engine()
    engine.prove("x", "embed")
    assert asked == [("/v1/embeddings", {"model": "x", "input": "Hello"})]
    with pytest.raises(OpError, match="does not answer with x"):
        engine.prove("x", "generate")
