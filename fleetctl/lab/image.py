"""A container image with the stand-in engine, made without any registry: Debian's python3 and the stand-in, no more."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from fleetctl.errors import LabError
from fleetctl.lab.command import run

IMAGE = "localhost/standin:1"
SETTINGS = ("ENV PATH=/usr/local/bin:/usr/bin:/bin", "ENV LANG=C.UTF-8")
_PYTHON = "/usr/bin/python3"
_LEFT_OUT = ("__pycache__", "test", "idlelib", "tkinter", "lib2to3", "pydoc_data", "ensurepip")
_LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "usr/local/bin/vllm": "/opt/standin/bin/vllm"}
_FOLDERS = ("tmp", "proc", "sys", "dev", "run", "etc", "var", "root", "usr/local/bin")


def write_image_tree(base: Path, standin: Path, target: Path) -> None:
    """Write the file system of the image as a tar file: the same bytes for the same base system and stand-in.

    ``base`` is a Debian rootfs with python3. Raises LabError where it has none.
    """
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    with tarfile.open(partial, "w") as tar:
        for name in _FOLDERS:
            tar.addfile(_entry(name, tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755))
        for name, goal in _LINKS.items():
            link = _entry(name, tarfile.SYMTYPE, 0o777)
            link.linkname = goal
            tar.addfile(link)
        for path in _python(base):
            _add(tar, path, path.relative_to(base))
        for path in sorted(one for one in standin.rglob("*") if one.is_file() and "__pycache__" not in one.parts):
            _add(tar, path, Path("opt/standin") / path.relative_to(standin))
    partial.replace(target)


def _python(base: Path) -> Iterator[Path]:
    """Files of the interpreter, its library and the shared libraries that both load."""
    program = base / _PYTHON.lstrip("/")
    if not program.exists():
        raise LabError(f"{base} has no {_PYTHON} to make an image with")
    real = program.resolve().name
    library = base / "usr/lib" / real
    yield program
    yield base / "usr/bin" / real
    yield from sorted(
        path
        for path in library.rglob("*")
        if path.is_file() and not set(path.relative_to(library).parts[:-1]) & set(_LEFT_OUT)
    )
    modules = sorted(f"/usr/lib/{real}/lib-dynload/{path.name}" for path in (library / "lib-dynload").glob("*.so"))
    told = run(["chroot", str(base), "ldd", f"/usr/bin/{real}", *modules], doing="asking for python's libraries")
    words = {word for line in told.splitlines() for word in line.split() if word.startswith("/")}
    for name in sorted(word for word in words if ".so" in word and not word.endswith(":")):
        # /lib is a link to /usr/lib, in the image too.
        yield base / (name.lstrip("/") if name.startswith("/usr") else "usr" + name)


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.mtime = kind, mode, 0
    return entry


def _add(tar: tarfile.TarFile, path: Path, name: Path) -> None:
    if path.is_symlink() and path.parent.name == "bin":
        link = _entry(str(name), tarfile.SYMTYPE, 0o777)
        link.linkname = str(path.readlink())
        tar.addfile(link)
        return
    content = path.read_bytes()
    entry = _entry(str(name), tarfile.REGTYPE, path.stat().st_mode & 0o755)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
