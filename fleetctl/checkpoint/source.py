"""Where a model's files are, and what is read of them: config.json and headers of weights, never the weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fleetctl.capacity.headers import Files, Tensor, read_tensors
from fleetctl.errors import SpecError

CONFIG = "config.json"
LARGEST_CONFIG = 64 * 1024**2


@dataclass(frozen=True)
class Checkpoint:
    """What was read of a model."""

    where: str
    config: bytes
    tensors: list[Tensor]
    """Empty where there are no safetensors files."""


def read_checkpoint(model: str) -> Checkpoint:
    """Read a model: a folder, a config.json, or an id of the hub (``owner/name``).

    Raises SpecError for a folder without a model, damaged files, an id that is not there, or a hub out of reach.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return read_files(Folder(path))
    if path.is_file():
        return Checkpoint(str(path), _limited(path.read_bytes(), str(path)), [])
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1 or not model:
        raise SpecError(f"{model}: no such folder", hint="MODEL is a folder with a config.json, or an id of the hub")
    from fleetctl.checkpoint.hub import read_hub  # with its library, only where it is needed

    return read_hub(model)


def read_files(files: Files) -> Checkpoint:
    """Read a model from files, wherever they are. Raises SpecError."""
    sizes = files.sizes()
    if CONFIG not in sizes:
        raise SpecError(f"{files.where}: no {CONFIG} in it", hint="MODEL is a folder with a config.json and weights")
    config = files.read(CONFIG, 0, min(sizes[CONFIG], LARGEST_CONFIG + 1))
    return Checkpoint(files.where, _limited(config, f"{files.where}/{CONFIG}"), read_tensors(files))


def _limited(config: bytes, source: str) -> bytes:
    if len(config) > LARGEST_CONFIG:
        raise SpecError(f"{source}: larger than any config.json")
    return config


class Folder:
    """A folder on this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where = str(path)

    def sizes(self) -> dict[str, int]:
        return {entry.name: entry.stat().st_size for entry in self.path.iterdir() if entry.is_file()}

    def read(self, name: str, start: int, length: int) -> bytes:
        with (self.path / name).open("rb") as file:
            file.seek(start)
            return file.read(length)
