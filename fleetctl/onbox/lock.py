"""Who may change the fleet: the lock on the lead box, and on every box the claim of the program that acts for him.

The lock is a file with a heartbeat; it survives everything. A claim is a lock that the kernel keeps for this program
and gives up when the program ends, however that happens. It says whether the holder of the lock is still connected,
and keeps one who has lost the lock from doing anything more: the new holder ends his program on each box.
"""

import contextlib
import fcntl
import json
import os
import signal
import time
from typing import Any, Dict, Iterator, List, Optional, TextIO

from fleetctl.onbox.boot import boot_of
from fleetctl.onbox.kept import VAR
from fleetctl.onbox.main import Call, op
from fleetctl.onbox.state import private_folder, write_json

LOCK = VAR + "/lock.json"
GUARD = "/run/fleetctl-lock.guard"
CLAIM = "/run/fleetctl-claim.json"
MOVING = VAR + "/moving.json"  # on every box of a move from its beginning to its end, also when it is cut off
ACTING = "/run/fleetctl-guard.lock"  # held by the guard of this box (fleetctl/guard) while it does something
LET_GO = 4.0  # seconds in which a guard that has a copy out of the proxy lets it back in, once it sees the claim
HEARD = 1.0  # seconds in which every proxy asks the guard again, and hears that the copy is in
PATIENCE = 6.0  # seconds that an earlier program gets to end by itself: its client is gone, its last calls are not
GUARD_STATUS = "/run/fleetctl-guard/status.json"
FIELDS: Dict[str, Any] = {
    "token": str,
    "who": str,
    "host": str,
    "pid": int,
    "command": str,
    "since": (int, float),
}  # what every lock has, and of what kind

_claimed: List[TextIO] = []  # the open file that carries this program's claim


class NotHolderError(Exception):
    """Somebody else holds the fleet now."""


def _private(path: str) -> TextIO:
    """A file to be locked, open for appending: whoever can open it can lock it too, so that is root alone."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    stream = os.fdopen(descriptor, "a+", encoding="utf-8")
    os.fchmod(stream.fileno(), 0o600)
    return stream


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    """Looking at the lock and changing it happen as one, whichever programs do it."""
    with _private(GUARD) as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield


def _read_lock() -> Optional[Dict[str, Any]]:
    try:
        with open(LOCK, encoding="utf-8") as source:
            lock = json.load(source)
    except (FileNotFoundError, ValueError):
        return None
    return lock if _is_lock(lock) else None


def _is_lock(lock: Any) -> bool:
    """It has all that a lock has; one that was damaged with the box says nothing about anybody."""
    if not isinstance(lock, dict) or not lock.get("token"):
        return False
    return all(isinstance(lock.get(key), kind) for key, kind in FIELDS.items()) and lock["since"] >= 0


def lock_state() -> Optional[Dict[str, Any]]:
    """Who holds the fleet; None: nobody.

    ``age`` and ``silent`` (since the last heartbeat, or since this box booted) are in seconds; ``connected`` says
    whether the holder's program runs here.
    """
    lock = _read_lock()
    if lock is None:
        return None
    now = time.time()
    try:
        heard = max(os.stat(LOCK).st_mtime, _booted_at())
    except FileNotFoundError:
        return None
    claim = read_claim()
    connected = claim.get("token") == lock["token"] and _is_claimed()
    return dict(lock, age=round(now - lock["since"], 1), silent=round(max(0.0, now - heard), 1), connected=connected)


def _booted_at() -> float:
    """When PID 1 began, in seconds since the epoch."""
    with open("/proc/1/stat") as source:
        ticks = int(source.read().rsplit(")", 1)[1].split()[19])
    with open("/proc/uptime") as source:
        up = float(source.read().split()[0])
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")


@op("lock_take")
def lock_take(call: Call, holder: Dict[str, Any], instead_of: str = "") -> Dict[str, Any]:
    """Take the fleet's lock. ``{"taken": False, "lock": …}`` when somebody else has it.

    ``holder`` has token, who, host, pid, owner and command. ``instead_of`` is the token of a lock to be taken over:
    of two who try that at once, one succeeds.
    """
    private_folder(VAR)
    with _guarded():
        lock = lock_state()
        if lock is not None and lock["token"] != instead_of:
            return {"taken": False, "lock": lock}
        record = dict(holder, since=time.time())
        write_json(call, LOCK, record)
    return {"taken": True, "lock": record}


@op("lock_beat")
def lock_beat(call: Call, token: str) -> Dict[str, Any]:
    """Say that the holder is alive. NotHolderError when the lock is no longer the holder's."""
    with _guarded():
        lock = _read_lock()
        if lock is None or lock["token"] != token:
            raise NotHolderError("the lock was taken over by %s" % ((lock or {}).get("who") or "somebody"))
        os.utime(LOCK)  # the heartbeat is the time of the file: that needs no room on a full disk
    return {}


