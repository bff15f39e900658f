"""Where an account with limited sudo has files read and written: fleetctl's own places, and folders of weights."""

import os
import re
from typing import Any, Dict, Iterator, List

from fleetctl.onbox.fingerprints import hub_repository

PLACES = ("/etc/fleetctl/", "/var/lib/fleetctl/")
# What ops of their own keep, and trust.
OTHERS = re.compile(r"/var/lib/fleetctl/(setup|weights|loras|programs)([./]|$)")
SYSTEMS = re.compile(r"/(bin|boot|dev|etc|lib[^/]*|proc|root/\.(?!cache/)[^/]*|run|sbin|sys|usr|var/(lib|spool))(/|$)")
CACHES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME")
PATHS = ("folder", "key", "repository", *CACHES)  # whose values are paths
MADE = ("/var/lib/fleetctl", "/var/cache/fleetctl")
MOST = 50_000  # files and links that are looked at


def is_ours(path: str) -> bool:
    """In a place of fleetctl; a path that leaves it again is not, nor what setup keeps for teardown."""
    return os.path.normpath(path) == path and path.startswith(PLACES) and OTHERS.match(path) is None


def is_free(path: str) -> bool:
    """Not where the system, or a user's own settings, are; and no link leads there."""
    if not path.startswith("/") or path.startswith("//") or os.path.normpath(path) != path:
        return False
    return SYSTEMS.match(path) is None and SYSTEMS.match(os.path.realpath(path)) is None


def of_folders(paths: List[str]) -> bool:
    """Folders that a container is given."""
    return all(is_free(path) or (os.path.normpath(path) == path and path.startswith(MADE)) for path in paths)


def of_weights(args: Dict[str, Any]) -> bool:
    """Weights lie in folders of their own, without links to what is none of them; no name leads out."""
    args = {name: value for name, value in args.items() if name != "key"}  # the key of a transfer; no path
    places = list(_places(args))
    return _named_well(args) and all(is_free(path) and _links_well(path) for path in places)


def of_files(args: Dict[str, Any]) -> bool:
    """The same for ops that take folders by themselves."""
    paths = [args["path"]] if "path" in args else [*args.get("folders", []), *args.get("paths", [])]
    return all(is_free(path) and _links_well(path) for path in paths)


def _named_well(value: Any, key: str = "") -> bool:
    if isinstance(value, dict):
        return all(_named_well(one, str(name)) and ".." not in str(name).split("/") for name, one in value.items())
    if isinstance(value, list):
        return all(_named_well(one, key) for one in value)
    if not isinstance(value, str):
        return True
    if value.startswith("/"):
        return is_free(value)
    return ".." not in value.split("/") and (key not in PATHS or not value) and (key != "only" or "/" not in value)


def _places(value: Any) -> Iterator[str]:
    """Folders and files that the arguments of an op lead to."""
    if isinstance(value, dict):
        yield from (value[key] for key in PATHS if key not in CACHES and value.get(key))
        if "repo" in value and "env" in value:
            yield hub_repository(value["repo"], value["env"])
        for one in value.values():
            yield from _places(one)
    elif isinstance(value, list):
        for one in value:
            yield from _places(one)


def _links_well(path: str) -> bool:
    """No link in the folder leads to where the system is."""
    seen = 0
    for folder, folders, files in os.walk(path):
        for name in [*folders, *files]:
            inner = os.path.join(folder, name)
            seen += 1
            if seen > MOST or (os.path.islink(inner) and SYSTEMS.match(os.path.realpath(inner))):
                return False
    return True
