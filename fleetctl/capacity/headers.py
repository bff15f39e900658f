"""The headers of safetensors files: names, types and sizes of all tensors, from the first bytes of each file.

The format: 8 bytes that say how long the header is (little endian), then the header as JSON, then the data
(github.com/huggingface/safetensors, README). Weights are never read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, TypeGuard

from fleetctl.errors import SpecError

INDEX = "model.safetensors.index.json"
LARGEST_HEADER = 100_000_000
"""Bytes; the library refuses larger ones too."""
FIRST_READ = 8

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits of one element of each type."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    """Bytes in the file."""

    @property
    def elements(self) -> int:
        return prod(self.shape)


class Files(Protocol):
    """A folder of files, wherever it is: on this machine, on a box, on the hub."""

    where: str

    def sizes(self) -> Mapping[str, int]:
        """Names of the files in it, and their bytes."""

    def read(self, name: str, start: int, length: int) -> bytes:
        """``length`` bytes of a file from ``start``; fewer where the file ends."""


def read_tensors(files: Files) -> list[Tensor]:
    """All tensors of a checkpoint. Raises SpecError for a file that is damaged, cut off or missing."""
    sizes = files.sizes()
    tensors: list[Tensor] = []
    for name in weight_files(files, sizes):
        source = f"{files.where}/{name}"
        start = files.read(name, 0, FIRST_READ)
        length = header_length(start, source)
        found = parse_header(files.read(name, FIRST_READ, length), source)
        end = FIRST_READ + length + sum(tensor.size for tensor in found)
        if sizes[name] < end:
            raise SpecError(
                f"{source}: {sizes[name]:,} bytes, and its header tells of {end:,}",
                hint="the file is cut off; fetch it again",
            )
        tensors += found
    return tensors


def weight_files(files: Files, sizes: Mapping[str, int]) -> list[str]:
    """The files that hold the weights: those that the index names, or all. SpecError when one is missing."""
    if INDEX in sizes:
        names = indexed_files(files.read(INDEX, 0, sizes[INDEX]), f"{files.where}/{INDEX}")
        missing = [name for name in names if name not in sizes]
        if missing:
            shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            raise SpecError(
                f"{files.where}: {len(missing)} of {len(names)} files of weights are missing: {shown}",
                hint="the download is not complete; fetch it again",
            )
        return names
    names = sorted(name for name in sizes if name.endswith(".safetensors"))
    # Some repositories have everything twice, once as the publisher's own single file.
    own = [name for name in names if not name.startswith("consolidated")]
    return own or names


def indexed_files(text: bytes, source: str) -> list[str]:
    """Names of the files in a model.safetensors.index.json. Raises SpecError when it is not one."""
    index = _json(text, source)
    places = index.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise SpecError(f"{source}: no weight_map in it", hint="the file is damaged; fetch it again")
    names = sorted(set(places.values()))
    if any("/" in name or name in ("", ".", "..") for name in names):
        raise SpecError(f"{source}: weight_map names files outside the folder")
    return names


def header_length(start: bytes, source: str) -> int:
    """Bytes of the header, from the first 8 bytes of the file."""
    if len(start) < FIRST_READ:
        raise SpecError(f"{source}: only {len(start)} bytes", hint="the file is cut off; fetch it again")
    length = int.from_bytes(start[:FIRST_READ], "little")
    if not 2 <= length <= LARGEST_HEADER:
        raise SpecError(f"{source}: a header of {length:,} bytes", hint="this is no safetensors file, or it is damaged")
    return length


def parse_header(text: bytes, source: str) -> list[Tensor]:
    """Tensors of one file, from its header. Raises SpecError where it is not consistent with itself."""
    return [_tensor(name, entry, source) for name, entry in _json(text, source).items() if name != "__metadata__"]


def _json(text: bytes, source: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{source}: not JSON: {error}", hint="the file is cut off or damaged; fetch it again") from None
    if not isinstance(document, dict):
        raise SpecError(f"{source}: not a JSON object", hint="the file is damaged; fetch it again")
    return document


def _tensor(name: str, entry: object, source: str) -> Tensor:
    if not isinstance(entry, dict):
        raise _damaged(source, name, "is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise SpecError(
            f"{source}: tensor {name[:80]}: the type {str(dtype)[:20]} is not known", hint=f"known: {', '.join(BITS)}"
        )
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise _damaged(source, name, "has no proper shape and data_offsets")
    size = offsets[1] - offsets[0]
    if size * 8 != -(-prod(shape) * BITS[dtype] // 8) * 8:
        raise _damaged(source, name, f"has {size:,} bytes for a shape of {list(shape)} in {dtype}")
    return Tensor(name, dtype, tuple(shape), size)


def _counts(value: object) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and len(value) <= 16
        and all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 2**60 for one in value)
    )


def _damaged(source: str, name: str, how: str) -> SpecError:
    return SpecError(f"{source}: tensor {name[:80]} {how}", hint="the file is damaged; fetch it again")


def of_metadata(entries: Iterable[tuple[str, str, Sequence[int]]], source: str) -> list[Tensor]:
    """Tensors from (name, type, shape) that somebody else has read. SpecError for a type that is not known."""
    made = []
    for name, dtype, shape in entries:
        if dtype not in BITS:
            raise SpecError(f"{source}: tensor {name[:80]}: the type {dtype[:20]} is not known")
        made.append(Tensor(name, dtype, tuple(shape), -(-prod(shape) * BITS[dtype] // 8)))
    return made
