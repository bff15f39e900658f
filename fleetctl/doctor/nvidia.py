"""What nvidia-smi said, as values. What it prints as ``[N/A]`` is unknown, and never 0."""

from __future__ import annotations

from dataclasses import dataclass

from fleetctl.facts.types import Seen

MIB = 2**20


class Said(Seen):
    """How a command ended, and what it printed; ``rc`` None: it did not end."""

    rc: int | None
    out: str = ""
    err: str = ""


@dataclass(frozen=True)
class Gpu:
    """One GPU. Sizes are bytes; ``total`` None: it shares the memory of the box, or does not tell."""

    index: str
    name: str
    total: int | None
    used: int | None
    driver: str


@dataclass(frozen=True)
class App:
    """A process that holds memory of a GPU: ``used`` bytes; None: the driver does not tell."""

    pid: int
    name: str
    used: int | None


def gpus_of(said: Said | None) -> list[Gpu] | None:
    """The GPUs of a box; None where it is not known, because there is no nvidia-smi or it failed."""
    if said is None or said.rc != 0:
        return None
    rows = [[field.strip() for field in line.split(",")] for line in said.out.splitlines() if line.strip()]
    # A name may have commas in it.
    return [
        Gpu(row[0], ", ".join(row[1:-3]), _mib(row[-3]), _mib(row[-2]), row[-1])
        for row in rows
        if len(row) >= 5 and row[0].isdigit()
    ]


def apps_of(said: Said | None) -> list[App] | None:
    """Processes with memory of a GPU, several lines of one process in one; None where it is not known."""
    if said is None or said.rc != 0:
        return None
    found: dict[int, App] = {}
    for line in said.out.splitlines():
        row = [field.strip() for field in line.split(",")]
        if len(row) < 3 or not row[0].isdecimal() or len(row[0]) > 9:
            continue
        pid, used, before = int(row[0]), _mib(row[-1]), found.get(int(row[0]))
        if before is not None:
            used = None if used is None or before.used is None else used + before.used
        found[pid] = App(pid, ",".join(row[1:-1]), used)
    return list(found.values())


def shares_memory(gpus: list[Gpu] | None) -> bool:
    """The GPU of the box has no memory of its own: it is listed, and says nothing of its memory."""
    return bool(gpus) and all(gpu.total is None for gpu in gpus or ())


def _mib(text: str) -> int | None:
    word = text.removesuffix("MiB").strip()
    return int(word) * MIB if word.isdecimal() and len(word) <= 12 else None
