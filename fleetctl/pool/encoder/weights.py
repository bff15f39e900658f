"""Where each tensor is in a safetensors file. Pure but for reading the file's header.

Format: eight bytes with the length of the header (little-endian), the header as JSON, then the tensors; offsets count
from the end of the header (https://huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetctl.pool.encoder.errors import ModelError

MOST_HEADER = 100 << 20
"""Bytes of a header at most, as the format's own reader has it."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the file. ``offset`` and ``length`` are bytes, from the beginning of the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


def read_header(path: Path) -> dict[str, Tensor]:
    """Name → tensor. Raises ModelError where the file is not safetensors or is cut short."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(MOST_HEADER, size):
                raise ValueError(f"its header would be {length} bytes long")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        found = {name: _tensor(one, 8 + length) for name, one in header.items()}
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ModelError(f"{path} is not a safetensors file: {error}", hint="fetch the model again") from None
    if any(tensor.offset + tensor.length > size for tensor in found.values()):
        raise ModelError(f"{path} is cut short: its header names more than its {size} bytes", hint="fetch it again")
    return found


def _tensor(entry: dict[str, Any], start: int) -> Tensor:
    begin, end = entry["data_offsets"]
    return Tensor(str(entry["dtype"]), tuple(int(one) for one in entry["shape"]), start + begin, end - begin)
