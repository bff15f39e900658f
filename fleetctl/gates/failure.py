"""The failure of a gate, with what was asked and what came."""

from __future__ import annotations

from collections.abc import Sequence

from fleetctl.engine.client import EngineError
from fleetctl.engine.exchange import Exchange


class GateError(EngineError):
    """An engine did not pass ``gate``; ``why`` is the message without the names of the two."""

    def __init__(
        self, engine: str, gate: str, why: str, *, answer: str = "", exchanges: Sequence[Exchange] = ()
    ) -> None:
        super().__init__(f"{engine} failed the gate {gate}: {why}", answer=answer, exchanges=exchanges)
        self.gate = gate
        self.why = why

    @classmethod
    def of(cls, engine: str, gate: str, error: EngineError) -> GateError:
        """The failure of a gate whose engine did not answer as it has to."""
        return cls(engine, gate, error.message, answer=error.answer, exchanges=error.exchanges)
