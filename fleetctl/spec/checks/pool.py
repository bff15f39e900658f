"""Checks of ``pool``, and of placements that are in one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleetctl.spec.checks.layouts import listeners
from fleetctl.spec.checks.view import Placed, View
from fleetctl.spec.fleet_pool import Nats, Pool
from fleetctl.spec.problems import Path, Problem, did_you_mean, shown
from fleetctl.spec.units import gib

_OF_POOLS = ("pin", "memory")
_SMALLEST_STORE = 64 * 2**20
_ENCODERS = ("encoder", "text-embeddings-inference", "infinity")
"""Kinds of engine that take no more memory than their weights tell: they have no cache that fills the rest."""
_BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[A-Za-z0-9!_.*'()-]+)+/?")
"""Names of buckets, and letters of keys that no server minds: https://docs.aws.amazon.com/AmazonS3/latest/userguide/"""
_SERVER = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?/?")
_TLS = ("certificate", "key", "ca")


def _pooled(view: View) -> list[Placed]:
    return [entry for entry in view.placements() if entry.kind == "pool"]


def needed(view: View) -> Iterator[Problem]:
    """A layout with a placement that is ``pool`` needs the key ``pool`` of the file, which says where the queue is."""
    placed = _pooled(view)
    if placed and view.get("pool") is None:
        message = "where its queue is stands under the key pool: of the file; write pool: {nats: {boxes: […], …}}"
        yield view.problem(placed[0].path, message)


def boxes(view: View) -> Iterator[Problem]:
    """NATS and the gateways run on boxes that exist, each once; NATS on one box or on three."""
    known = view.mapping("boxes")
    for path in (("pool", "nats", "boxes"), ("pool", "gateways")):
        seen: set[str] = set()
        for where, name in view.texts(*path):
            if known and name not in known:
                yield view.problem(where, f"there is no box {shown(name)}; {did_you_mean(name, known)}")
            elif name in seen:
                yield view.problem(where, f"{name} is already in this list; keep one")
            seen.add(name)
    count = len(view.items("pool", "nats", "boxes"))
    if count == 2 or count > 3:
        why = "two of them cannot outvote each other" if count == 2 else "more only slow the queue down"
        yield view.problem(("pool", "nats", "boxes"), f"NATS runs on one box or on three; {why}")


def cluster(view: View) -> Iterator[Problem]:
    """A cluster of three has a password of its own, ``passwords: {cluster: …}``."""
    if len(view.items("pool", "nats", "boxes")) == 3:
        path: Path = ("pool", "nats", "passwords")
        if view.mapping(*path) and view.get(*path, "cluster") is None:
            message = "the three servers of NATS need a password between them; write cluster: {file: PATH} here too"
            yield view.problem(path, message)


def files(view: View) -> Iterator[Problem]:
    """The program of NATS and the files of its certificate are absolute paths."""
    paths: list[Path] = [("pool", "nats", "program"), *(("pool", "nats", "tls", key) for key in _TLS)]
    for path in paths:
        value = view.text(*path)
        if value is not None and (not value.startswith("/") or any(character <= " " for character in value)):
            yield view.problem(path, f"{shown(value)} is no absolute path of one word on the boxes")


def sizes(view: View) -> Iterator[Problem]:
    """The store of NATS is 64MiB or more, and ``memory`` of a placement has a unit."""
    store = view.size("pool", "nats", "store")
    if store is not None and "store" in view.mapping("pool", "nats") and store < _SMALLEST_STORE:
        written = view.get("pool", "nats", "store")
        yield view.problem(("pool", "nats", "store"), f"{shown(written)} is too little for a queue; write like 10GiB")
    for entry in _pooled(view):
        memory, written = view.size(*entry.path, "memory"), entry.values.get("memory")
        if memory is not None and written is not None and memory < 2**20:
            hint = f"; did you mean {written}GiB?" if isinstance(written, int) and written else ""
            yield view.problem((*entry.path, "memory"), f"{shown(written)} is only {memory} bytes{hint}")


def settings(view: View) -> Iterator[Problem]:
    """``pin`` and ``memory`` are of placements that are ``pool``; what a box gives one of those is ``memory``."""
    for entry in view.placements():
        if entry.kind != "pool":
            for key in _OF_POOLS:
                if entry.values.get(key) is not None:
                    message = f"{key}: is for placements that are pool:; take it out"
                    yield view.problem((*entry.path, key), message, key=True)
            continue
        for seat in entry.seats:
            if seat.settings.get("gpu_memory_utilization") is not None:
                message = "an engine of a pool gets as much as memory: of its placement says; write that beside pool:"
                yield view.problem((*seat.path, "gpu_memory_utilization"), message, key=True)


def memory(view: View) -> Iterator[Problem]:
    """What an engine of a pool takes is known: ``memory``, or of an encoder's server the size of its weights."""
    for entry in _pooled(view):
        runtime = view.text("models", entry.model, "runtime") or "vllm"
        if entry.values.get("memory") is None and runtime not in _ENCODERS and entry.model in view.mapping("models"):
            message = f"{runtime} takes what it is given, and the pool has to know how much; write like memory: 12GiB"
            yield view.problem(entry.path, message)


