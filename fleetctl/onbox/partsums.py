"""SHA-256 of files and of their parts, several files at once: hashlib works without Python's lock."""

import contextlib
import hashlib
import os
import queue
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from fleetctl.onbox.main import Call, OpError

PART = 16 * 2**20  # bytes; what is sent again at most when one byte is wrong
PIECE = 2**20  # bytes read at a time: they are still in the CPU's cache when they are hashed
THREADS = 4
NICE = 10  # of threads that hash: an engine's own come first
EVENT = 0.5  # seconds between two words of progress


class Sums:
    """``sha256`` of the whole file (empty: not asked for), ``parts`` of each part; as the file was at ``mtime_ns``."""

    def __init__(self, size: int, mtime_ns: int, sha256: str, parts: List[str]) -> None:
        self.size, self.mtime_ns, self.sha256, self.parts = size, mtime_ns, sha256, parts


class Progress:
    """Tells the client every half second how far a long work is. Safe to use from any thread."""

    def __init__(self, call: Call, total: int, doing: str) -> None:
        self._call, self._total, self._doing = call, total, doing
        self._lock = threading.Lock()
        self._told = self._began = time.monotonic()
        self.done = 0

    def add(self, count: int) -> None:
        """So many more bytes are done."""
        with self._lock:
            self.done += count
            now = time.monotonic()
            if now - self._told < EVENT:
                return
            self._told = now
            rate = self.done / max(1e-6, now - self._began)
        self._call.event(doing=self._doing, bytes=self.done, total=self._total, rate=round(rate))


def part_count(size: int, part: int = PART) -> int:
    """How many parts a file has; an empty one has none."""
    return -(-size // part)


def behind() -> None:
    """Let the thread that calls this come after those of engines, as far as the CPU is concerned."""
    with contextlib.suppress(OSError):  # then it runs as all others do
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def hashed(call: Call, path: str, whole: bool, add: Callable[[int], None]) -> Sums:
    """Read a file once. OpError when it changes meanwhile. What is read is not left in the page cache."""
    buffer = bytearray(PIECE)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as source:
        before = os.fstat(source.fileno())
        parts: List[str] = []
        all_of_it, one, at = hashlib.sha256(), hashlib.sha256(), 0
        double = whole and before.st_size > PART  # one part is the whole file
        while True:
            call.check()
            count = source.readinto(view[: min(PIECE, PART - at % PART)])
            if not count:
                break
            one.update(view[:count])
            if double:
                all_of_it.update(view[:count])
            at += count
            add(count)
            if at % PART == 0:
                parts.append(one.hexdigest())
                one = hashlib.sha256()
                os.posix_fadvise(source.fileno(), at - PART, PART, os.POSIX_FADV_DONTNEED)
        if at % PART:
            parts.append(one.hexdigest())
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        after = os.fstat(source.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or at != after.st_size:
        raise OpError("%s changed while it was read: wait until whatever writes it is done" % path)
    digest = all_of_it if double else hashlib.sha256() if not parts else None
    return Sums(at, after.st_mtime_ns, (digest.hexdigest() if digest else parts[0]) if whole else "", parts)


def hash_all(call: Call, paths: Dict[str, str]) -> Dict[str, Sums]:
    """Sums of files by name, the largest first, several at once. The first failure ends all and is raised."""
    sizes = {name: os.path.getsize(path) for name, path in paths.items()}
    progress = Progress(call, sum(sizes.values()), "checksums")
    found: Dict[str, Sums] = {}

    def one(name: str) -> None:
        found[name] = hashed(call, paths[name], True, progress.add)

    at_once(sorted(paths, key=lambda name: -sizes[name]), one)
    return found


def at_once(things: List[Any], work: Callable[[Any], None], threads: Optional[int] = None) -> None:
    """``work`` on each thing, in several threads that come after an engine's. The first failure is raised."""
    waiting: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
    for thing in things:
        waiting.put(thing)
    failed: List[BaseException] = []

    def worker() -> None:
        behind()
        while not failed:
            try:
                thing = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                work(thing)
            except BaseException as error:  # carried over to the caller's thread
                failed.append(error)

    count = min(len(things), threads or min(THREADS, os.cpu_count() or 1))
    running = [threading.Thread(target=worker, daemon=True) for _ in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failed:
        raise failed[0]


def data_end(descriptor: int, start: int, end: int) -> Tuple[int, bool]:
    """How far a file has data from ``start`` without a hole, at most to ``end``; and whether that is ``end``."""
    try:
        if os.lseek(descriptor, start, os.SEEK_DATA) != start:
            return start, False
        hole = os.lseek(descriptor, start, os.SEEK_HOLE)
    except OSError:  # nothing but a hole from there on
        return start, False
    return min(hole, end), hole >= end
