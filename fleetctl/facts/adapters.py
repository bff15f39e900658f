"""LoRA adapters as boxes and engines tell of them. Field meanings are those of ``fleetctl/onbox/adapters.py``."""

from __future__ import annotations

from fleetctl.facts.seen import Seen


class AdapterFacts(Seen):
    """A LoRA adapter that a box keeps; ``files`` has bytes and SHA-256 of each. ``at`` is in epoch seconds."""

    digest: str
    files: dict[str, tuple[int, str]]
    rank: int
    by: str = ""
    at: float = 0.0

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(size for size, _ in self.files.values())


class AdaptersFacts(Seen):
    """The adapters of a box by model and name. Of two boxes the one with the higher ``serial`` is right.

    ``broken`` has those that are not whole there, as ``MODEL/NAME`` (or ``index``), and why.
    """

    serial: int = 0
    adapters: dict[str, dict[str, AdapterFacts]] = {}
    broken: dict[str, str] = {}


class LoadedTold(Seen):
    """``loaded``: unit → name → folder (None: its engine does not answer); ``changed``: files that are not as sent."""

    loaded: dict[str, dict[str, str] | None] = {}
    changed: dict[str, str] = {}