def adapters(view: View) -> Iterator[Problem]:
    """Models of a pool take no LoRA adapters: which engine is loaded when one is pushed is not known."""
    for entry in _pooled(view):
        if view.get("models", entry.model, "loras") is not None:
            message = "a model with loras: cannot be in a pool; place it as copies:, or take loras: out of the model"
            yield view.problem(entry.path, message)


def shares(view: View) -> Iterator[Problem]:
    """Beside a pool every other engine of a box has its ``gpu_memory_utilization``: the pool has what is left."""
    pooled = {(entry.layout, seat.box) for entry in _pooled(view) for seat in entry.seats}
    for entry in view.placements():
        for seat in entry.seats if entry.kind != "pool" else []:
            if (entry.layout, seat.box) in pooled and seat.settings.get("gpu_memory_utilization") is None:
                message = (
                    f"{seat.box} has a pool too in this layout, which gets what the other engines leave; write "
                    f"{entry.kind}: {{{seat.box}: {{gpu_memory_utilization: …}}}}"
                )
                yield view.problem(seat.path, message, key=seat.path[-1] == seat.box)


def ports(view: View) -> Iterator[Problem]:
    """Gateways, workers, NATS, the proxy, the guard and the engines of a pool's layout listen on different ports."""
    if not view.mapping("pool"):
        return
    gateway = _number(view, "port", Pool, "pool")
    nats = _number(view, "port", Nats, "pool", "nats")
    meeting = _number(view, "cluster_port", Nats, "pool", "nats")
    port: Path = ("pool", "port") if "port" in view.mapping("pool") else ("pool",)
    wanted: list[tuple[Path, int, str]] = [
        (port, gateway, "the gateways"),
        (port, gateway + 1, "the workers, one above that of the gateways,"),
        (_where(view, "port"), nats, "NATS"),
        (_where(view, "cluster_port"), meeting, "the cluster of NATS"),
    ]
    taken: dict[int, str] = {}
    proxy, guard = view.number("proxy", "port"), view.number("guard", "port")
    taken[int(proxy) if proxy is not None else 8080] = "the proxy"
    if view.mapping("guard") or "guard" in view.mapping():
        taken[int(guard) if guard is not None else 7411] = "the guard"
    layouts = {entry.layout for entry in _pooled(view)}
    for entry in view.placements():
        if entry.layout in layouts:
            taken.update({number: what for _, _, number, what in listeners(view, entry)})
    for where, number, who in wanted:
        other = taken.setdefault(number, who)
        if other != who:
            yield view.problem(where, f"port {number} of {who} is that of {other} too; write another port")
            return
    if gateway == 65535:
        yield view.problem(port, "the workers listen on the next port, which does not exist; write a lower one")


def _number(view: View, key: str, part: type[Pool] | type[Nats], *path: str) -> int:
    given = view.number(*path, key)
    return int(given) if given is not None else int(part.model_fields[key].default)


def _where(view: View, key: str) -> Path:
    return ("pool", "nats", key) if key in view.mapping("pool", "nats") else ("pool",)


def reserves(view: View) -> Iterator[Problem]:
    """``memory`` of a placement is at most what the reserve leaves of each of its boxes."""
    for entry in _pooled(view):
        wanted = view.size(*entry.path, "memory") if entry.values.get("memory") is not None else None
        for seat in entry.seats:
            total, kept = view.size("boxes", seat.box, "memory"), view.size("boxes", seat.box, "reserve")
            if wanted and total and kept is not None and 0 <= total - kept < wanted:
                message = (
                    f"{gib(wanted)}, but {gib(total)} - reserve {gib(kept)} = {gib(total - kept)} on {seat.box}; write "
                    f"less, or take {seat.box} out of pool:"
                )
                yield view.problem((*entry.path, "memory"), message)
                break


def bodies(view: View) -> Iterator[Problem]:
    """``bodies`` of a pool names a bucket as s3://BUCKET/PREFIX, and its server as a URL without a path."""
    path: Path = ("pool", "bodies")
    url, endpoint = view.text(*path, "url"), view.text(*path, "endpoint")
    if url is not None and not _BUCKET.fullmatch(url):
        hint = "; where the server is stands under endpoint:" if url.startswith(("http://", "https://")) else ""
        yield view.problem((*path, "url"), f"{shown(url)} is no bucket; write like s3://BUCKET/PREFIX{hint}")
    if endpoint is not None and not _SERVER.fullmatch(endpoint):
        message = f"{shown(endpoint)} is no server; write like https://minio.lan:9000, the bucket is in url:"
        yield view.problem((*path, "endpoint"), message)


CHECKS = (needed, boxes, cluster, bodies, files, sizes, settings, memory, adapters, shares, ports, reserves)
