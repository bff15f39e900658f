"""Gates that every engine passes before it gets traffic: right model and context, and real work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fleetctl.engine.client import EngineClient, EngineError
from fleetctl.engine.runtimes.known import RUNTIMES
from fleetctl.gates.canary import pass_canary
from fleetctl.gates.encoders import embedding, ranking
from fleetctl.gates.failure import GateError
from fleetctl.render.release import Engine
from fleetctl.spec.fleet_gates import Gates
from fleetctl.spec.fleet_model import Task


def right_model(engine: Engine, client: EngineClient) -> dict[str, Any]:
    """The engine serves the names and the context length that the release says."""
    runtime = RUNTIMES[engine.runtime]
    served = client.models(runtime.models)
    missing = [name for name in engine.served_as if name not in served]
    if missing:
        raise EngineError(f"it does not serve {', '.join(missing)} but {', '.join(served) or 'nothing'}")
    context = served[engine.served_as[0]]
    if context is not None and (context < engine.context or (runtime.exact_context and context != engine.context)):
        least = "" if runtime.exact_context else "at least "
        raise EngineError(f"its context is {context} tokens and has to be {least}{engine.context}")
    return {"served": sorted(served), "context": context}


def completion(engine: Engine, client: EngineClient, gates: Gates) -> dict[str, Any]:
    """A chat completion in one piece and a streamed one, at the same time; both have to bring text."""
    asked = gates.completion
    model = engine.served_as[0]
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(client.chat, model, asked.prompt, asked.max_tokens)
        streamed = pool.submit(client.stream, model, asked.prompt, asked.max_tokens)
        return {
            "completion_s": round(whole.result().total, 3),
            "first_token_s": round(streamed.result().first_token, 3),
        }


def pass_gates(
    engine: Engine, gates: Gates, socket: Path, say: Callable[[str], None], *, long_context: bool
) -> dict[str, Any]:
    """Run every gate against an engine reached through a tunnel. Raises GateError naming the gate that failed.

    The long prompt is asked with ``long_context`` only.
    """
    within, vectors = gates.completion.within, gates.embedding
    checks: dict[str, tuple[float, Callable[[EngineClient], dict[str, Any]]]] = {
        "model": (within, lambda client: right_model(engine, client)),
    }
    proofs: dict[Task, tuple[str, float, Callable[[EngineClient], dict[str, Any]]]] = {
        "generate": ("completion", within, lambda client: completion(engine, client, gates)),
        "embed": ("embedding", vectors.within, lambda client: embedding(engine, client, vectors)),
        "rerank": ("ranking", vectors.within, lambda client: ranking(engine, client)),
    }
    proof, limit_of_proof, check_of_proof = proofs[engine.task]
    checks[proof] = (limit_of_proof, check_of_proof)
    canary = gates.long_context
    if canary is not None and long_context:
        checks["long_context"] = (canary.within, lambda client: pass_canary(engine, canary, client))
    results: dict[str, Any] = {}
    for name, (limit, check) in checks.items():
        say(f"gate {name}")
        with EngineClient(engine.url, socket=socket, timeout=limit) as client:
            try:
                results[name] = check(client)
            except EngineError as error:
                error.exchanges = tuple(client.exchanges)
                raise GateError.of(engine.id, name, error) from error
    return results
