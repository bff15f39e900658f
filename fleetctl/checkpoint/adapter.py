"""A LoRA adapter on this machine: a folder with adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fleetctl.capacity.adapter import Adapter
from fleetctl.capacity.headers import FIRST_READ, header_length, parse_header
from fleetctl.capacity.reading import parse_config
from fleetctl.checkpoint.source import Folder
from fleetctl.errors import SpecError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LARGEST_CONFIG = 4 * 1024**2
_PICKLES = ("adapter_model.bin", "adapter_model.pt")


@dataclass(frozen=True)
class Local:
    """An adapter's folder as read: ``files`` has bytes and SHA-256 of each file."""

    folder: Path
    adapter: Adapter
    files: dict[str, tuple[int, str]]

    @property
    def digest(self) -> str:
        """Names the content; the same sum as ``fleetctl/onbox/adapters.py`` makes."""
        lines = "".join(f"{name} {size} {sha}\n" for name, (size, sha) in sorted(self.files.items()))
        return hashlib.sha256(lines.encode()).hexdigest()[:16]


def find_adapters(folder: Path) -> list[Path]:
    """The folder itself, or those in it that are adapters. Raises SpecError where there is none."""
    if not folder.is_dir():
        raise SpecError(f"{folder}: no such folder", hint=f"DIR is the folder of an adapter, with {CONFIG} in it")
    if (folder / CONFIG).exists() or (folder / WEIGHTS).exists():
        return [folder]
    found = sorted(one.parent for one in folder.glob(f"*/{CONFIG}"))
    if not found:
        raise SpecError(
            f"{folder}: no {CONFIG} in it, nor in a folder in it",
            hint="name the folder that the training wrote (PEFT's save_pretrained)",
        )
    return found


def read_adapter(folder: Path) -> Local:
    """Read an adapter. Raises SpecError for files that are missing, damaged, cut off, or links out of the folder."""
    for name in (CONFIG, WEIGHTS):
        path = folder / name
        if not path.is_file():
            pickled = next((one for one in _PICKLES if (folder / one).exists()), None)
            why = f"{pickled} is a pickle, which can run anything" if pickled and name == WEIGHTS else None
            hint = f"{why}: save it anew as safetensors" if why else "copy the whole folder that the training wrote"
            raise SpecError(f"{folder}: no {name} in it", hint=hint)
    files = Folder(folder)
    sizes = {name: size for name, size in files.sizes().items() if name in (CONFIG, WEIGHTS)}
    if sizes[CONFIG] > LARGEST_CONFIG:
        raise SpecError(f"{folder / CONFIG}: larger than any {CONFIG}")
    config = parse_config(files.read(CONFIG, 0, sizes[CONFIG]), str(folder / CONFIG))
    source = str(folder / WEIGHTS)
    length = header_length(files.read(WEIGHTS, 0, FIRST_READ), source)
    tensors = parse_header(files.read(WEIGHTS, FIRST_READ, length), source)
    whole = FIRST_READ + length + sum(tensor.size for tensor in tensors)
    if sizes[WEIGHTS] != whole:
        raise SpecError(
            f"{source}: {sizes[WEIGHTS]:,} bytes, and its header tells of {whole:,}",
            hint="the file is cut off or damaged; copy it again",
        )
    return Local(
        folder,
        Adapter(str(folder), config, tuple(tensors)),
        {name: (size, _sha256(folder / name)) for name, size in sizes.items()},
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
