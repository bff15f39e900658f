"""What is lost in a layout when one of its boxes restarts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleetctl.render.release import Engine, Release
from fleetctl.spec.units import seconds


@dataclass(frozen=True)
class Loss:
    """What a restart of ``box`` takes. ``share`` is the part of the model's copies that is away: 1.0 is the model.

    ``load`` are the seconds until an engine serves once the box is up again, None where that was not measured. Of
    requests that run, up to ``cut`` are lost; ``proxy`` says that no client gets through before the box is up.
    ``bridged`` says that another endpoint answers meanwhile.
    """

    box: str
    share: float
    load: float | None = None
    cut: int = 0
    proxy: bool = False
    bridged: bool = False
    hold: float = 0.0

    @property
    def words(self) -> str:
        """In words, as a table has them."""
        if self.proxy:
            then = f"; then {_part(self.share)} of the throughput until its engine has loaded" if self.share else ""
            return f"the proxy, so everything, until the box is up{self._loading() if self.share == 1 else then}"
        if not self.share:
            return "nothing"
        cut = f"; up to {self.cut} running requests fail"
        if self.share < 1:
            return f"{_part(self.share)} of the throughput until the box is up{self._loading()}{cut}"
        if self.bridged:
            return f"the model until the box is up{self._loading()}; the bridge answers meanwhile{cut}"
        return f"the whole model until the box is up{self._loading()}{cut}; new ones wait up to {seconds(self.hold)}"

    def _loading(self) -> str:
        return " and its engine has loaded" if self.load is None else f", and {seconds(self.load)} more to load"


def losses(release: Release, model: str, loads: Mapping[str, float]) -> tuple[Loss, ...]:
    """For each box of a layout, what its restart takes of a model. ``loads``: engine → seconds that loading took."""
    engines = [engine for engine in release.engines if engine.model == model]
    proxy = release.proxy
    found = []
    for box in release.boxes():
        there = [engine for engine in engines if any(rank.box == box for rank in engine.ranks)]
        known = [loads[engine.id] for engine in there if engine.id in loads]
        found.append(
            Loss(
                box=box,
                share=_weight(there) / _weight(engines) if engines else 0.0,
                load=max(known) if known and len(known) == len(there) else None,
                cut=sum(engine.concurrency for engine in there),
                proxy=proxy is not None and proxy.boxes == (box,),
                bridged=bool(
                    proxy and proxy.bridge and {engine.backend for engine in there} & set(proxy.bridge.models)
                ),
                hold=proxy.hold if proxy else 0.0,
            )
        )
    return tuple(found)


def _weight(engines: list[Engine]) -> int:
    """How many requests they take at once: a copy that takes more is more of the throughput."""
    return sum(engine.concurrency for engine in engines)


def _part(share: float) -> str:
    named = {1 / 2: "half", 1 / 3: "a third", 1 / 4: "a quarter"}
    return next((word for value, word in named.items() if abs(share - value) < 0.005), f"{share:.0%}")
