"""What a text does to units, containers and engines: lines of units, scripts and cron tables. Pure but for `programs`.

A line acts on a unit when a tool that starts, stops, restarts or kills is told its name. A line that only asks
(``systemctl is-active``, ``docker inspect``) does not. A script in which the name stands elsewhere and the tool is told
a variable acts on it too.
"""

import fnmatch
import os
import re
import shlex
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

LARGEST = 65536  # bytes of a file that is looked into
SYSTEM = {"start", "restart", "try-restart", "reload-or-restart", "enable", "stop", "kill", "disable", "mask"}
CONTAINERS = {"start", "restart", "run", "stop", "kill", "rm", "pause", "unpause"}
TOOLS = {"systemctl", "service", "invoke-rc.d", "docker", "podman", "docker-compose", "podman-compose", "nerdctl"}
TOOLS |= {"pkill", "killall", "skill", "fuser", "lsof"}
# What of a line is looked at. People's lines are shorter; a file of 64 KiB in one line would take minutes.
LONGEST_LINE = 8192  # characters
MOST_TOOLS, MOST_WORDS = 30, 200  # of a line, and after each of them
# Names of programs that are engines, as pkill and killall are told them.
ENGINES = re.compile(r"(?i)vllm|sglang|llama-server|text-embeddings-router|infinity_emb|^/?(?:usr/bin/)?python3?$")
ENGINE = re.compile(
    r"(?:^|[\s/'\"])(?:(?:vllm['\",\s]+serve|vllm\.entrypoints|sglang\.launch_server|sglang['\",\s]+serve)\b"
    r"|llama-server['\",\s]+-)"
    r"|vllm/vllm-openai|lmsysorg/sglang|ggml-org/llama\.cpp:server"
)
WORDS = re.compile(r"[^\s'\",;|&()\[\]{}<>`]+")


class Target(NamedTuple):
    """Names that are looked for; ``containers`` are those of our units, ``ports`` those of our engines."""

    units: Sequence[str]
    containers: Sequence[str]
    ports: Sequence[int]


class Act(NamedTuple):
    """A line that acts. ``on`` is a unit, a container, ``engines`` (by their program) or ``port N``."""

    on: str
    verb: str
    line: str


def acts(text: str, target: Target) -> List[Act]:
    """What the lines of a text do to the targets, each once."""
    lines = _joined(text)
    found: Dict[Tuple[str, str], Act] = {}
    named = {unit for unit in target.units if any(_stem(unit) in line for line in lines)}
    for line in lines:
        for on, verb in _of_line(line, target, named):
            found.setdefault((on, verb), Act(on, verb, line.strip()))
    return list(found.values())


def starts_engine(text: str) -> Optional[str]:
    """The line of a text that starts an engine; None when there is none."""
    return next((line.strip() for line in _joined(text) if ENGINE.search(line)), None)


def _joined(text: str) -> List[str]:
    """Lines without comments; those that end with a backslash go on in the next."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith(("#", ";"))]


def _stem(unit: str) -> str:
    return unit[: -len(".service")] if unit.endswith(".service") else unit


def _of_line(line: str, target: Target, named: Iterable[str]) -> List[Tuple[str, str]]:
    line = line[:LONGEST_LINE]
    words = WORDS.findall(line)
    found: List[Tuple[str, str]] = []
    tools = 0
    for place, word in enumerate(words):
        tool = os.path.basename(word).lstrip("-@:+!")
        if tool not in TOOLS:
            continue
        tools += 1
        if tools > MOST_TOOLS:
            break
        rest = words[place + 1 : place + 1 + MOST_WORDS]
        if tool == "systemctl":
            verb = next((one for one in rest if one in SYSTEM), None)
            if verb is not None and "--user" not in rest:
                found += [(unit, verb) for unit in _units(rest[rest.index(verb) + 1 :], target, named)]
        elif tool in ("service", "invoke-rc.d") and len(rest) > 1 and rest[1] in SYSTEM:
            found += [(unit, rest[1]) for unit in _units(rest[:1], target, named)]
        elif tool in ("docker", "podman", "docker-compose", "podman-compose", "nerdctl"):
            verb = next((one for one in rest if one in CONTAINERS), None)
            if verb is not None:
                found += [(name, verb) for name in target.containers if name in rest[rest.index(verb) + 1 :]]
        elif tool in ("pkill", "killall", "skill"):
            found += [("engines", tool) for one in rest if not one.startswith("-") and ENGINES.search(one)][:1]
        elif tool in ("fuser", "lsof"):
            ports = [port for port in target.ports if re.search(r"(?<!\d)%d(?!\d)" % port, line)]
            if (tool == "fuser" and any("k" in one for one in rest if one.startswith("-"))) or "kill" in words:
                found += [("port %d" % port, "kill") for port in ports]
    return found


def _units(words: Sequence[str], target: Target, named: Iterable[str]) -> List[str]:
    """Units that the words after a verb mean: by name, by a pattern, or by a variable for a name above."""
    found = [
        unit
        for unit in target.units
        if any(
            word in (unit, _stem(unit)) or (set(word) & set("*?[") and fnmatch.fnmatch(unit, word)) for word in words
        )
    ]
    if not found and any(word.startswith("$") for word in words):
        found = [unit for unit in target.units if unit in named]
    return found


def programs(command: str) -> List[Tuple[str, str]]:
    """Small text files that a command line names, with their text: scripts."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    found = []
    for word in words:
        word = word.lstrip("-@:+!")
        if word.startswith("/") and os.path.isfile(word):
            text = script(word)
            if text:
                found.append((word, text))
    return found


def script(path: str) -> str:
    """Text of a small file that is no program of the machine; empty for any other."""
    text = small_text(path)
    return "" if "\0" in text[:512] else text


def small_text(path: str) -> str:
    """Text of a file of at most LARGEST bytes; empty when it is larger, no plain file, or cannot be read."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > LARGEST:
            return ""
        with open(path, "rb") as source:
            return source.read().decode("utf-8", "replace")
    except OSError:
        return ""


def found_in(text: str, where: str, commands: Iterable[str], target: Target) -> List[Dict[str, Any]]:
    """What commands do, and the scripts that they name: on, verb, the line and the file that it stands in."""
    found = [dict(act._asdict(), where=where) for act in acts(text, target)]
    for command in commands:
        for path, code in programs(command):
            found += [dict(act._asdict(), where=path) for act in acts(code, target)]
    return found
