"""Programs of a pool on their way: put together here, whole on a box or not at all."""

from __future__ import annotations

import base64
import gzip
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetctl.errors import StepError
from fleetctl.onbox import programs
from fleetctl.onbox.main import Call, OpError
from fleetctl.render.programs import folder_of, pool_bundle, sources
from fleetctl.render.release import Bundle
from fleetctl.steps import collect
from fleetctl.steps.pool import ShipPrograms
from fleetctl.steps.prepare import StageRelease

HERE = collect.Target("3.11", "x86_64", "glibc 2.36")
NAME = "0123456789abcdef"
CALL = Call(0, lambda message: None)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/fleetctl/programs"


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a box keeps programs."""
    monkeypatch.setattr(programs, "FOLDER", str(tmp_path / "programs"))
    monkeypatch.setattr(programs, "generations", dict)
    return tmp_path / "programs"


def tree(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def send(archive: bytes, name: str = NAME, piece: int = 100) -> None:
    for offset in range(0, len(archive), piece):
        data = base64.b64encode(archive[offset : offset + piece]).decode()
        programs.programs_put(CALL, name, offset, data)


def test_wheels_are_asked_for_from_the_boxs_c_library_down() -> None:
    tags = collect.Target("3.12", "aarch64", "glibc 2.19").platforms
    assert tags == [
        "manylinux_2_19_aarch64",
        "manylinux_2_18_aarch64",
        "manylinux_2_17_aarch64",
        "manylinux2014_aarch64",
    ]
    with pytest.raises(StepError, match=r"are for glibc, and the box has musl 1.2"):
        _ = collect.Target("3.12", "aarch64", "musl 1.2").platforms


def test_the_same_files_are_the_same_archive_without_what_no_program_needs(tmp_path: Path) -> None:
    one = tree(tmp_path / "a", **{"x__m.py": "1", "bin__tool": "", "x____pycache____m.pyc": "", "x__m.pyi": ""})
    two = tree(tmp_path / "b", **{"x__m.py": "1"})
    (two / "x/m.py").chmod(0o600)
    assert collect.packed(one) == collect.packed(two)


def test_an_archive_is_made_once_and_has_the_sources(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(collect, "fetch", lambda wanted, target, folder: asked.append(wanted))
    first, again = (collect.archive_of(pool_bundle(), HERE) for _ in range(2))
    assert first == again and asked == [pool_bundle().requirements]
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(first))) as archive:
        names = archive.getnames()
    assert set(names) == set(sources()) and "fleetctl/pool/wire.py" in names
    assert [path.name for path in cache.iterdir()] == [f"{pool_bundle().digest}-3.11-x86_64-glibc2.36.tar.gz"]


def test_programs_of_another_version_cannot_be_made_here(cache: Path) -> None:
    with pytest.raises(StepError, match="another version"):
        collect.archive_of(Bundle(digest="f" * 16, sources=True), HERE)


def test_what_pip_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "_command", lambda target, folder: ["sh", "-c", "echo no such wheel >&2; exit 1"])
    with pytest.raises(StepError, match=r"x==1 for Python 3.11 on x86_64 cannot be fetched:\nno such wheel"):
        collect.fetch(("x==1",), HERE, tmp_path)


def test_a_program_is_there_when_all_of_it_has_come_and_is_for_this_box(box: Path, tmp_path: Path) -> None:
    archive = collect.packed(tree(tmp_path / "a", **{"p__m.py": "print(1)\n" * 50}))
    send(archive)
    assert programs.programs_look(CALL, [NAME])["there"] == []
    programs.programs_unpack(CALL, NAME, collect.sha256(archive))
    assert programs.programs_look(CALL, [NAME]) == {"made_for": programs.made_for(), "there": [NAME]}
    assert (box / NAME / "p/m.py").read_text().startswith("print(1)")
    assert list((box / NAME / "p/__pycache__").iterdir()), "a user without rights to write there starts it as fast"
    assert [path.name for path in box.iterdir()] == [NAME]
    (box / NAME / ".made-for").write_text('{"python": "3.9"}')
    assert programs.programs_look(CALL, [NAME])["there"] == [], "the box has another Python now"


def test_what_arrives_broken_is_not_put_in_place(box: Path, tmp_path: Path) -> None:
    archive = collect.packed(tree(tmp_path / "a", **{"m.py": "1"}))
    send(archive[:-1] + b"x")
    with pytest.raises(OpError, match="did not arrive as they were sent"):
        programs.programs_unpack(CALL, NAME, collect.sha256(archive))
    assert list(box.iterdir()) == []


def hostile(name: str, kind: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, "/etc/passwd"
        archive.addfile(entry)
    return made.getvalue()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("../../x", tarfile.REGTYPE), ("/etc/x", tarfile.REGTYPE), ("a", tarfile.SYMTYPE), ("a", tarfile.CHRTYPE)],
)
def test_an_archive_reaches_nothing_outside_its_folder(box: Path, name: str, kind: bytes) -> None:
    archive = hostile(name, kind)
    send(archive)
    with pytest.raises(OpError, match="no file of a program"):
        programs.programs_unpack(CALL, NAME, collect.sha256(archive))
    assert not (box / NAME).exists()


@pytest.mark.parametrize("name", ["../../../etc/cron.d", "ABCDEF0123456789", "0123", "", None])
def test_no_name_becomes_a_path_that_is_no_digest(box: Path, name: Any) -> None:
    for ask in (
        lambda: programs.programs_put(CALL, name, 0, ""),
        lambda: programs.programs_unpack(CALL, name, ""),
        lambda: programs.programs_remove(CALL, [name]),
    ):
        with pytest.raises(OpError, match="no digest of a program"):
            ask()


def test_what_a_generation_needs_stays(box: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = "f" * 16
    for name in (NAME, other):
        archive = collect.packed(tree(tmp_path / name, **{"m.py": name}))
        send(archive, name)
        programs.programs_unpack(CALL, name, collect.sha256(archive))
    monkeypatch.setattr(programs, "generations", lambda: {3: {}})
    release = {"programs": {"a": [{"digest": NAME}]}}
    monkeypatch.setattr(programs, "generation_release", lambda number: release)
    assert programs.programs_remove(CALL, [NAME])["removed"] == []
    assert programs.programs_prune(CALL)["removed"] == [other]
    assert [path.name for path in box.iterdir()] == [NAME]


def test_a_move_that_is_undone_takes_its_programs_along_and_leaves_those_of_others(
    box: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, kept = "f" * 16, {3: "f" * 16, 4: NAME}
    for name in (NAME, other):
        archive = collect.packed(tree(tmp_path / name, **{"m.py": name}))
        send(archive, name)
        programs.programs_unpack(CALL, name, collect.sha256(archive))
    send(b"half of it", NAME)
    monkeypatch.setattr(programs, "generations", lambda: {number: {} for number in kept})
    monkeypatch.setattr(programs, "generation_release", lambda number: {"programs": [kept[number]]})

    class Box:
        def call(self, name: str, **told: Any) -> Any:
            if name == "generation_remove":
                return kept.pop(told["number"])
            return getattr(programs, name)(CALL, **told)

    release = SimpleNamespace(programs={"a": (NAME,)})
    context: Any = SimpleNamespace(box=lambda step: Box(), plan=SimpleNamespace(release=release))
    step: Any = SimpleNamespace(box="a", params={"generation": 4})
    # As a move is undone, the last step first.
    assert ShipPrograms().undo(context, step, {"lacking": [NAME]}) == {"removed": []}
    assert StageRelease().undo(context, step, {"there": False}) == {"programs": [NAME]}
    assert [path.name for path in box.iterdir()] == [other]


def test_units_name_the_folder_that_the_sources_go_to() -> None:
    assert folder_of(pool_bundle()) == f"/var/lib/fleetctl/programs/{pool_bundle().digest}"


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b'{"status": "ok"}', ""),
        (503, b'{"status": "there is no bucket"}', "there is no bucket"),
        (503, b"no JSON", "it answers 503"),
    ],
)
def test_a_program_that_is_not_at_work_is_asked_why(status: int, body: bytes, said: str) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *told: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert programs._told(f"http://127.0.0.1:{server.server_port}/health?bodies") == said
        thread.join(5)
    assert programs._told(f"http://127.0.0.1:{server.server_port}/") == programs.NO_ANSWER
