"""What a box told of itself, as values: the answer of the op ``examine_box``. Sizes are bytes, times epoch seconds."""

from __future__ import annotations

from fleetctl.doctor.nvidia import Gpu, Said, gpus_of
from fleetctl.facts.types import Seen


class Disk(Seen):
    """A file system and those of the paths asked for that are on it; ``inodes`` 0: it has no fixed number."""

    paths: tuple[str, ...]
    size: int
    free: int
    inodes: int = 0
    inodes_free: int = 0
    read_only: bool = False


class Limit(Seen):
    """A process of an engine, and the line of /proc/PID/limits on its open files."""

    pid: int
    comm: str = ""
    unit: str | None = None
    line: str


class Packages(Seen):
    """Package → version in a venv, ``python`` among them; ``digest`` stands for all files of the engine's package."""

    versions: dict[str, str] = {}
    digest: str = ""


class Image(Seen):
    """A container image as the box has it."""

    version: str
    digest: str


class Files(Seen):
    """Files of a model: name → size and the beginning of a checksum of what was read; ``broken`` are not whole.

    ``commit`` is what the hub calls them; empty where they are a folder of the operator's own.
    """

    commit: str = ""
    files: dict[str, tuple[int, str]] = {}
    broken: tuple[str, ...] = ()


class Sleep(Seen):
    """Whether the box can sleep, and what would send it there; settings are path, key and value."""

    targets: str | None = None
    states: tuple[str, ...] = ()
    settings: tuple[tuple[str, str, str], ...] = ()
    lid: bool = False
    desktop: str | None = None
    greeter: tuple[tuple[str, str, str], ...] = ()


class Upgrades(Seen):
    """What upgrades itself, as apt-config, dpkg-query and the files of needrestart have it."""

    unattended: bool = False
    timer: str | None = None
    apt: str = ""
    packages: tuple[str, ...] = ()
    needrestart: bool = False
    nrconf: tuple[tuple[str, str], ...] = ()


class JournalKept(Seen):
    """Whether the journal outlives a reboot; ``storage`` has path and value of each Storage=."""

    kept: bool = True
    storage: tuple[tuple[str, str], ...] = ()


class BoxTold(Seen):
    """The answer. ``asked_at`` and ``answered_at``: by the operator's clock; ``began`` and ``ended``: by the box's."""

    asked_at: float = 0.0
    answered_at: float = 0.0
    began: float = 0.0
    ended: float = 0.0
    container: bool = False
    timedatectl: str | None = None
    disks: tuple[Disk, ...] = ()
    limits: tuple[Limit, ...] = ()
    os_release: str | None = None
    kernel: str = ""
    driver: str | None = None
    gpus: Said | None = None
    throttled: Said | None = None
    haproxy: str | None = None
    venvs: dict[str, Packages | None] = {}
    images: dict[str, Image | None] = {}
    models: dict[str, Files | None] = {}
    sleep: Sleep = Sleep()
    upgrades: Upgrades = Upgrades()
    journal: JournalKept = JournalKept()
    reboot: tuple[str, ...] | None = None

    def gpu_list(self) -> list[Gpu] | None:
        """GPUs; None where it is not known."""
        return gpus_of(self.gpus)


def properties(text: str | None) -> dict[str, dict[str, str]]:
    """Unit → what ``systemctl show`` printed of it, from its blocks."""
    blocks = (
        dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in (text or "").split("\n\n")
    )
    return {rows["Id"]: rows for rows in blocks if "Id" in rows}
