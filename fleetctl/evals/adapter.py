"""What is to be known of a program that runs a suite of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fleetctl.evals.score import Score


@dataclass(frozen=True)
class Adapter:
    """How to call ``program``, which is in the PyPI ``packages``, and how to read its results.

    ``command`` takes what is to be run, the model, the URL without /v1, an empty folder, the requests at a time and a
    seed. ``environment`` takes URL and key: no argument list has a key in it. ``results`` takes the folder and raises
    ValueError for a run without a score. The program runs in the folder, or beside the ``file`` that is to be run.
    """

    program: str
    packages: str
    command: Callable[[str, str, str, Path, int, int], list[str]]
    environment: Callable[[str, str], Mapping[str, str]]
    results: Callable[[Path], Score]
    file: Callable[[str], Path | None] = lambda what: None
