"""A command that starts an engine: from a venv, with Python, or in a container; with what stands before it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from fleetctl.errors import SpecError
from fleetctl.importing.container import Run, read_run, settle
from fleetctl.importing.dialect import Dialect
from fleetctl.importing.dialects import MODULES, PROGRAMS, seen
from fleetctl.importing.flags import read_flags
from fleetctl.importing.found import (
    Found,
    FoundModel,
    Setting,
    Word,
    as_name,
    program,
    set_environment,
    without_secrets,
)
from fleetctl.importing.vllm_flags import VLLM
from fleetctl.importing.words import commands, is_assignment, shell_words

_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")
MOST_RANKS = 64
"""Most boxes that a split is made over."""
_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash", "/usr/bin/sh")
# Words that another command follows.
_BEFORE = ("exec", "nohup", "time", "sudo", "command", "env", "uvx", "setsid")
_OTHERS = {
    "trtllm-serve": "TensorRT-LLM", "tritonserver": "Triton", "text-generation-launcher": "TGI", "ollama": "Ollama",
    "ray": "Ray", "llama_cpp.server": "llama-cpp-python", "llama-swap": "llama-swap", "local-ai": "LocalAI",
}  # fmt: skip
"""What starts engines that fleetctl does not."""
_SILENT = {"export", "set", "true", "echo", "printf", "sleep", "wait", "exit", "cd", "test", "["}
"""Commands of a script that say nothing about an engine."""
_KEYWORDS = ("then", "do", "else", "{", "}", "!", "fi", "done", "if", "for", "while", "esac", "case")
_CLIENTS_NAME = re.compile(r"[\w./:@+-]{1,200}")  # as fleet.yaml has them
_LONGEST_VALUE = 1 << 16  # of a variable that the text sets; each may be made of others
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|\$([A-Za-z_]\w*)")


def read_command(file: str, text: str) -> Found:
    """Everything in a text of commands, of which one starts an engine."""
    found = Found("command")
    variables: dict[str, str] = {}
    for command in commands(shell_words(file, text)):
        words = _expanded(command, variables)
        if all(is_assignment(word) for word in words):
            continue
        model = engine_of(found, words)
        if model is not None:
            found.add(model)
        elif words[0].text not in _SILENT | {*_KEYWORDS}:
            found.note(words[0].place, f"{program(words)} starts no engine that is read here, and was left out")
    return found


def _expanded(command: list[Word], variables: dict[str, str]) -> list[Word]:
    """The words with the variables that the text itself sets; those that it only sets are remembered."""
    words = [Word(_with_variables(word.text, variables), word.place) for word in command]
    rest = words[1:] if words[0].text == "export" else words
    if all(is_assignment(word) for word in rest):
        for word in rest:
            name, _, value = word.text.partition("=")
            if len(value) > _LONGEST_VALUE:
                raise SpecError(f"{word.place}: {name} has more than {_LONGEST_VALUE:,} characters")
            variables[name] = value
    return words


def _with_variables(text: str, variables: dict[str, str]) -> str:
    """With the values of variables, or the defaults that ``${NAME:-default}`` gives them."""
    return _VARIABLE.sub(lambda name: variables.get(name[1] or name[3]) or name[2] or name[0], text)


def engine_of(
    found: Found, words: list[Word], run: Run | None = None, environment: Mapping[str, Setting] | None = None
) -> FoundModel | None:
    """The engine that a command starts; None where it starts none, which is noted when it looks as if it might.

    ``run`` is the container that it runs in, where that is known already; ``environment`` has the variables that are
    set before the command is.
    """
    model = FoundModel(words[0].place, "", environment=dict(environment or {}))
    words = _without_wrappers(found, model, words)
    if not words:
        return None
    first, place = words[0].text, words[0].place
    name = first.rsplit("/", 1)[-1]
    if name in ("docker", "podman", "nerdctl") and len(words) > 1:
        rest = words[2:] if words[1].text == "container" else words[1:]
        if rest and rest[0].text == "run":
            outer, model.environment = model.environment, {}
            run, inside = read_run(found, model, "podman" if name == "podman" else "docker", rest[1:])
            if run.image is None:
                found.note(place, f"{name} run has no image")
                return None
            for variable, setting in model.environment.items():
                if setting.value == {"env": variable}:  # passed on; others stay outside
                    model.environment[variable] = outer.get(variable, setting)
            return _in_container(found, model, run, inside)
        return None
    if first in _SHELLS and len(words) > 2 and words[1].text in ("-c", "-lc", "-ec"):
        inner = commands(shell_words(words[2].place.file, words[2].text, words[2].place.line))
        engines = [one for command in inner if (one := engine_of(found, command, run, model.environment)) is not None]
        return engines[0] if engines else None
    serve = _serve(words)
    if serve is None:
        for word, what in _OTHERS.items():
            if name == word or any(word in other.text for other in words[1:3] if _PYTHON.fullmatch(first)):
                found.note(place, f"{what} is started here, which fleetctl does not start")
        return None
    return _engine(found, model, *serve, run)


def _engine(
    found: Found, model: FoundModel, dialect: Dialect, program: Word | None, flags: list[Word], run: Run | None
) -> FoundModel:
    """An engine with its flags, and what it is launched from: ``program``, or the image of ``run``."""
    read_flags(found, model, flags, dialect)
    if model.port is None:
        model.port = (dialect.image_port if run is not None else None) or dialect.port
    if run is not None:
        settle(found, model, run, dialect)
    elif program is not None:
        _launch(found, model, program, dialect)
    return complete(found, model, dialect)


def _without_wrappers(found: Found, model: FoundModel, words: list[Word]) -> list[Word]:
    """The command itself, without variables and programs that stand before it."""
    while words:
        first = words[0].text
        if is_assignment(words[0]):
            name, _, value = first.partition("=")
            set_environment(found, model, name, value, words[0].place)
        elif first in ("uv", "poetry", "pipenv", "conda") and len(words) > 1 and words[1].text == "run":
            words = words[1:]
        elif first in ("numactl", "taskset", "nice", "ionice", "chrt", "systemd-run"):
            at = next(
                (place for place, word in enumerate(words) if seen([word.text]) or _PYTHON.fullmatch(word.text)), 0
            )
            found.note(words[0].place, f"{first} and its options are left out: the engine's unit has none of it")
            words = words[max(1, at) - 1 :]
        elif first not in _BEFORE and first not in _KEYWORDS:
            return words
        words = words[1:]
    return words


def _serve(words: list[Word]) -> tuple[Dialect, Word, list[Word]] | None:
    """The kind of engine, what it is started by, and the words behind that."""
    script = words[1].text.rpartition("/")[2] if len(words) > 1 and "/" in words[1].text else ""
    if _PYTHON.fullmatch(words[0].text) and script in PROGRAMS:
        words = words[1:]
    first = words[0].text.rpartition("/")[2]
    dialect = PROGRAMS.get(first)
    if dialect is not None:
        verbs = dialect.programs[first]
        if not verbs:
            return dialect, words[0], words[1:]
        if len(words) > 1 and words[1].text in verbs:
            return dialect, words[0], words[2:]
    if _PYTHON.fullmatch(words[0].text) and len(words) > 2 and words[1].text == "-m" and words[2].text in MODULES:
        rest = words[3:]
        rest = rest[1:] if rest and rest[0].text == "serve" else rest
        return MODULES[words[2].text], words[0], rest
    return None


def _launch(found: Found, model: FoundModel, program: Word, dialect: Dialect) -> None:
    """The Python environment, or the program by itself; assumed where the command leaves it to the PATH."""
    path, kind = program.text, dialect.runtime
    folder = re.fullmatch(r"(.+)/bin/[^/]+", path)
    if "/" in path and not path.startswith("/"):
        told = folder[1] if folder and dialect.in_python else path
        found.note(program.place, f"{told} is no whole path: systemd starts a program by one")
    if dialect.in_python:
        if folder and folder[1].startswith("/") and folder[1] not in ("/usr", "/usr/local"):
            model.settings["launch"] = Setting({"venv": folder[1]})
            return
        usual = f"/opt/{kind}"
        found.note(model.place, f"which Python environment has {kind} is not said: {usual} is assumed")
        model.settings["launch"] = Setting({"venv": usual}, f"the environment that has {kind}", assumed=True)
    elif path.startswith("/"):
        model.settings["launch"] = Setting({"program": path})
    else:
        name = path.rpartition("/")[2]
        usual = f"/usr/local/bin/{name}"
        found.note(model.place, f"where {name} lies is not said: {usual} is assumed")
        model.settings["launch"] = Setting({"program": usual}, f"where {name} lies", assumed=True)


def _in_container(found: Found, model: FoundModel, run: Run, words: list[Word]) -> FoundModel | None:
    """The engine of a container. Images of engines start them themselves: their words are flags."""
    assert run.image is not None
    if run.entrypoint:
        words = [Word(run.entrypoint, run.image.place), *words]
    return container_engine(found, model, run, words)


def container_engine(found: Found, model: FoundModel, run: Run, words: list[Word]) -> FoundModel | None:
    """An engine from its container and the words that are given to it; ``model`` has its environment so far."""
    words = _without_wrappers(found, model, words)
    served = _serve(words) if words else None
    if served is not None:
        return _engine(found, model, *served, run)
    if words and words[0].text in _SHELLS:
        return engine_of(found, words, run, model.environment)
    dialect = _of_image(found, model, run, words)
    if dialect is None:
        return None
    if words and words[0].text in dialect.image_words:
        words = words[1:]
    return _engine(found, model, dialect, None, words, run)


def _of_image(found: Found, model: FoundModel, run: Run, words: list[Word]) -> Dialect | None:
    """The kind of engine that an image starts when it is given these words."""
    image = run.image.text if run.image is not None else ""
    dialect = seen([image])
    flags = bool(words) and words[0].text.startswith("-")
    if dialect is not None:
        if words and words[0].text in dialect.image_words:
            return dialect
        told = bool(set(dialect.variables) & set(model.environment)) if not words else dialect.positional
        others = dialect.asks is not None and dialect.asks.search(image) is not None
        return dialect if (flags or told) and not others else None
    for word, what in _OTHERS.items():
        if run.image is not None and word.removesuffix("-launcher") in image:
            found.note(run.image.place, f"{what} is started here, which fleetctl does not start")
            return None
    # An image of somebody's own: that it has vLLM is seen from the flags.
    return VLLM if flags and any(VLLM.name(word.text) in VLLM.keys for word in words) else None


def complete(found: Found, model: FoundModel, dialect: Dialect) -> FoundModel:
    """The engine with what its entry has to have: a name, weights, a context."""
    settings, place = model.settings, model.place
    weights = settings.get("weights")
    if weights is None:
        found.note(place, "no model is named: write weights: yourself")
        settings["weights"] = weights = Setting(dialect.example, "a path on the boxes, or a hub id", assumed=True)
    path, told_path = str(weights.value), without_secrets([Word(str(weights.value), place)])
    if path[:1] in ("~", ".", "$") or (path.count("/") > 1 and not path.startswith("/")):
        told = path.rstrip("/").rsplit("/", 1)[-1].strip("$.~{}") or "MODEL"
        found.note(place, f"{told_path} is neither a whole path on the boxes nor a hub id: /models/{told} is assumed")
        settings["weights"] = weights = Setting(f"/models/{told}", f"{told_path} where it came from", assumed=True)
    if model.ranks > MOST_RANKS:
        found.note(place, f"{model.ranks:,} ranks are more than {MOST_RANKS} boxes: one box is assumed")
        model.ranks, model.pipeline = 1, False
    if "context" not in settings:
        told = "how long requests may be is not said, and engines take what the model has"
        found.note(place, f"{told}: {dialect.context} is assumed")
        settings["context"] = Setting(dialect.context, "the longest request in tokens", assumed=True)
    if str(weights.value).startswith("/") and settings.pop("revision", None) is not None:
        found.note(place, "--revision is left out: only a hub id has a revision")
    _name(found, model, str(weights.value), dialect)
    return model


def _name(found: Found, model: FoundModel, weights: str, dialect: Dialect) -> None:
    """The key of the entry, and the names that clients use where they are others."""
    settings = model.settings
    served = settings.pop("served_as", None)
    if served is None:
        served = Setting([dialect.named(weights)], f"as the engine names it without {dialect.name_flag}")
    names = [str(name) for name in served.value] if isinstance(served.value, list) else []
    for name in names:
        if not _CLIENTS_NAME.fullmatch(name):
            told = without_secrets([Word(name[:60], model.place)])
            found.note(model.place, f"clients' name {told!r} is left out: they have letters, digits and . / : @ + - _")
    good = [name for name in names if _CLIENTS_NAME.fullmatch(name)]
    model.name = as_name((good[0] if good else weights).removesuffix(".gguf"))
    if good and good != [model.name]:
        settings["served_as"] = replace(served, value=list(good))