@op("lock_release")
def lock_release(call: Call, token: str) -> Dict[str, Any]:
    """Give the lock back if it is the holder's own."""
    with _guarded():
        lock = _read_lock()
        if lock is None or lock["token"] != token:
            return {"released": False}
        os.unlink(LOCK)
    return {"released": True}


@op("claim")
def claim(
    call: Call, token: str, who: str, instead_of: str = "", again: bool = False, aside: bool = False
) -> Dict[str, str]:
    """Make this program the one that acts on this box for the holder of the lock ``token``; returns the ``boot``.

    An earlier program gets a while to end, as its client is gone. It is ended if it does not and was started for the
    same holder (whose connection broke) or for ``instead_of`` (whose lock was taken over). With ``again`` nobody else
    may have had the box meanwhile. ``aside``: engines are not touched, and the guard goes on with its work, for however
    long that takes. Raises NotHolderError.
    """
    stream = _private(CLAIM)  # it stays open as long as the program lives
    begin = time.monotonic()
    while not (_claimed or _try(stream, fcntl.LOCK_EX)):
        holder = read_claim()
        if again and holder.get("token") != token:
            raise NotHolderError("%s took the fleet over" % (holder.get("who") or "somebody"))
        if time.monotonic() - begin > PATIENCE:
            if not holder or holder["token"] not in (token, instead_of):
                raise NotHolderError("%s works on this box" % (holder.get("who") or "somebody"))
            with contextlib.suppress(ProcessLookupError):
                os.kill(holder["pid"], signal.SIGKILL)
        call.check()
        time.sleep(0.05)
    if again and read_claim().get("token") not in (token, None):
        raise NotHolderError("%s took the fleet over meanwhile" % read_claim().get("who"))
    acts = not _claimed or bool(read_claim().get("aside"))  # the guard has not stood back for this program yet
    stream.truncate(0)
    stream.write(json.dumps({"token": token, "pid": os.getpid(), "who": who, "aside": aside}))
    stream.flush()
    if not _claimed:
        _claimed.append(stream)
    if acts and not aside:
        _stop_the_guard(call)
    return {"boot": boot_of()}


@op("claim_release")
def claim_release(call: Call) -> Dict[str, Any]:
    """Act for nobody any more, and go on being there: the guard may act, and others may move the fleet."""
    while _claimed:
        _claimed.pop().close()
    return {}


def _stop_the_guard(call: Call) -> None:
    """Once the claim is there the guard begins nothing more; what it has begun is waited for, and what it took out."""
    with _private(ACTING) as acting:
        fcntl.flock(acting, fcntl.LOCK_EX)
    if not _guard_has_one_out():
        return
    deadline = time.monotonic() + LET_GO
    while _guard_has_one_out() and time.monotonic() < deadline:
        call.check()
        time.sleep(0.1)
    # Or a server that is about to come up would be seen down, and neither drained nor closed.
    call.cancelled.wait(HEARD)


def _guard_has_one_out() -> bool:
    """What the guard says of the last second; nothing when none runs."""
    try:
        with open(GUARD_STATUS, encoding="utf-8") as source:
            told = json.load(source)
        return time.time() - told["at"] < LET_GO and any(engine["out"] for engine in told["engines"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


@op("move_begin")
def move_begin(call: Call, move: str, operation: str, who: str) -> Dict[str, Any]:
    """Note that a move is under way: the guard of this box does nothing until its end, whether it is cut off or not."""
    private_folder(VAR)
    write_json(call, MOVING, {"move": move, "operation": operation, "who": who, "since": time.time()})
    return {}


def moving() -> Optional[Dict[str, Any]]:
    """The move that was begun on this box and has not ended here; None: there is none."""
    try:
        with open(MOVING, encoding="utf-8") as source:
            told = json.load(source)
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) and isinstance(told.get("move"), str) else None


@op("move_end")
def move_end(call: Call, move: str) -> Dict[str, Any]:
    """The move is over, or was never heard of: the guard may act again."""
    with contextlib.suppress(FileNotFoundError):
        if (moving() or {}).get("move", move) == move:
            os.unlink(MOVING)
    return {}


def require_claim() -> None:
    """NotHolderError unless this program acts for the holder of the lock."""
    if not _claimed:
        raise NotHolderError("this program does not act for the holder of the fleet's lock")


def read_claim() -> Dict[str, Any]:
    """Whose program last claimed this box; empty when none did."""
    try:
        with open(CLAIM, encoding="utf-8") as source:
            return dict(json.load(source))
    except (FileNotFoundError, ValueError):
        return {}


def _is_claimed() -> bool:
    try:
        with open(CLAIM) as stream:
            return not _try(stream, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def _try(stream: TextIO, kind: int) -> bool:
    try:
        fcntl.flock(stream, kind | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
