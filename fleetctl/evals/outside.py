"""Suites of others, where they are installed: a program that is given the engine's address and writes its results."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from fleetctl.engine.client import EngineError
from fleetctl.errors import SpecError
from fleetctl.evals import by_inspect, by_tool_eval_bench
from fleetctl.evals.adapter import Adapter
from fleetctl.evals.asking import Endpoint
from fleetctl.evals.loopback import loopback
from fleetctl.evals.score import Score
from fleetctl.spec.units import seconds

TOLD_EVERY = 30.0  # seconds between two signs of life
TAIL = 600  # characters at the end of what a program said that a failure shows
INSPECT = "inspect:"


def adapter_of(suite: str) -> tuple[Adapter, str]:
    """Who runs a suite, and what it is asked to run. Raises SpecError for a suite that there is not."""
    if suite == "tool-eval-bench":
        return by_tool_eval_bench.ADAPTER, ""
    if suite.startswith(INSPECT) and suite != INSPECT:
        return by_inspect.ADAPTER, suite.removeprefix(INSPECT)
    raise SpecError(f"there is no suite {suite}", hint="there is tools, tool-eval-bench and inspect:TASK")


def program_of(suite: str) -> str:
    """The path of the program that runs a suite. Raises SpecError, with the command, where it is not installed."""
    adapter, _ = adapter_of(suite)
    beside = str(Path(sys.executable).parent)
    found = shutil.which(adapter.program, path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))
    if found is None:
        raise SpecError(
            f"the suite {suite} needs the program {adapter.program}, which is not installed on this machine",
            hint=f"{sys.executable} -m pip install {adapter.packages}",
        )
    return found


def run_outside(
    suite: str, endpoint: Endpoint, *, concurrency: int, within: float, seed: int, say: Callable[[str], None]
) -> Score:
    """The score in a suite that another program runs.

    Raises SpecError where it is not installed, EngineError when it does not end within so many seconds, or without a
    score.
    """
    adapter, what = adapter_of(suite)
    program = program_of(suite)
    key = endpoint.api_key or "none"
    with tempfile.TemporaryDirectory(prefix="fleetctl-eval-") as made, contextlib.ExitStack() as stack:
        folder = Path(made)
        url = stack.enter_context(loopback(endpoint.socket)) if endpoint.socket else endpoint.url
        command = [program, *adapter.command(what, endpoint.model, url, folder, concurrency, seed)]
        environment = {**_inherited(), **adapter.environment(url, key)}
        file = adapter.file(what)
        place = file.resolve().parent if file is not None else folder
        say(f"{suite}: {adapter.program} asks {endpoint.model}, {concurrency} at a time")
        with (folder / "said").open("wb") as out:
            _run(suite, command, place, environment, out, within, say)
        said = _end_of(folder / "said")
        try:
            return _sound(adapter.results(folder))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            why = str(error) if isinstance(error, ValueError) else "it wrote no results that can be read"
            last = said.replace(endpoint.api_key, "***") if endpoint.api_key else said
            raise EngineError(
                f"{adapter.program} gave no score: {why}" + (f"; it said: {last}" if last else "")
            ) from error


def _sound(told: Score) -> Score:
    """The score. ValueError for one that is no number from 0 to 100: no floor could hold it."""
    if not all(0 <= points <= 100 for points in (told.total, *told.categories.values())):
        raise ValueError(f"its score is {told.total}, which is not from 0 to 100")
    return told


def _end_of(file: Path) -> str:
    """The last that a program said, of however much."""
    with file.open("rb") as said:
        said.seek(max(0, said.seek(0, os.SEEK_END) - TAIL))
        return said.read().decode("utf-8", "replace").strip()


def _inherited() -> dict[str, str]:
    """The environment without proxies, which do not lead to an engine, and without settings of these programs."""
    own = ("TOOL_EVAL_", "INSPECT_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return {**{name: value for name, value in kept.items() if not name.lower().endswith("_proxy")}, "NO_PROXY": "*"}


def _run(
    suite: str,
    command: Sequence[str],
    place: Path,
    environment: Mapping[str, str],
    out: IO[bytes],
    within: float,
    say: Callable[[str], None],
) -> None:
    """Run a program to its end. The whole group of its processes ends with it."""
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=place,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        while (left := began + within - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(min(left, TOLD_EVERY))
                return
            say(f"{suite}: {seconds(time.monotonic() - began)} so far")
        raise EngineError(f"{suite} did not end in {seconds(within)}, which is all the time there is")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
