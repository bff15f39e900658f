"""Weights of a model on this box: whether they are complete, what their headers tell, reading them into memory."""

import base64
import json
import os
import struct
import subprocess
import time
import zlib
from typing import Any, Dict, List

from fleetctl.onbox.main import Call, CancelledError, OpError, op

INDEX = ".safetensors.index.json"
HEADER_LIMIT = 100 * 1024 * 1024  # bytes; what the safetensors library accepts
LOOK_EVERY = 0.1


def expected_size(path: str) -> int:
    """Length that a safetensors file has by its own header: 8 bytes, the header, and the last tensor's end.

    OpError when the header cannot be read.
    """
    with open(path, "rb") as source:
        start = source.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else HEADER_LIMIT + 1
        header = source.read(length) if length <= HEADER_LIMIT else b""
    try:
        tensors = json.loads(header)
        ends = [int(tensor["data_offsets"][1]) for name, tensor in tensors.items() if name != "__metadata__"]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise OpError("%s is not a safetensors file, or was cut short: copy it again" % path) from None
    return 8 + int(length) + max(ends, default=0)


def weight_files(folder: str) -> List[str]:
    """Weight files of a folder that an engine reads, by name; of a file, the file itself."""
    if not os.path.isdir(folder):
        return [folder]
    names = sorted(name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name)))
    for ending in (".safetensors", ".gguf", ".bin", ".pt"):
        found = [os.path.join(folder, name) for name in names if name.endswith(ending)]
        if found:
            return found
    return []


def named_in_index(folder: str) -> List[str]:
    """Files that the index of a folder of several weight files names. OpError when it cannot be read."""
    found: List[str] = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if name.endswith(INDEX):
            path = os.path.join(folder, name)
            try:
                with open(path) as source:
                    found += sorted(set(json.load(source)["weight_map"].values()))
            except (ValueError, TypeError, KeyError, AttributeError):
                raise OpError("%s is not an index of weights, or was cut short: copy it again" % path) from None
    return found


def begin_of(path: str) -> bytes:
    """What tells of a file: a safetensors file up to its header's end, all of any other; nothing when too large."""
    size = os.path.getsize(path)
    with open(path, "rb") as source:
        if not path.endswith(".safetensors"):
            return source.read() if size <= HEADER_LIMIT else b""
        start = source.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        return start + source.read(length) if length <= HEADER_LIMIT else start


@op("checkpoint_files")
def checkpoint_files(call: Call, path: str) -> Dict[str, Any]:
    """A model's folder: ``sizes`` of all files, ``begins`` (compressed, base64) of those that tell of its tensors."""
    names = sorted(name for name in os.listdir(path) if os.path.isfile(os.path.join(path, name)))
    begins = {}
    for name in names:
        if name == "config.json" or name.endswith(INDEX) or name.endswith(".safetensors"):
            begin = zlib.compress(begin_of(os.path.join(path, name)), 1)
            begins[name] = base64.b64encode(begin).decode("ascii")
    return {"sizes": {name: os.path.getsize(os.path.join(path, name)) for name in names}, "begins": begins}


@op("read_ahead")
def read_ahead(call: Call, paths: List[str], limit: float) -> Dict[str, Any]:
    """Read weights once, at the lowest priority for disk and CPU. Stops without a fault after ``limit`` seconds."""
    start = time.monotonic()
    done = 0
    for path in [name for folder in paths for name in weight_files(folder)]:
        reader = subprocess.Popen(
            ["ionice", "-c", "3", "nice", "-n", "19", "dd", "if=" + path, "of=/dev/null", "bs=8M", "status=none"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            told = time.monotonic()
            while reader.poll() is None:
                if call.cancelled.is_set():
                    raise CancelledError("reading weights was cancelled")
                if time.monotonic() - start > limit:
                    return {"bytes": done, "waited": round(time.monotonic() - start, 2), "left_off": path}
                if time.monotonic() - told >= 1.0:
                    told = time.monotonic()
                    call.event(log="reading %s" % path, waited=round(told - start, 1))
                time.sleep(LOOK_EVERY)
        finally:
            if reader.poll() is None:
                reader.kill()
                reader.wait()
        done += os.path.getsize(path)
    return {"bytes": done, "waited": round(time.monotonic() - start, 2)}
