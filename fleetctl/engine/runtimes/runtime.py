"""What every kind of engine has to say of itself: the one form that all adapters fill in. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fleetctl.engine.runtimes.metrics import Row
from fleetctl.spec.fleet_model import Loras, Model, Task


@dataclass(frozen=True)
class RankOfMany:
    """The place of one rank in an engine over several boxes."""

    rank: int
    ranks: int
    parallel: Literal["tensor", "pipeline"]
    master_address: str
    master_port: int


@dataclass(frozen=True)
class Ask:
    """What fleet.yaml asks of one rank of an engine, whatever its kind."""

    name: str
    """The model's key."""
    model: Model
    task: Task
    served_as: tuple[str, ...]
    host: str
    """Where it listens, with the port; with ``socket`` it does not."""
    port: int
    concurrency: int
    share: float
    """gpu_memory_utilization."""
    cache: int | None = None
    """kv_cache_memory, in bytes."""
    split: RankOfMany | None = None
    socket: str = ""
    """Path of the Unix socket on which it listens in place of a port; empty: it has a port."""
    extra: Sequence[Sequence[str]] = ()
    """Layers of further arguments (model, placement, box); each wins over what is before it."""


@dataclass(frozen=True)
class Fault:
    """Something of fleet.yaml that a kind of engine cannot do, and what to do instead."""

    what: str
    hint: str


@dataclass(frozen=True)
class ModelList:
    """Where an engine lists the names it serves, and how: ``read`` gives name → its longest request, where told."""

    path: str
    read: Callable[[Any], dict[str, int | None]]


@dataclass(frozen=True)
class Reranking:
    """How documents are ranked: the path, the key of the documents, and index → score in the order of the answer."""

    path: str
    documents: str
    read: Callable[[Any], dict[int, float]]


def openai_models(body: Any) -> dict[str, int | None]:
    """The list of OpenAI's API, with max_model_len where the engine adds it."""
    return {str(model["id"]): model.get("max_model_len") for model in body.get("data") or []}


OPENAI_LIST = ModelList("/v1/models", openai_models)


def cohere_ranks(body: Any) -> dict[int, float]:
    """``results`` with index and relevance_score, as in Cohere's API."""
    return {int(one["index"]): float(one["relevance_score"]) for one in body["results"]}


def listed_ranks(body: Any) -> dict[int, float]:
    """A list with index and score."""
    return {int(one["index"]): float(one["score"]) for one in body}


def no_faults(ask: Ask) -> Iterable[Fault]:
    """Of a kind of engine that can do all that fleet.yaml has."""
    return ()


def no_words(ask: Ask) -> list[str]:
    """Of a program whose flags follow at once."""
    return []


@dataclass(frozen=True)
class Runtime:
    """One kind of engine."""

    name: str
    """As `runtime:` in fleet.yaml."""
    title: str
    program: tuple[str, ...]
    """The program below VENV/bin, and what always follows it."""
    packages: tuple[str, ...]
    """The Python distributions whose version is its version; the program's own file where there is none."""
    tasks: tuple[Task, ...]
    """What it can do; the first is what it does unless told."""
    flags: Callable[[Ask], list[str]]
    """The flags that fleet.yaml's keys become."""
    metrics: tuple[Row, ...]
    models: ModelList = OPENAI_LIST
    reranking: Reranking = Reranking("/v1/rerank", "documents", cohere_ranks)
    image_program: tuple[str, ...] = ()
    """The same inside of its container images; empty: as ``program``."""
    begin: Callable[[Ask], list[str]] = no_words
    """Words between the program and its flags."""
    faults: Callable[[Ask], Iterable[Fault]] = no_faults
    sockets: bool = False
    """It can listen on a Unix socket: ``flags`` know what to do with one."""
    exact_context: bool = True
    """The longest request that it tells is the one it was given; otherwise it may be longer."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that it has unless fleet.yaml gives them."""
    split_environment: Callable[[str, str | None], dict[str, str]] | None = None
    """Variables that keep a rank's traffic on the link (address, interface); None: it cannot be split over boxes."""
    adapters: Callable[[Loras], list[str]] | None = None
    """Flags that make it take LoRA adapters while it runs; None: fleetctl brings it none."""
    adapters_environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for the same."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other spellings of flags."""
    repeatable: frozenset[str] = frozenset()
    """Flags that may be there several times."""
    reserved: Mapping[str, str] = field(default_factory=dict)
    """Flags that fleetctl sets itself, because others depend on them → the key to use in their place."""
    help: tuple[str, ...] = ("--help",)
    """What makes the program list every flag that it knows."""
    version: tuple[str, ...] = ()
    """What makes it print its version, where no Python distribution tells it."""
    abbreviates: bool = False
    """It takes the beginning of a flag for the flag, as Python's argparse does."""
    forecasts: bool = False
    """What it does with its memory is known well enough to be computed before it starts."""
    hub_cache: bool = True
    """It reads weights from the hub's common cache, with huggingface_hub beside it to fetch them ahead."""

    @property
    def splits(self) -> bool:
        """One engine can run over several boxes."""
        return self.split_environment is not None
