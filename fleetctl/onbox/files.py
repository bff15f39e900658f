"""Ops on files: ``write``, ``read``, ``digest`` and ``remove``. Nothing is ever half-written."""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import os
import stat
from typing import Any, Dict, List, Optional, Tuple

from fleetctl.onbox.main import Call, OpError, op

READ_LIMIT = 16 * 1024 * 1024  # bytes of a file that `read` returns; larger ones do not belong in one answer


@op("write")
def write(call: Call, files: List[Dict[str, Any]]) -> Dict[str, List[str]]:
    """Write files and return ``{"changed": [paths]}``; files that are already so are left alone.

    Each is ``{path, content | content_b64, mode, owner?, private?}``: ``owner`` is ``user`` or ``user:group`` (default:
    root, as the program runs as root), ``private`` makes missing parents 0700 and not 0755. All are first written in
    full beside their targets and then renamed, so that a full disk or a wrong path changes nothing at all.
    """
    wanted = [_Wanted(**entry) for entry in files]
    todo = [file for file in wanted if not file.is_there()]
    made: List[str] = []
    temps: List[str] = []
    file: Optional[_Wanted] = None
    try:
        for number, file in enumerate(todo):
            call.check()
            _make_parents(file, made)
            temp = os.path.join(file.folder, ".fleetctl-%d-%d-%d.tmp" % (os.getpid(), call.number, number))
            temps.append(temp)
            file.put(temp)
        call.check()
    except BaseException as error:
        _take_back(temps, made)
        if isinstance(error, OSError) and file is not None:
            raise _explained(error, file) from None
        raise
    for done, file in enumerate(todo):
        try:
            os.replace(temps[done], file.path)
        except OSError as error:
            _take_back(temps[done:], [])
            written = ", ".join(other.path for other in todo[:done]) or "nothing"
            raise OpError("cannot replace %s: %s (written before: %s)" % (file.path, error.strerror, written)) from None
    for folder in sorted({file.folder for file in todo} | {os.path.dirname(path) for path in made}):
        _sync_folder(folder)
    return {"changed": [file.path for file in todo]}


class _Wanted:
    """One file as it shall be."""

    def __init__(
        self,
        path: str,
        mode: int = 0o644,
        content: Optional[str] = None,
        content_b64: Optional[str] = None,
        owner: Optional[str] = None,
        private: bool = False,
    ) -> None:
        if not os.path.isabs(path):
            raise OpError("not an absolute path: %s" % path)
        if (content is None) == (content_b64 is None):
            raise OpError("%s: give either content or content_b64" % path)
        self.path = os.path.normpath(path)
        self.folder = os.path.dirname(self.path)
        self.mode = mode
        self.private = private
        self.data = (
            content.encode("utf-8", "surrogateescape") if content is not None else base64.b64decode(content_b64 or "")
        )
        self.owner = _ids(owner)

    def is_there(self) -> bool:
        """Whether the file is already as wanted. Raises OpError when something else has its path."""
        try:
            found = os.lstat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if stat.S_ISDIR(found.st_mode):
            raise OpError("%s is a folder, not a file" % self.path)
        if not stat.S_ISREG(found.st_mode) or found.st_size != len(self.data):
            return False
        if stat.S_IMODE(found.st_mode) != self.mode or (found.st_uid, found.st_gid) != self.owner:
            return False
        with open(self.path, "rb") as file:
            return file.read() == self.data

    def put(self, temp: str) -> None:
        """Write the content to ``temp`` and onto the disk."""
        handle = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            rest = memoryview(self.data)
            while rest:
                rest = rest[os.write(handle, rest) :]
            if self.owner != (os.geteuid(), os.getegid()):
                os.fchown(handle, *self.owner)
            os.fchmod(handle, self.mode)
            os.fsync(handle)
        finally:
            os.close(handle)


def _ids(owner: Optional[str]) -> Tuple[int, int]:
    if owner is None:
        return os.geteuid(), os.getegid()
    import grp
    import pwd

    user, _, group = owner.partition(":")
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise OpError("no user %s here" % user) from None
    try:
        return entry.pw_uid, grp.getgrnam(group).gr_gid if group else entry.pw_gid
    except KeyError:
        raise OpError("no group %s here" % group) from None


def _make_parents(file: _Wanted, made: List[str]) -> None:
    """Make missing parents, outermost first, and note them in ``made``."""
    missing = []
    folder = file.folder
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        os.mkdir(folder, 0o700 if file.private else 0o755)
        made.append(folder)


def _take_back(temps: List[str], made: List[str]) -> None:
    for temp in temps:
        with contextlib.suppress(OSError):  # it may never have been made; the first error is the one to report
            os.unlink(temp)
    for folder in reversed(made):
        with contextlib.suppress(OSError):  # somebody else may have put something there, so it has to stay
            os.rmdir(folder)


def _explained(error: OSError, file: _Wanted) -> OpError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        folder = file.folder
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        found = os.statvfs(folder)
        free = found.f_bavail * found.f_frsize
        return OpError(
            "no space left on %s (%s needs %d bytes, %d free); nothing was changed"
            % (folder, file.path, len(file.data), free)
        )
    return OpError("cannot write %s: %s; nothing was changed" % (file.path, error.strerror))


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@op("read")
def read(call: Call, path: str) -> Optional[Dict[str, Any]]:
    """Return ``{"content", "mode"}`` of a file (``content_b64`` where it is not UTF-8), or None when it is missing."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_size > READ_LIMIT:
                raise OpError("%s has %d bytes, more than the %d that can be read" % (path, found.st_size, READ_LIMIT))
            data = file.read(READ_LIMIT)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise OpError("cannot read %s: %s" % (path, error.strerror)) from None
    mode = stat.S_IMODE(found.st_mode)
    try:
        return {"content": data.decode("utf-8"), "mode": mode}
    except UnicodeDecodeError:
        return {"content_b64": base64.b64encode(data).decode("ascii"), "mode": mode}


@op("digest")
def digest(call: Call, paths: List[str]) -> Dict[str, Optional[str]]:
    """Return ``{path: SHA-256 in hex}``, None for a file that is missing."""
    found: Dict[str, Optional[str]] = {}
    for path in paths:
        call.check()
        try:
            with open(path, "rb") as file:
                total = hashlib.sha256()
                for block in iter(lambda: file.read(1 << 20), b""):
                    total.update(block)
                    call.check()
                found[path] = total.hexdigest()
        except (FileNotFoundError, NotADirectoryError):
            found[path] = None
        except OSError as error:
            raise OpError("cannot read %s: %s" % (path, error.strerror)) from None
    return found


@op("remove")
def remove(call: Call, paths: List[str]) -> Dict[str, List[str]]:
    """Remove files, links and empty folders and return ``{"removed": [paths]}``; what is missing is fine."""
    removed: List[str] = []
    for path in paths:
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                os.rmdir(path)
            else:
                os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            done = ", ".join(removed) or "nothing"
            raise OpError("cannot remove %s: %s (removed before: %s)" % (path, error.strerror, done)) from None
        removed.append(path)
    for folder in sorted({os.path.dirname(path) for path in removed}):
        if os.path.isdir(folder):
            _sync_folder(folder)
    return {"removed": removed}
