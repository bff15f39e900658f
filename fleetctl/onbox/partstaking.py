"""The parts that a box lacks, as they come: proven, written, and on their way to the disk while more come."""

import hashlib
import os
import queue
import socket
import threading
from collections import deque
from typing import Deque, Dict, List, Optional, Tuple

from fleetctl.onbox.arrival import Goal, Job, span
from fleetctl.onbox.main import Call, CancelledError, OpError
from fleetctl.onbox.partsums import PIECE, Progress, behind
from fleetctl.onbox.partswire import ask, take
from fleetctl.onbox.weightplaces import Place

AHEAD = 2  # parts asked for at a time, so that the link does not rest between two
FLUSH_EVERY = 4  # parts; so often the disk is told to write
TRIES = 2  # at a part whose checksum is wrong


class Taking:
    """The parts that are wanted, shared by the connections that bring them."""

    def __init__(self, call: Call, place: Place, goal: Goal, jobs: List[Job], gentle: bool) -> None:
        self._call, self._gentle = call, gentle
        self._names = sorted(goal["files"])
        self._files = goal["files"]
        self._folder = os.path.join(place.staging, "files")
        self._jobs: "queue.SimpleQueue[Tuple[int, int, int, int]]" = queue.SimpleQueue()
        for number, part, ahead in jobs:
            self._jobs.put((number, part, ahead, 1))
        self._opened: Dict[int, int] = {}
        self._lock = threading.Lock()
        total = sum(span(self._files[self._names[n]]["size"], part)[1] - ahead for n, part, ahead in jobs)
        self.progress = Progress(call, total, "receiving")
        self.failed: Optional[BaseException] = None
        self._flush: "queue.SimpleQueue[Optional[int]]" = queue.SimpleQueue()
        self._writing = threading.Thread(target=self._write_out, daemon=True)
        self._writing.start()

    def stream(self, sock: socket.socket) -> None:
        """Ask one connection for parts until none is left, or something failed."""
        if self._gentle:
            behind()
        asked: Deque[Tuple[int, int, int, int]] = deque()
        buffer = memoryview(bytearray(PIECE))
        try:
            while self.failed is None:
                while len(asked) < AHEAD:
                    try:
                        job = self._jobs.get_nowait()
                    except queue.Empty:
                        break
                    start, length = self._span(job)
                    ask(sock, job[0], start + job[2], length - job[2])
                    asked.append(job)
                if not asked:
                    return
                self._take(sock, asked.popleft(), buffer)
        except (OSError, OpError, CancelledError) as error:
            self.failed = self.failed or error

    def _span(self, job: Tuple[int, int, int, int]) -> Tuple[int, int]:
        return span(self._files[self._names[job[0]]]["size"], job[1])

    def _take(self, sock: socket.socket, job: Tuple[int, int, int, int], buffer: memoryview) -> None:
        number, part, ahead, tries = job
        start, length = self._span(job)
        handle, digest = self._file(number), hashlib.sha256()
        at = start
        while at < start + ahead:
            count = os.preadv(handle, [buffer[: min(PIECE, start + ahead - at)]], at)
            digest.update(buffer[:count])
            at += count
        while at < start + length:
            count = take(self._call, sock, buffer[: min(PIECE, start + length - at)])
            digest.update(buffer[:count])
            os.pwrite(handle, buffer[:count], at)
            at += count
            self.progress.add(count)
        self._flush.put(handle)
        if digest.hexdigest() == self._files[self._names[number]]["parts"][part]:
            return
        if tries == TRIES:
            raise OpError(
                "part %d of %s arrives other than its checksum says: `fleetctl weights verify --full` finds out "
                "whether the box that sends it still has what it had" % (part, self._names[number])
            )
        self._jobs.put((number, part, 0, tries + 1))

    def _file(self, number: int) -> int:
        with self._lock:
            if number not in self._opened:
                path = os.path.join(self._folder, *self._names[number].split("/"))
                self._opened[number] = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            return self._opened[number]

    def _write_out(self) -> None:
        """Have the disk write what came while more comes: the kernel would begin with it late, or at the very end."""
        dirty: List[int] = []
        while True:
            handle = self._flush.get()
            if handle is None:
                return
            dirty.append(handle)
            if len(dirty) >= FLUSH_EVERY:
                for one in set(dirty):
                    os.fdatasync(one)
                dirty = []

    def close(self) -> None:
        """Close all files."""
        self._flush.put(None)
        self._writing.join()
        for handle in self._opened.values():
            os.close(handle)
