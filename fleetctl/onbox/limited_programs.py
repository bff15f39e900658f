"""Which programs an account with limited sudo has run: those that an engine is, and those that run containers."""

import os
import re
from typing import Any, Dict, List

from fleetctl.onbox.limited_places import is_ours

ENGINES = ("podman", "docker")
UNIT = re.compile(r"[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]*")
TRIAL = re.compile(r"fleetctl-[A-Za-z0-9:_.\\@-]+\.service")
WORD = re.compile(r"-m|[A-Za-z0-9_][A-Za-z0-9_.-]*")
IN_CONTAINER = ["run", "--rm", "--pull=never", "--network", "none", "--entrypoint"]
MORE = ("-e", "-m", "--cgroups=disabled", "--security-opt")
LOADS = ("LD_", "PYTHON", "GCONV_PATH", "BASH_ENV", "ENV")


def of_units(args: Dict[str, Any]) -> bool:
    """Units by their names: a path would make a unit of any file."""
    names = [args["unit"]] if "unit" in args else []
    names += [name for key in ("units", "enable", "disable") for name in args.get(key, [])]
    return all(UNIT.fullmatch(name) is not None for name in names)


def of_trial(args: Dict[str, Any]) -> bool:
    """A unit of fleetctl's own, by its name."""
    return TRIAL.fullmatch(args["unit"]) is not None


def of_images(args: Dict[str, Any]) -> bool:
    """Images are asked for by podman or docker, and no name of one is an option."""
    pairs = [list(pair) for key in ("images", "asked") for pair in args.get(key) or []]
    if "engine" in args:
        pairs += [[args["engine"], args[key]] for key in ("image", "reference", "identity", "name") if key in args]
        pairs += [[args["engine"], ""]]
    return all(engine in ENGINES and not name.startswith("-") for engine, name in pairs)


def _env_is_plain(args: Dict[str, Any]) -> bool:
    return not any(name.startswith(LOADS) for name in args.get("env") or {})


def asks_for_help(args: Dict[str, Any]) -> bool:
    """A program's own words on its flags; which program that is, is the matter of who deploys engines."""
    image = args.get("image")
    images = of_images({"images": [image]} if image else {})
    version = args.get("version")
    return (
        images
        and _env_is_plain(args)
        and _asks(args["argv"], "--help")
        and (not version or _asks(version, "--version"))
    )


def _asks(argv: List[str], last: str) -> bool:
    program, *words = argv
    if not words or not words[-1].startswith(last):
        return False
    if program in ["/usr/bin/" + engine for engine in ENGINES]:
        rest = words[len(IN_CONTAINER) : -1]
        return words[: len(IN_CONTAINER)] == IN_CONTAINER and all(w in MORE or not w.startswith("-") for w in rest)
    return program.startswith("/") and all(WORD.fullmatch(word) is not None for word in words[:-1])


def fetches(args: Dict[str, Any]) -> bool:
    """The Python of an engine, with the secrets that fleetctl keeps for it."""
    secrets = args.get("secrets")
    return args["python"].startswith("/") and (not secrets or is_ours(secrets)) and _env_is_plain(args)


def makes_container(args: Dict[str, Any]) -> bool:
    """A container of fleetctl's name, by podman or docker."""
    words = args["words"]
    names = [value for word, value in zip(words, words[1:]) if word == "--name"]  # noqa: B905, RUF007 - Python 3.8
    engine = os.path.basename(words[0]) in ENGINES and words[1] == "run"
    return engine and bool(names) and all(name.startswith("fleetctl-") for name in names)


def program_in(name: str, args: Dict[str, Any]) -> str:
    """For the system's log: which program of the account's choosing an op runs."""
    words = args.get("argv") or [args.get("python") or ""]
    shown = name in ("program_help", "fetch_weights") and isinstance(words, list) and words and words[0]
    return " of %r" % str(words[0])[:200] if shown else ""
