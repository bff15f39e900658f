"""LoRA adapters of the fleet as the boxes tell: which box is right, who lacks what, and the steps of a push. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetctl.facts.adapters import AdapterFacts, AdaptersFacts
from fleetctl.facts.types import Observed
from fleetctl.plan.types import PlannedStep, Stage
from fleetctl.render.release import Engine, Release, Service

Index = dict[str, dict[str, Any]]
"""Model → name → what is known of the adapter, as the boxes keep it."""

PUSH = (
    Stage(name="prepare", summary="nothing that serves is touched"),
    Stage(name="note", summary="an engine that starts from here on has them"),
    Stage(name="load", summary="every copy loads them and answers with each, while it serves"),
    Stage(name="open", summary="clients can ask for them"),
)
REMOVE = (
    Stage(name="prepare", summary="nothing that serves is touched"),
    Stage(name="note", summary="an engine that starts from here on does not have them"),
    Stage(name="close", summary="clients cannot ask for them any more"),
    Stage(name="unload", summary="every copy forgets them, while it serves"),
    Stage(name="drop", summary="their files go"),
)


@dataclass(frozen=True)
class NewAdapter:
    """An adapter that is to be brought; ``folder`` is on the operator's machine."""

    model: str
    name: str
    digest: str
    files: Mapping[str, tuple[int, str]]
    rank: int
    folder: str

    def item(self) -> dict[str, Any]:
        """As the steps carry it."""
        return {**item(self.model, self.name, self.digest), "files": _files(self.files), "from": self.folder}


def item(model: str, name: str, digest: str) -> dict[str, Any]:
    """What names an adapter."""
    return {"model": model, "name": name, "digest": digest}


def newest(observed: Observed) -> AdaptersFacts:
    """The index that is right: the one of the box that heard of the last change."""
    return max((facts.adapters for facts in observed.values()), key=lambda told: told.serial, default=AdaptersFacts())


def has_whole(told: AdaptersFacts, model: str, name: str, digest: str) -> bool:
    """A box has this very adapter with all its files."""
    entry = told.adapters.get(model, {}).get(name)
    return entry is not None and entry.digest == digest and f"{model}/{name}" not in told.broken


def lacking(observed: Observed, box: str) -> list[dict[str, Any]]:
    """Adapters that a box lacks and others have whole: items with their files, and the ``boxes`` that have them."""
    found = []
    for model, entries in newest(observed).adapters.items():
        for name, entry in entries.items():
            if has_whole(observed[box].adapters, model, name, entry.digest):
                continue
            there = [other for other, f in observed.items() if has_whole(f.adapters, model, name, entry.digest)]
            if there:
                found.append({**item(model, name, entry.digest), "files": _files(entry.files), "boxes": there})
    return found


def behind(observed: Observed) -> list[str]:
    """Boxes whose index is older than that of another, or that lack what another has."""
    latest = newest(observed)
    return [box for box, facts in observed.items() if facts.adapters.serial < latest.serial or lacking(observed, box)]


def index_of(told: AdaptersFacts) -> Index:
    """The index as JSON."""
    return {m: {n: entry_of(e) for n, e in entries.items()} for m, entries in told.adapters.items() if entries}


def entry_of(entry: AdapterFacts) -> dict[str, Any]:
    """One adapter as the index has it."""
    return entry.model_dump(mode="json")


def _files(files: Mapping[str, tuple[int, str]]) -> dict[str, list[Any]]:
    return {name: [size, sha] for name, (size, sha) in files.items()}


def push_steps(
    new: Sequence[NewAdapter], live: Release, observed: Observed, *, by: str, at: float
) -> tuple[PlannedStep, ...]:
    """The steps that bring adapters to every box and every copy of their models; all copies have them, or none."""
    latest = newest(observed)
    index = index_of(latest)
    for one in new:
        entry = {"digest": one.digest, "files": _files(one.files), "rank": one.rank, "by": by, "at": at}
        index.setdefault(one.model, {})[one.name] = entry
    items = [one.item() for one in new]
    steps = _Steps(observed)
    told = ", ".join(one.name for one in new)
    size = sum(size for one in new for size, _ in one.files.values())
    for box in observed:
        brought = lacking(observed, box)
        more = f" (and {len(brought)} that it lacks)" if brought else ""
        steps.add("prepare", "send_adapters", box, f"send {told} to {box}, {_mb(size)}{more}", items=items + brought)
    steps.then()
    for box in observed:
        summary = f"{told} {'is' if len(new) == 1 else 'are'} noted on {box}"
        steps.add("note", "note_adapters", box, summary, serial=latest.serial + 1, adapters=index)
    steps.then()
    for engine in live.all_engines:
        mine = [{k: v for k, v in one.items() if k not in ("files", "from")} for one in items]
        mine = [one for one in mine if one["model"] == engine.model]
        if mine:
            names = ", ".join(one["name"] for one in mine)
            steps.of_engine("load", "load_adapters", engine, f"{engine.id} loads {names}", mine)
    steps.then()
    plain = [item(one.model, one.name, one.digest) for one in new]
    for box in told_boxes(live):
        steps.add("open", "name_adapters", box, f"{_who(live, box)} {told}", items=plain, **_gateway(live, box))
    return tuple(steps.made)


