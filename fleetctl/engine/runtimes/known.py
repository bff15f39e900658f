"""The kinds of engine there are, by their names in fleet.yaml. Pure."""

from __future__ import annotations

from fleetctl.engine.runtimes.encoder import ENCODER
from fleetctl.engine.runtimes.infinity import INFINITY
from fleetctl.engine.runtimes.llamacpp import LLAMACPP
from fleetctl.engine.runtimes.runtime import Runtime
from fleetctl.engine.runtimes.sglang import SGLANG
from fleetctl.engine.runtimes.tei import TEI
from fleetctl.engine.runtimes.vllm import VLLM

RUNTIMES: dict[str, Runtime] = {one.name: one for one in (VLLM, SGLANG, LLAMACPP, TEI, INFINITY, ENCODER)}
