"""Programs of fleetctl that boxes run besides engines: what is in their folders, and the names of those. Pure.

A folder is named by the digest of what goes into it: the sources, and the libraries with their exact versions. Which
build of a library that is depends on the box, its Python and its machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from fleetctl.render.names import PROGRAMS_FOLDER
from fleetctl.render.release import Bundle
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.fleet_model import Program

LIBRARIES = ("httptools==0.9.0", "msgpack==1.2.4", "nats-py==2.16.0", "orjson==3.13.0", "uvloop==0.23.0")
"""What the programs of a pool use."""
ENCODER_LIBRARIES = ("numpy==2.4.6", "onnxruntime==1.32.0", "protobuf==7.36.2", "tokenizers==0.23.3")
"""What an encoder uses besides."""
S3_LIBRARIES = ("obstore==0.12.1", "typing-extensions==4.16.0")
"""What gateways and workers use besides where long bodies go into a bucket."""
PYTHON = (3, 11)
"""The oldest Python that these programs run on."""


@cache
def sources() -> dict[str, str]:
    """Path → text of every source that the programs need."""
    package = resources.files("fleetctl")
    found = {"fleetctl/__init__.py": "", "fleetctl/errors.py": package.joinpath("errors.py").read_text("utf-8")}
    return found | dict(_below(package.joinpath("pool"), "fleetctl/pool"))


def _below(folder: Traversable, name: str) -> Iterator[tuple[str, str]]:
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        path = f"{name}/{entry.name}"
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _below(entry, path)
        elif entry.name.endswith(".py"):
            yield path, entry.read_text("utf-8")


@cache
def pool_bundle() -> Bundle:
    """The programs of a pool and their libraries."""
    return _bundle(sources(), LIBRARIES)


@cache
def encoder_bundle() -> Bundle:
    """The further libraries of an encoder."""
    return _bundle({}, ENCODER_LIBRARIES)


@cache
def s3_bundle() -> Bundle:
    """The further libraries of a fleet with a bucket for long bodies."""
    return _bundle({}, S3_LIBRARIES)


def program_bundles(fleet: Fleet) -> tuple[Bundle, ...]:
    """What gateways and workers are started with."""
    bucket = fleet.pool is not None and fleet.pool.bodies is not None
    return (pool_bundle(), s3_bundle()) if bucket else (pool_bundle(),)


def _bundle(texts: dict[str, str], requirements: tuple[str, ...]) -> Bundle:
    parts = json.dumps([texts, requirements], sort_keys=True)
    digest = hashlib.sha256(parts.encode()).hexdigest()[:16]
    return Bundle(digest=digest, sources=bool(texts), requirements=requirements)


def folder_of(bundle: Bundle) -> str:
    """Where a box has it."""
    return f"{PROGRAMS_FOLDER}/{bundle.digest}"


def encoder_bundles(fleet: Fleet, model: str) -> tuple[Bundle, ...]:
    """What an engine of fleetctl's own encoder is started with; an environment of its own has its libraries itself."""
    if fleet.models[model].runtime != "encoder":
        return ()
    own = isinstance(fleet.launch(model), Program)
    return (pool_bundle(), encoder_bundle()) if own else (pool_bundle(),)


def bundles_on(fleet: Fleet, layout: str, box: str) -> tuple[Bundle, ...]:
    """What has to be on a box for a layout."""
    pooled = fleet.pool_models(layout)
    seats = [box for model in pooled for box in fleet.layouts[layout][model].boxes]
    runs = pooled and box in (*seats, *fleet.gateways)
    batch = fleet.pool is not None and box in fleet.proxy.on
    found = [*program_bundles(fleet)] if runs else [pool_bundle()] if batch else []
    for model, placement in fleet.layouts[layout].items():
        if box in placement.boxes:
            found += encoder_bundles(fleet, model)
    return tuple({bundle.digest: bundle for bundle in found}.values())