def remove_steps(names: Sequence[tuple[str, str]], live: Release, observed: Observed) -> tuple[PlannedStep, ...]:
    """The steps that take adapters (model and name) from every copy and every box."""
    latest = newest(observed)
    index = index_of(latest)
    items = [item(model, name, latest.adapters[model][name].digest) for model, name in names]
    for model, name in names:
        del index[model][name]
    left = {model: entries for model, entries in index.items() if entries}
    steps = _Steps(observed)
    told = ", ".join(name for _, name in names)
    for box in observed:
        if brought := [one for one in lacking(observed, box) if (one["model"], one["name"]) not in names]:
            steps.add("prepare", "send_adapters", box, f"send {len(brought)} that {box} lacks", items=brought)
    steps.then()
    for box in observed:
        summary = f"{told} {'is' if len(names) == 1 else 'are'} not noted on {box} any more"
        steps.add("note", "note_adapters", box, summary, serial=latest.serial + 1, adapters=left)
    steps.then()
    for box in told_boxes(live):
        summary = f"{_who(live, box, known=False)} {told} any more"
        steps.add("close", "unname_adapters", box, summary, items=items, **_gateway(live, box))
    steps.then()
    for engine in live.all_engines:
        mine = [one for one in items if one["model"] == engine.model]
        if mine:
            forgets = ", ".join(one["name"] for one in mine)
            steps.of_engine("unload", "unload_adapters", engine, f"{engine.id} forgets {forgets}", mine)
    steps.then()
    for box in observed:
        steps.add("drop", "drop_adapters", box, f"remove the files of {told} on {box}", items=items)
    return tuple(steps.made)


def told_boxes(release: Release) -> tuple[str, ...]:
    """Boxes on which a proxy or, in whatever layout, a gateway has to know the names."""
    proxy = release.proxy
    if proxy is None:
        return ()
    servers = (server for backend in proxy.backends for server in backend.servers)
    return tuple(dict.fromkeys((*proxy.boxes, *(server.box for server in servers if server.gateway))))


def _gateway_on(release: Release, box: str) -> Service | None:
    services = release.pool.on(box) if release.pool else []
    return next((service for service in services if service.kind == "gateway"), None)


def _gateway(release: Release, box: str) -> dict[str, Any]:
    """How the gateway on a box is asked whether it knows the names; empty where there is none."""
    service = _gateway_on(release, box)
    if service is None or release.pool is None:
        return {}
    models = sorted({lodger.engine.model for lodger in release.pool.lodgers})
    return {"gateway": {"address": service.address, "port": service.port, "models": models}}


def _who(release: Release, box: str, *, known: bool = True) -> str:
    both = [
        *(["the proxy"] if release.proxy and box in release.proxy.boxes else []),
        *(["the gateway"] if _gateway_on(release, box) else []),
    ] or ["the list for gateways"]
    verb = {(1, True): "knows", (1, False): "does not know", (2, True): "know", (2, False): "do not know"}
    return f"{' and '.join(both)} on {box} {verb[len(both), known]}"


class _Steps:
    """Steps in layers: each waits for all of the layer before it."""

    def __init__(self, observed: Observed) -> None:
        self.made: list[PlannedStep] = []
        self._before: tuple[str, ...] = ()
        self._layer: list[str] = []
        for box, facts in observed.items():
            self.add("prepare", "preflight", box, f"{box} is still as the plan saw it", digest=facts.digest())
        self.then()

    def add(self, stage: str, kind: str, box: str, summary: str, *, target: str = "", **params: Any) -> None:
        """A step about a box."""
        name = f"{stage}.{kind}.{target or box}"
        step = PlannedStep(
            id=name, kind=kind, stage=stage, box=box, target=target or box, params=params, summary=summary,
            after=self._before,
        )  # fmt: skip
        self.made.append(step)
        self._layer.append(name)

    def of_engine(self, stage: str, kind: str, engine: Engine, summary: str, items: list[dict[str, Any]]) -> None:
        """A step about an engine, acting on the box of its head."""
        self.add(stage, kind, engine.head.box, summary, target=engine.id, engine=engine.id, items=items)

    def then(self) -> None:
        """What is added from here on waits for what was added so far."""
        self._before = tuple(self._layer) or self._before
        self._layer = []


def asked_at(engine: Engine) -> dict[str, Any]:
    """Where the ops on its adapters find an engine."""
    return {"unit": engine.head.unit, "address": engine.address, "port": engine.port}


def engines_asked(live: Release, box: str) -> list[dict[str, Any]]:
    """Engines with their head on a box that take adapters, as the box is asked about them."""
    return [
        asked_at(engine) for engine in live.all_engines if engine.head.box == box and engine.max_lora_rank is not None
    ]


def taken_names(live: Release, served: Iterable[str]) -> dict[str, str]:
    """Names that clients use for models → what each is."""
    found = {name: f"model {name}" for name in served}
    for engine in live.all_engines:
        found.update((name, f"a name of model {engine.model}") for name in engine.served_as)
    return found


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
