"""Where the weights of a model lie on this box, and which files belong to them.

A *place* is asked for as ``{"folder": PATH}``, a folder or one file, or as ``{"repo": ID, "revision": R, "env": {…}}``,
a model in the hub's cache as an engine with this environment reads it.
"""

import os
from typing import Any, Dict, List, Optional, Tuple

from fleetctl.onbox.fingerprints import hub_repository, snapshot
from fleetctl.onbox.main import OpError

MOST = 20_000  # files of one model
ARRIVING = ".fleetctl-arriving"  # ends the name of the folder beside, in which files are until they are proven
RETIRED = ".fleetctl-retired"  # ends the name of what is about to be removed


class Place:
    """``root`` is the folder of the files; ``only`` the one file that belongs, where weights are a file.

    ``repository`` is the folder of a model in the hub's cache (empty: not in the cache), ``commit`` the revision there.
    """

    def __init__(self, root: str, only: str = "", repository: str = "", commit: str = "") -> None:
        self.root, self.only, self.repository, self.commit = root, only, repository, commit

    @property
    def key(self) -> str:
        """What tells it from every other place of this box."""
        return os.path.join(self.root, self.only) if self.only else self.root

    @property
    def staging(self) -> str:
        """The folder beside, on the same file system, in which files arrive."""
        return self._beside(ARRIVING)

    @property
    def retired(self) -> str:
        """Where it is put before it is removed for good."""
        return self._beside(RETIRED)

    def _beside(self, ending: str) -> str:
        if self.repository:
            return os.path.join(self.repository, "." + self.commit + ending)
        folder, name = os.path.split(self.key)
        return os.path.join(folder, "." + name + ending)

    def path(self, name: str) -> str:
        """Path of a file by its name in the model."""
        return os.path.join(self.root, *name.split("/"))

    def there(self) -> bool:
        """Something is at the place."""
        return os.path.exists(self.key)


def place_of(asked: Dict[str, Any], commit: str = "", file: bool = False) -> Optional[Place]:
    """The place that is asked for; None: the cache has no such model, and no ``commit`` says which it is to have.

    ``file``: a path that is not there yet is that of a file.
    """
    if "folder" in asked:
        path = os.path.normpath(asked["folder"])
        if os.path.isfile(path) or (file and not os.path.isdir(path)):
            return Place(os.path.dirname(path), only=os.path.basename(path))
        return Place(path)
    found = None if commit else snapshot(asked["repo"], asked["revision"], asked["env"])
    commit = commit or os.path.basename(found or "")
    if not commit:
        return None
    repository = hub_repository(asked["repo"], asked["env"])
    return Place(os.path.join(repository, "snapshots", commit), repository=repository, commit=commit)


def names_in(place: Place) -> List[str]:
    """Names of the files of a model, with ``/`` between folders, in order. Hidden files and folders do not belong."""
    if place.only:
        return [place.only] if os.path.isfile(place.key) else []
    found: List[str] = []
    for folder, folders, files in os.walk(place.root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        inner = os.path.relpath(folder, place.root)
        for name in sorted(files):
            if not name.startswith(".") and os.path.isfile(os.path.join(folder, name)):
                found.append(name if inner == "." else "/".join([*inner.split(os.sep), name]))
        if len(found) > MOST:
            raise OpError("%s has more than %d files: is it a model?" % (place.root, MOST))
    return sorted(found)


def refs_of(place: Place) -> List[str]:
    """Names of the branches and tags that the cache has for the commit of a place."""
    folder = os.path.join(place.repository, "refs")
    found = []
    for inner, _, names in os.walk(folder) if place.repository else []:
        for name in names:
            path = os.path.join(inner, name)
            try:
                with open(path) as source:
                    if source.read(100).strip() == place.commit:
                        found.append(os.path.relpath(path, folder))
            except (OSError, ValueError):
                continue
    return sorted(found)


def blob_of(place: Place, name: str) -> str:
    """Name of the blob that a file of a snapshot is a link to: its etag on the hub; empty where it is a plain file."""
    path = place.path(name)
    if not place.repository or not os.path.islink(path):
        return ""
    target = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
    folder, blob = os.path.split(target)
    return blob if folder == os.path.join(place.repository, "blobs") else ""


def safe(name: str) -> str:
    """The name of a file of a model, which stays inside of its folder. OpError for any other."""
    parts = name.split("/")
    if not name or any(part in ("", ".", "..") or part.startswith(".") or "\0" in part for part in parts):
        raise OpError("%r is no name of a file of a model" % name)
    return name


def room_of(path: str) -> Tuple[int, int]:
    """Free bytes of the file system that a path is on, or will be, and the number of that device."""
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "/"
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, os.stat(path).st_dev
