"""Reads haproxy.cfg into sections, with the settings that a proxy inherits from its defaults.

Tolerant: a word that is not known is kept as it stands. ``.if`` blocks are read as if every branch applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from fleetctl.proxy.lint.findings import Place

SECTIONS = {
    "global", "defaults", "frontend", "backend", "listen", "peers", "mailers", "resolvers", "userlist",
    "cache", "http-errors", "ring", "log-forward", "log-profile", "fcgi-app", "program", "crt-store",
    "traces", "acme",
}  # fmt: skip
_WORD = re.compile(
    r"""(?: \\. | "(?:\\.|[^"\\])*"? | '[^']*'? | [^\s\\"'\#] )+ """,
    re.VERBOSE,
)
_PART = re.compile(r"""\\(.) | "((?:\\.|[^"\\])*)"? | '([^']*)'? | ([^\\"']+) | (\\)$""", re.VERBOSE)

# Parameters of a server that stand alone; every other one that rules look at is followed by its value.
_FLAGS = frozenset(
    ["check", "no-check", "backup", "disabled", "enabled", "ssl", "no-ssl", "check-ssl", "send-proxy", "send-proxy-v2"]
)
# Checks of servers that are no engines: rules leave their backends alone.
_OTHER_CHECKS = ("mysql-check", "pgsql-check", "redis-check", "ldap-check", "smtpchk", "spop-check")
# The backend of what fleetctl's own configuration asks while no engine is up: no engine either.
_BRIDGE = "fleetctl_bridge"
_VALUED = {
    "addr", "agent-addr", "agent-inter", "agent-port", "agent-send", "alpn", "ca-file", "check-alpn",
    "check-proto", "check-sni", "cookie", "crt", "downinter", "error-limit", "fall", "fastinter", "id",
    "init-addr", "inter", "max-reuse", "maxconn", "maxqueue", "minconn", "namespace", "observe",
    "on-error", "on-marked-down", "on-marked-up", "pool-low-conn", "pool-max-conn", "pool-purge-delay",
    "port", "proto", "redir", "resolve-net", "resolve-opts", "resolve-prefer", "resolvers", "rise",
    "shard", "slowstart", "sni", "socks4", "source", "tfo", "track", "usesrc", "verify", "verifyhost",
    "weight", "ws",
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One directive: its words without a leading ``no``, and whether it had one."""

    words: tuple[str, ...]
    place: Place
    negated: bool = False

    @property
    def text(self) -> str:
        return ("no " if self.negated else "") + " ".join(self.words)

    def value(self, index: int, default: str = "") -> str:
        return self.words[index] if index < len(self.words) else default


@dataclass
class Section:
    """A section. ``above`` is the defaults section that it inherits from."""

    kind: str
    name: str
    place: Place
    lines: list[Line] = field(default_factory=list)
    above: Section | None = None
    _named: dict[str, list[Line]] = field(default_factory=dict, repr=False)
    _seen: int = 0

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}".strip()

    def all(self, *prefix: str) -> list[Line]:
        """The lines that begin with these words: inherited ones first, then its own."""
        for line in self.lines[self._seen :]:
            self._named.setdefault(line.words[0], []).append(line)
        self._seen = len(self.lines)
        inherited = self.above.all(*prefix) if self.above else []
        own = self._named.get(prefix[0], [])
        return inherited + [line for line in own if line.words[: len(prefix)] == prefix]

    def last(self, *prefix: str) -> Line | None:
        """The line that counts where the last one wins; one that is negated counts as none."""
        lines = self.all(*prefix)
        return lines[-1] if lines and not lines[-1].negated else None

    def has(self, *prefix: str) -> bool:
        return self.last(*prefix) is not None

    @property
    def mode(self) -> str:
        line = self.last("mode")
        return line.value(1) if line else "tcp"


@dataclass(frozen=True)
class Server:
    """A server (or a template of several) with the parameters of default-server mixed in."""

    name: str
    address: str
    params: dict[str, str]
    line: Line
    copies: int = 1

    @property
    def place(self) -> Place:
        return self.line.place

    @property
    def local(self) -> bool:
        """Whether the address is a Unix socket: another part of this machine, not an engine's address."""
        return self.address.startswith(("unix@", "abns@", "abnsz@", "sockpair@", "/", "fd@", "rhttp@"))

    @property
    def checked(self) -> bool:
        return "check" in self.params or "track" in self.params

    @property
    def host(self) -> str:
        address = self.address.rsplit("@", 1)[-1]
        return address.rsplit(":", 1)[0].strip("[]") if ":" in address else address


class Config:
    """A whole configuration file."""

    def __init__(self, file: str, sections: list[Section]) -> None:
        self.file = file
        self.sections = sections

    def of(self, *kinds: str) -> list[Section]:
        return [section for section in self.sections if section.kind in kinds]

    @property
    def backends(self) -> list[Section]:
        """Sections that pass requests to servers."""
        return [section for section in self.of("backend", "listen") if servers(section)]

    @property
    def used_backends(self) -> Iterator[tuple[Section, list[Server]]]:
        """Each backend with the servers that may be engines: no local sockets, disabled ones or databases."""
        for section in (section for section in self.backends if section.name != _BRIDGE):
            engines = [s for s in servers(section) if not s.local and "disabled" not in s.params]
            if engines and not (section.mode == "tcp" and any(section.has("option", name) for name in _OTHER_CHECKS)):
                yield section, engines

    def globally(self, *prefix: str) -> list[Line]:
        return [line for section in self.of("global") for line in section.all(*prefix)]


def _params(words: tuple[str, ...]) -> dict[str, str]:
    params: dict[str, str] = {}
    index = 0
    while index < len(words):
        word = words[index]
        if word in _VALUED and index + 1 < len(words):
            params[word] = words[index + 1]
            index += 1
        elif word == "no-check":
            params.pop("check", None)
        elif word in ("none", "enabled"):
            params.pop("disabled", None)
        else:
            params[word] = ""
        index += 1
    return params


def servers(section: Section) -> list[Server]:
    """The servers of a section, in its order."""
    defaults: dict[str, str] = {}
    for line in section.above.all("default-server") if section.above else []:
        defaults |= _params(line.words[1:])
    found = []
    for line in section.lines:
        if line.words[0] == "default-server":
            words = line.words[1:]
            defaults |= _params(words)
            for flag in _FLAGS & {word.removeprefix("no-") for word in words if word.startswith("no-")}:
                defaults.pop(flag, None)
        elif line.words[0] == "server" and len(line.words) > 2:
            found.append(_server(line, line.words[1], 2, defaults))
        elif line.words[0] == "server-template" and len(line.words) > 3:
            most = line.words[2].rsplit("-", 1)[-1]
            copies = min(int(most), 10_000) if re.fullmatch("[0-9]{1,9}", most) else 1
            found.append(_server(line, line.words[1], 3, defaults, max(1, copies)))
    return found


def _server(line: Line, name: str, at: int, defaults: dict[str, str], copies: int = 1) -> Server:
    own = line.words[at + 1 :]
    params = defaults | _params(own)
    for word in own:
        if word.startswith("no-"):
            params.pop(word.removeprefix("no-"), None)
    return Server(name, line.words[at], params, line, copies)


def split_words(text: str) -> tuple[str, ...]:
    """The words of a line as HAProxy reads them: quotes and backslashes removed, a comment left out."""
    words = []
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        match = _WORD.match(text, position)
        if match is None:  # a comment
            break
        parts = _PART.finditer(match[0])
        words.append("".join(next((group for group in part.groups() if group is not None), "") for part in parts))
        position = match.end()
    return tuple(words)


def read(file: str, text: str) -> Config:
    """Read the text of a configuration; lines that belong to no section are ignored."""
    sections: list[Section] = []
    current: Section | None = None
    defaults: Section | None = None
    named: dict[str, Section] = {}
    for number, raw in enumerate(text.split("\n"), start=1):
        words = split_words(raw)
        if not words or words[0].startswith("."):
            continue
        if words[0] in SECTIONS:
            name = words[1] if len(words) > 1 and words[1] != "from" else ""
            current = Section(words[0], name, Place(file, number))
            parent = words[words.index("from") + 1] if "from" in words[:-1] else None
            if words[0] == "defaults":
                current.above = named.get(parent) if parent else None
                defaults = current
                named[name] = current
            elif words[0] in ("frontend", "backend", "listen"):
                current.above = named.get(parent, defaults) if parent else defaults
            sections.append(current)
        elif current is not None:
            negated = words[0] == "no" and len(words) > 1
            current.lines.append(Line(words[1:] if negated else words, Place(file, number), negated))
    return Config(file, sections)
