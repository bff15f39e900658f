"""What the scripts in this folder share: the workspace, environments, timing, and the line that a figure is."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))  # the lab is driven from this checkout, with nothing but the standard library


class BenchError(Exception):
    """The figure could not be measured; the message says why."""


def say(text: str) -> None:
    """Progress, on standard error: standard output has the figures alone."""
    print(text, file=sys.stderr, flush=True)


def environment(**more: str) -> dict[str, str]:
    """The environment of every measured process: compiled modules may be kept, Python paths are not inherited."""
    dropped = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONUNBUFFERED", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, **more}


def say_load() -> None:
    """How busy this machine is already; figures taken on a busy one say little, and the reader has to know."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    busy = ": too busy for figures that mean something" if load > cores else ""
    say(f"load of this machine: {load:.1f} on {cores} cores{busy}")


def run(argv: Sequence[str], *, doing: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command to its end; standard output. Raises BenchError with its last words when it fails."""
    done = subprocess.run(
        list(argv), capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env or environment(), cwd=cwd
    )
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-30:])
        raise BenchError(f"{doing}: `{' '.join(argv)}` ended with status {done.returncode}:\n{last}")
    return done.stdout


def make_venv(folder: Path, *packages: str) -> Path:
    """A new environment with ``packages`` (names for pip, or the path of a checkout); its bin folder."""
    say(f"installing {', '.join(packages)}")
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, *packages], doing="installing with pip")
    return folder / "bin"


def version_of(folder: Path, package: str) -> str:
    """Version of an installed package, from the environment whose bin folder is given."""
    ask = f"from importlib.metadata import version; print(version({package!r}))"
    return run([str(folder / "python"), "-c", ask], doing=f"asking for the version of {package}").strip()


@contextmanager
def workspace(folder: Path, clean: Callable[[], None]) -> Iterator[Path]:
    """An empty folder that one run has for itself. ``clean`` runs before and after, then the folder is removed.

    SIGTERM and SIGHUP end the run as Ctrl-C does, so that nothing stays behind then either.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    lock_file = Path("/run/lock") / f"{folder.name}.lock"
    with lock_file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BenchError(f"another run is using {folder}; wait until it is done") from None
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, stop)
        try:
            clean()
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            yield folder
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave half of it behind
            clean()
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Contender:
    """A command measured as a whole process. ``check`` raises BenchError when the output is not as it must be."""

    name: str
    argv: Sequence[str]
    check: Callable[[str], None]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=environment)
    seconds: list[float] = field(default_factory=list)

    def once(self) -> float:
        """Run it and check it; seconds from before the process exists until it has ended."""
        begin = time.perf_counter()
        output = run(self.argv, doing=self.name, env=self.env, cwd=self.cwd)
        took = time.perf_counter() - begin
        self.check(output)
        return took

    def told(self) -> str:
        """Median, fastest and slowest, in words."""
        times = self.seconds
        middle = statistics.median(times)
        return f"{self.name}: median {middle:.3f} s ({min(times):.3f} to {max(times):.3f}, n={len(times)})"


def interleaved(contenders: Sequence[Contender], rounds: int) -> None:
    """One run of each to warm up, then ``rounds`` rounds of one run of each: noise of the machine meets all alike."""
    for contender in contenders:
        contender.once()
    for number in range(1, rounds + 1):
        for contender in contenders:
            contender.seconds.append(contender.once())
        told = ", ".join(f"{contender.name} {contender.seconds[-1]:.3f} s" for contender in contenders)
        say(f"round {number} of {rounds}: {told}")


@dataclass(frozen=True)
class Figure:
    """One number: ``goal`` is how the goal is written, ``holds`` whether the value meets it (None: no goal)."""

    value: float
    unit: str
    goal: str | None = None
    holds: bool | None = None


def at_most(value: float, limit: float, unit: str = "s") -> Figure:
    """A figure whose goal is to be no larger than ``limit``."""
    return Figure(round(value, 3), unit, f"<= {limit:g}", value <= limit)


def at_least(value: float, limit: float, unit: str = "x") -> Figure:
    """A figure whose goal is to be no smaller than ``limit``."""
    return Figure(round(value, 3), unit, f">= {limit:g}", value >= limit)


def print_figures(bench: str, figures: Mapping[str, Figure]) -> None:
    """The one line of JSON on standard output."""
    print(json.dumps({"bench": bench, "figures": {name: vars(figure) for name, figure in figures.items()}}), flush=True)
