"""Reads nginx.conf and the files that it includes into a tree of directives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from fleetctl.errors import SpecError
from fleetctl.proxy.lint.findings import Place
from fleetctl.proxy.lint.nginx_words import Word, words_of

DEEPEST = 40  # blocks in blocks, and includes in includes
MOST_FILES = 300
MOST_BYTES = 4 * 1024**2
# How `nginx -T` begins each file that it prints.
_DUMPED = re.compile(r"^# configuration file (\S+):$", re.MULTILINE)


@dataclass
class Directive:
    """A directive: ``name args…;`` or ``name args… { inner }``."""

    name: str
    args: tuple[str, ...]
    place: Place
    parent: Directive | None = None
    inner: list[Directive] = field(default_factory=list)
    block: bool = False
    _named: dict[str, list[Directive]] = field(default_factory=dict, repr=False)
    _seen: int = 0

    @property
    def text(self) -> str:
        return " ".join((self.name, *self.args))

    def arg(self, index: int, default: str = "") -> str:
        return self.args[index] if index < len(self.args) else default

    def own(self, name: str) -> list[Directive]:
        """The directives of this name directly inside, looked up in an index that grows with ``inner``."""
        for directive in self.inner[self._seen :]:
            self._named.setdefault(directive.name, []).append(directive)
        self._seen = len(self.inner)
        return self._named.get(name, [])

    def walk(self) -> Iterator[Directive]:
        """Every directive inside, in the order of the file."""
        for directive in self.inner:
            yield directive
            yield from directive.walk()

    def nearest(self, name: str) -> list[Directive]:
        """The directives of this name that count here: those of the innermost level that has any."""
        level: Directive | None = self
        while level is not None:
            found = level.own(name)
            if found:
                return found
            level = level.parent
        return []

    def setting(self, name: str) -> Directive | None:
        """The directive that sets ``name`` here; None when nginx's default applies."""
        found = self.nearest(name)
        return found[-1] if found else None


@dataclass(frozen=True)
class NotRead:
    """An include that was not followed, and why."""

    place: Place
    pattern: str
    reason: str


@dataclass
class Config:
    """A configuration with its includes in place. ``root`` is a directive without a name around everything."""

    file: str
    root: Directive
    not_read: list[NotRead] = field(default_factory=list)

    def every(self, name: str) -> list[Directive]:
        return [directive for directive in self.root.walk() if directive.name == name]


class _Reader:
    def __init__(self, file: str, folder: Path | None) -> None:
        self.folder = folder
        self.config = Config(file, Directive("", (), Place(file, 1), block=True))
        self.files = 0
        self.dumped: dict[str, str] = {}

    def read(self, file: str, text: str, into: Directive, depth: int, includes: int) -> None:
        """Append the directives of ``text`` to ``into``."""
        pending: list[Word] = []
        level, opened = into, depth
        for word in words_of(text):
            if not word.mark:
                pending.append(word)
                continue
            place = Place(file, pending[0].line if pending else word.line)
            if word.text == "}":
                if level is into:
                    raise SpecError(f"{place}: a }} without its {{", hint="`nginx -t` says where the blocks went wrong")
                level, opened = level.parent or into, opened - 1
            elif pending:
                args = tuple(part.text for part in pending[1:])
                directive = Directive(pending[0].text, args, place, level, block=word.text == "{")
                if directive.name == "include" and word.text == ";":
                    self.include(directive, level, opened, includes)
                else:
                    level.inner.append(directive)
                if word.text == "{":
                    level, opened = directive, opened + 1
                    if opened > DEEPEST:
                        raise SpecError(f"{place}: more than {DEEPEST} blocks inside each other")
            elif word.text == "{":
                raise SpecError(f"{place}: a {{ without a name before it")
            pending = []
        if pending:
            raise SpecError(f"{file}:{pending[0].line}: `{pending[0].text[:80]} …` is not ended by a ;")
        if level is not into:
            raise SpecError(f"{level.place}: the block `{level.text[:80]}` is never closed")

    def include(self, directive: Directive, level: Directive, depth: int, includes: int) -> None:
        pattern = directive.arg(0)
        try:
            texts = self.in_dump(pattern) if self.dumped else [(str(p), self.text(p)) for p in self.matching(pattern)]
            if includes >= DEEPEST or self.files + len(texts) > MOST_FILES:
                raise ValueError("too many includes, or a file that includes itself")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.config.not_read.append(NotRead(directive.place, pattern, reason))
            return
        for path, text in texts:
            self.files += 1
            self.read(path, text, level, depth, includes + 1)

    def in_dump(self, pattern: str) -> list[tuple[str, str]]:
        """The files of `nginx -T` that an include names."""
        if not pattern:
            raise ValueError("not the name of a file")
        full = str(PurePosixPath(next(iter(self.dumped))).parent / pattern)
        found = [(path, text) for path, text in self.dumped.items() if PurePosixPath(path).match(full)]
        if not found and not any(mark in pattern for mark in "*?["):
            raise ValueError("not in what `nginx -T` printed")
        return found

    def matching(self, pattern: str) -> list[Path]:
        """The files that an include names, looked for in the folder of the configuration and nowhere else."""
        if self.folder is None:
            raise ValueError("standard input has no folder to look in")
        if not pattern or "\0" in pattern or "$" in pattern:
            raise ValueError("not the name of a file")
        home = self.folder.resolve()
        path = Path(pattern)
        if path.is_absolute():
            if not path.is_relative_to(home):
                raise ValueError(f"outside {home}")
            path = path.relative_to(home)
        if ".." in path.parts or path == Path():
            raise ValueError(f"outside {home}")
        wild = any(mark in pattern for mark in "*?[")
        found = sorted(home.glob(str(path))) if wild else [home / path]
        return [file for file in found if file.is_file() or not wild]

    def text(self, path: Path) -> str:
        if not path.is_file():
            raise ValueError("there is no such file")
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"larger than {MOST_BYTES // 1024**2} MiB")
        return path.read_text(encoding="utf-8", errors="replace")


def read(file: str, text: str, folder: Path | None = None) -> Config:
    """Read a configuration, or what ``nginx -T`` prints; ``folder`` is where its includes are looked for.

    Raises SpecError with file and line where braces do not match.
    """
    reader = _Reader(file, folder)
    parts = _DUMPED.split(text)
    if len(parts) > 1:
        reader.dumped = {path: part.removeprefix("\n") for path, part in zip(parts[1::2], parts[2::2], strict=True)}
        file, text = next(iter(reader.dumped.items()))
    reader.read(file, text, reader.config.root, 0, 0)
    return reader.config
