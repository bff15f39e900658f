"""Trying a container: it is made with all its options, devices and mounts, and removed; its program is not started."""

import os
from typing import Any, Dict, List

from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.process import run

LIMIT = 300  # seconds; a storage driver that copies takes a while with a large image
LEFT_OUT = {"--replace": 1, "--pidfile": 2}
"""Words of `run` that are of no use here → how many words they are."""


@op("container_try")
def container_try(call: Call, words: List[str], folders: List[str]) -> Dict[str, Any]:
    """Make the container that ``words`` (``PROGRAM run …``) would run, under another name, and remove it.

    Podman sets it up to the point where it would be started; Docker finds what is wrong with devices and mounts only
    at the start. ``folders`` are made where they are missing, as the unit would. OpError with the engine's own words.
    """
    for folder in folders:
        os.makedirs(folder, mode=0o755, exist_ok=True)
    program = os.path.basename(words[0])
    name, argv = tried(words)
    remove = [program, "rm", "--force", *(["--ignore", "--time", "0"] if program == "podman" else []), name]
    run(call, remove, timeout=LIMIT)
    try:
        _done(run(call, argv, timeout=LIMIT), program)
        if program == "podman":
            _done(run(call, [program, "init", name], timeout=LIMIT), program)
    finally:
        run(Call(call.number, lambda message: None), remove, timeout=LIMIT)
    return {}


def tried(words: List[str]) -> "tuple[str, List[str]]":
    """Name and command line of the container that is only made."""
    program, _, *rest = words
    name, argv = "", [os.path.basename(program), "create"]
    while rest:
        word = rest.pop(0)
        if word in LEFT_OUT:
            del rest[: LEFT_OUT[word] - 1]
        elif word == "--name":
            name = rest.pop(0) + "-try"
            argv += [word, name]
        elif word == "--entrypoint":  # what follows it is the image and the engine's own words
            return name, [*argv, word, *rest]
        else:
            argv.append(word)
    return name, argv


def _done(told: Dict[str, Any], program: str) -> None:
    if told["rc"] != 0:
        lines = [line for line in told["err"].splitlines() if line.strip() and not line.startswith("See '")]
        raise OpError("%s cannot make the container: %s" % (program, " ".join(" ".join(lines).split())[-400:]))
