"""Searching files for the addresses of engines: file, line and the address, and never the rest of a line.

It runs on a box as an op, and on the operator's machine as it is.
"""

import os
import re
import stat
import time
from typing import Any, Dict, Iterator, List, Optional, Pattern, Sequence, Tuple

from fleetctl.onbox.main import Call, op

MOST_FILES = 50_000
MOST_BYTES = 512 * 1024 * 1024  # of all files together
LARGEST = 4 * 1024 * 1024  # of one file; a configuration is smaller
MOST_HITS = 500
NEAR = 3  # lines between an address and a port that belong together
NEVER = ("/proc", "/sys", "/dev")
# What follows the address of an API for a program to use; asking for the models is what health checks do.
API = re.compile(r"/v1(?!/models)\b")


class Hits:
    """What was found so far, and how much was looked at. ``why``: why not all was."""

    def __init__(self, seconds: float = 60.0) -> None:
        self.found: List[Dict[str, Any]] = []
        self.files = 0
        self.bytes = 0
        self.why: Optional[str] = None
        self._end = time.monotonic() + seconds

    def full(self) -> bool:
        """There is no room or time for more."""
        if self.why is None:
            if self.files >= MOST_FILES:
                self.why = "only the first %d files were looked at" % MOST_FILES
            elif self.bytes >= MOST_BYTES:
                self.why = "only the first %d MiB were looked at" % (MOST_BYTES >> 20)
            elif len(self.found) >= MOST_HITS:
                self.why = "only the first %d places are told" % MOST_HITS
            elif time.monotonic() >= self._end:
                self.why = "there was no time for all of it"
        return self.why is not None


def search(path: str, words: Sequence[Sequence[Any]], hits: Hits, api: bool = False) -> None:
    """Look through a file or a folder. ``words`` are host, port and the engine's name.

    With ``api`` only addresses that are written as that of an API count.
    """
    both = _together(words)
    apart = [] if api else _apart(words)
    for name in _files(path, hits):
        text = _text(name, hits)
        if text is not None and any(str(port) in text for _, port, _ in words):
            _search_text(name, text, both, apart, hits, api)


def _together(words: Sequence[Sequence[Any]]) -> List[Tuple[Pattern[str], str, str]]:
    """For host:port, and [host]:port."""
    return [
        (
            re.compile(r"(?<![\w.:-])\[?%s\]?:%d(?!\d)" % (re.escape(str(host)), int(port)), re.I),
            _shown(host, port),
            str(e),
        )
        for host, port, e in words
    ]


def _apart(words: Sequence[Sequence[Any]]) -> List[Tuple[Pattern[str], Pattern[str], str, str]]:
    """For a host alone, with the port in a setting of its own nearby."""
    return [
        (
            re.compile(r"(?<![\w.:-])%s(?![\w:-]|\.\w)" % re.escape(str(host)), re.I),
            re.compile(r"(?i)port\W{1,6}%d(?!\d)" % int(port)),
            _shown(host, port),
            str(engine),
        )
        for host, port, engine in words
    ]


def _shown(host: Any, port: Any) -> str:
    return "[%s]:%d" % (host, int(port)) if ":" in str(host) else "%s:%d" % (host, int(port))


def _search_text(
    path: str,
    text: str,
    both: List[Tuple[Pattern[str], str, str]],
    apart: List[Tuple[Pattern[str], Pattern[str], str, str]],
    hits: Hits,
    api: bool,
) -> None:
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if len(line) > 100_000 or len(hits.found) >= MOST_HITS:
            continue
        if api and line.lstrip().startswith(("#", ";")):
            continue
        for pattern, shown, engine in both:
            found = pattern.search(line)
            if found is not None and (not api or API.match(line[found.end() :])):
                hits.found.append({"path": path, "line": number, "address": shown, "engine": engine, "near": False})
        for host, port, shown, engine in apart:
            if host.search(line) and any(port.search(one) for one in lines[max(0, number - 1 - NEAR) : number + NEAR]):
                hits.found.append({"path": path, "line": number, "address": shown, "engine": engine, "near": True})


def _files(path: str, hits: Hits) -> Iterator[str]:
    """Plain files below a folder. Links to folders are not followed: they lead in circles, and out of it."""
    if os.path.isfile(path):
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if os.path.join(folder, name) not in NEVER and name != ".git")
        for name in sorted(names):
            if hits.full():
                return
            yield os.path.join(folder, name)


def _text(path: str, hits: Hits) -> Optional[str]:
    """The text of a file; None for what is none, is too large or cannot be read."""
    hits.files += 1
    try:
        # Looked at before it is opened: opening a pipe would wait for whoever writes into it.
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
            return None
        with open(path, "rb") as source:
            data = source.read(LARGEST)
    except OSError:
        return None
    hits.bytes += len(data)
    return None if b"\0" in data[:8192] else data.decode("utf-8", "replace")


@op("search_addresses")
def search_addresses(call: Call, path: str, words: List[List[Any]]) -> Dict[str, Any]:
    """Search a file or folder of this box. ``missing``: there is none."""
    hits = Hits()
    search(path, words, hits)
    return {"found": hits.found, "files": hits.files, "why": hits.why, "missing": not os.path.exists(path)}
