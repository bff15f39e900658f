"""Two boxes in one process: a folder that has a model, one that is to have it, and a transfer between them."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleetctl.onbox.arrival import weights_begin
from fleetctl.onbox.arrived import weights_arrive
from fleetctl.onbox.main import Call
from fleetctl.onbox.partsums import PART
from fleetctl.onbox.weightsmove import weights_goal, weights_receive, weights_serve
from fleetctl.onbox.weightsproof import weights_prove

HERE = "127.0.0.1"
KEY = "a key for one transfer"


def call(hear: Callable[[dict[str, Any]], None] = lambda event: None) -> Call:
    return Call(1, lambda message: hear(message["event"]))


def model_in(folder: Path, *sizes: int) -> Path:
    """A model with weights files of these sizes, which are all different bytes, and a config."""
    folder.mkdir(parents=True)
    names = {}
    for number, size in enumerate(sizes, 1):
        head = json.dumps({f"w{number}": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        block = b"".join(hashlib.sha256(b"%d %d" % (number, n)).digest() for n in range(2048))
        data = b"".join(block[k % 100 :] + bytes([k % 251]) * (k % 100) for k in range(size // len(block) + 1))[:size]
        name = f"model-{number:05d}.safetensors"
        (folder / name).write_bytes(struct.pack("<Q", len(head)) + head + data)
        names[f"w{number}"] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (folder / "config.json").write_text("{}")
    return folder


def goal_from(place: dict[str, Any]) -> dict[str, Any]:
    """What another box is to have, of a place that is proven first."""
    weights_prove(call(), place)
    return dict(weights_goal(call(), place))


def short(goal: dict[str, Any]) -> dict[str, Any]:
    return {"commit": goal["commit"], "one_file": goal["one_file"]}


def send(
    source: dict[str, Any], target: dict[str, Any], goal: dict[str, Any], *, streams: int = 1, **more: Any
) -> dict[str, Any]:
    """Send what a begun transfer wants; what both ends returned. Raises what the receiving end raises.

    ``calls``: the Call of the receiving end; ``key``, ``peer`` and ``limit`` where they are other than usual.
    """
    port: queue.SimpleQueue[int] = queue.SimpleQueue()
    sent: dict[str, Any] = {}
    serving = call(lambda event: port.put(event["port"]))

    def serve() -> None:
        try:
            told = weights_serve(serving, source, HERE, more.get("peer", HERE), KEY, streams, more.get("limit"))
            sent.update(told)
        except BaseException as error:
            sent["failed"] = error

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    ends = {"own": HERE, "peer": HERE, "port": port.get(timeout=30)}
    try:
        got = weights_receive(more.get("calls") or call(), target, short(goal), ends, more.get("key", KEY), streams)
    finally:
        serving.cancelled.set()
        thread.join(30)
    return {**sent, **got}


def bring(source: dict[str, Any], target: dict[str, Any]) -> dict[str, Any]:
    """A whole transfer, from proof to arrival."""
    goal = goal_from(source)
    begun = weights_begin(call(), target, goal)
    told = send(source, target, goal) if begun["parts"] else {"received": 0}
    weights_arrive(call(), target, by="push from here", **short(goal))
    return {**begun, **told}


def flip(path: Path, at: int) -> None:
    """Change one byte and leave the time of change as it was."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def same_files(one: Path, other: Path) -> bool:
    """Both folders have the same names with the same bytes."""
    names = sorted(path.name for path in one.iterdir())
    return names == sorted(path.name for path in other.iterdir()) and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )


__all__ = ["HERE", "KEY", "PART", "bring", "call", "flip", "goal_from", "model_in", "same_files", "send", "short"]
