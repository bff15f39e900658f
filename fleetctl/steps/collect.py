"""Programs for a box, put together on the operator's machine: sources of fleetctl, and libraries for its Python.

The libraries are fetched by pip or uv from the operator's index, as wheels and without what they would depend on: the
list of them is complete. The archive is kept in the user's cache folder by what went into it and what it is for.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fleetctl.errors import StepError
from fleetctl.render.programs import pool_bundle, sources
from fleetctl.render.release import Bundle

LIMIT = 600.0
"""Seconds that fetching the libraries may take."""
_OLDEST_GLIBC = 17  # manylinux2014, of which every wheel in use is, or newer


@dataclass(frozen=True)
class Target:
    """What libraries are for."""

    python: str
    """Such as 3.11."""
    machine: str
    """Such as aarch64."""
    libc: str
    """Such as ``glibc 2.36``."""

    @property
    def platforms(self) -> list[str]:
        """Tags of the wheels that run there, the newest first. Raises StepError for another C library than glibc."""
        found = re.fullmatch(r"glibc 2\.([0-9]+)", self.libc)
        if found is None:
            raise StepError(
                f"the libraries of the pool's programs are for glibc, and the box has {self.libc.strip() or 'another'}",
                hint="take the box out of the pool",
            )
        tags = [f"manylinux_2_{minor}_{self.machine}" for minor in range(int(found[1]), _OLDEST_GLIBC - 1, -1)]
        return [*tags, f"manylinux2014_{self.machine}"]


def archive_of(bundle: Bundle, target: Target) -> bytes:
    """The archive of a program for a target, from the cache or made now. Raises StepError saying what is missing."""
    name = f"{bundle.digest}-{target.python}-{target.machine}-{target.libc.replace(' ', '')}.tar.gz"
    kept = cache_folder() / name
    if kept.is_file():
        return kept.read_bytes()
    if bundle.sources and bundle.digest != pool_bundle().digest:
        raise StepError(
            "the pool's programs of that generation are another version's, and are on neither the box nor this machine",
            hint="use the fleetctl that it was made with, or `fleetctl cutover` to the same layout, which renders anew",
        )
    with tempfile.TemporaryDirectory(prefix="fleetctl-programs-") as folder:
        fetch(bundle.requirements, target, Path(folder))
        if bundle.sources:
            for path, text in sources().items():
                (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / path).write_text(text, "utf-8")
        made = packed(Path(folder))
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
        file.write(made)
    Path(file.name).replace(kept)
    return made


def cache_folder() -> Path:
    """Where archives are kept on this machine."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "fleetctl" / "programs"


def fetch(requirements: tuple[str, ...], target: Target, folder: Path) -> None:
    """Libraries into a folder, whatever this machine is. Raises StepError with the words of pip or uv."""
    if not requirements:
        return
    command = _command(target, folder)
    try:
        done = subprocess.run(
            [*command, *requirements],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise StepError(f"fetching {', '.join(requirements)} took longer than {LIMIT:.0f} s") from None
    if done.returncode != 0:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-4:])
        raise StepError(
            f"{', '.join(requirements)} for Python {target.python} on {target.machine} cannot be fetched:\n{said}",
            hint="this machine fetches them from its package index (PIP_INDEX_URL names another)",
        )


def _command(target: Target, folder: Path) -> list[str]:
    """pip of this Python, else uv. Raises StepError where there is neither."""
    if importlib.util.find_spec("pip") is not None:
        platforms = [word for tag in target.platforms for word in ("--platform", tag)]
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        words += ["--no-compile", "--no-deps", "--only-binary=:all:", "--implementation", "cp"]
        return [*words, "--python-version", target.python, *platforms, "--target", str(folder)]
    uv = shutil.which("uv")
    if uv is not None:
        words = [uv, "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--python-version"]
        return [
            *words,
            target.python,
            "--python-platform",
            f"{target.machine}-{_of_uv(target)}",
            "--target",
            str(folder),
        ]
    raise StepError(
        "the pool's programs need libraries, and this machine has neither pip nor uv to fetch them",
        hint="python3 -m ensurepip, or install uv",
    )


def _of_uv(target: Target) -> str:
    """The C library as uv names it."""
    return target.platforms[0].removesuffix(f"_{target.machine}")


def packed(folder: Path) -> bytes:
    """The files of a folder as an archive: the same files give the same bytes."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = path.relative_to(folder).as_posix()
            if _is_left_out(name):
                continue
            entry = tarfile.TarInfo(name)
            entry.size = path.stat().st_size
            entry.mode = 0o644
            with path.open("rb") as content:
                archive.addfile(entry, content)
    return gzip.compress(plain.getvalue(), compresslevel=6, mtime=0)


def _is_left_out(name: str) -> bool:
    """What no program needs: compiled files of this Python, commands, C sources, hints for type checkers."""
    parts = name.split("/")
    return "__pycache__" in parts or parts[0] == "bin" or name.endswith((".pyc", ".pyi", ".c", ".h", ".pyx", ".pxd"))


def sha256(archive: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(archive).hexdigest()
