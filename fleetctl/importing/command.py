"""A command that starts an engine: from a venv, with Python, or in a container; with what stands before it."""

from __future__ import annotations

import re

from fleetctl.errors import SpecError
from fleetctl.importing.container import Run, read_run, settle
from fleetctl.importing.flags import Dialect, read_flags
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
from fleetctl.importing.sglang_flags import SGLANG
from fleetctl.importing.vllm_flags import VLLM
from fleetctl.importing.words import commands, is_assignment, shell_words
from fleetctl.proxy.lint.findings import Place

_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")
_PROGRAMS = {"vllm": VLLM, "sglang": SGLANG}
_MODULES = {
    "vllm.entrypoints.openai.api_server": VLLM,
    "vllm.entrypoints.cli.main": VLLM,
    "vllm.entrypoints.api_server": VLLM,
    "sglang.launch_server": SGLANG,
}
MOST_RANKS = 64
"""Most boxes that a split is made over."""
_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash", "/usr/bin/sh")
# Words that another command follows.
_BEFORE = ("exec", "nohup", "time", "sudo", "command", "env", "uvx", "setsid")
_OTHERS = {
    "llama-server": "the llama.cpp server", "trtllm-serve": "TensorRT-LLM",
    "text-generation-launcher": "TGI", "text-embeddings-router": "TEI", "infinity_emb": "infinity", "ollama": "Ollama",
    "ray": "Ray",
}  # fmt: skip
_SILENT = {"export", "set", "true", "echo", "printf", "sleep", "wait", "exit", "cd", "test", "["}
"""Commands of a script that say nothing about an engine."""
_KEYWORDS = ("then", "do", "else", "{", "}", "!", "fi", "done", "if", "for", "while", "esac", "case")
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


def engine_of(found: Found, words: list[Word], run: Run | None = None) -> FoundModel | None:
    """The engine that a command starts; None where it starts none, which is noted when it looks as if it might.

    ``run`` is the container that it runs in, where that is known already.
    """
    model = FoundModel(words[0].place, "")
    words = _without_wrappers(found, model, words)
    if not words:
        return None
    first, place = words[0].text, words[0].place
    name = first.rsplit("/", 1)[-1]
    if name in ("docker", "podman", "nerdctl") and len(words) > 1:
        rest = words[2:] if words[1].text == "container" else words[1:]
        if rest and rest[0].text == "run":
            run, inside = read_run(found, model, "podman" if name == "podman" else "docker", rest[1:])
            if run.image is None:
                found.note(place, f"{name} run has no image")
                return None
            return _in_container(found, model, run, inside)
        return None
    if first in _SHELLS and len(words) > 2 and words[1].text in ("-c", "-lc", "-ec"):
        inner = commands(shell_words(words[2].place.file, words[2].text, words[2].place.line))
        engines = [engine for command in inner if (engine := engine_of(found, command, run)) is not None]
        return engines[0] if engines else None
    serve = _serve(found, words)
    if serve is None:
        for word, what in _OTHERS.items():
            if name == word or any(word in other.text for other in words[1:3] if _PYTHON.fullmatch(first)):
                found.note(place, f"{what} is started here: fleetctl starts vLLM alone")
        return None
    dialect, venv, flags = serve
    read_flags(found, model, flags, dialect)
    if run is None:
        _venv(found, model, venv, dialect, place)
    return complete(found, model)


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
                (place for place, word in enumerate(words) if "vllm" in word.text or _PYTHON.fullmatch(word.text)), 0
            )
            found.note(words[0].place, f"{first} and its options are left out: the engine's unit has none of it")
            words = words[max(1, at) - 1 :]
        elif first not in _BEFORE and first not in _KEYWORDS:
            return words
        words = words[1:]
    return words


def _serve(found: Found, words: list[Word]) -> tuple[Dialect, str | None, list[Word]] | None:
    """The kind of engine, the venv that it is started from (None: not said), and the words behind ``serve``."""
    script = words[1].text.rpartition("/")[2] if len(words) > 1 and "/" in words[1].text else ""
    if _PYTHON.fullmatch(words[0].text) and script in _PROGRAMS:
        words = words[1:]
    first = words[0].text
    dialect = _PROGRAMS.get(first.rpartition("/")[2])
    if dialect is not None and len(words) > 1 and words[1].text == "serve":
        return dialect, _venv_of(found, words[0]), words[2:]
    if _PYTHON.fullmatch(first) and len(words) > 2 and words[1].text == "-m" and words[2].text in _MODULES:
        rest = words[3:]
        rest = rest[1:] if rest and rest[0].text == "serve" else rest
        return _MODULES[words[2].text], _venv_of(found, words[0]), rest
    return None


def _venv_of(found: Found, program: Word) -> str | None:
    folder = re.fullmatch(r"(.+)/bin/[^/]+", program.text)
    if folder is None or folder[1] in ("", "/usr", "/usr/local"):
        return None
    if not folder[1].startswith("/"):
        found.note(program.place, f"{folder[1]} is no whole path: systemd starts a program by one")
        return None
    return folder[1]


def _venv(found: Found, model: FoundModel, venv: str | None, dialect: Dialect, place: Place) -> None:
    if venv is None:
        usual = f"/opt/{dialect.runtime}"
        found.note(place, f"which Python environment has {dialect.runtime} is not said: {usual} is assumed")
        model.settings["launch"] = Setting({"venv": usual}, f"the environment that has {dialect.runtime}", assumed=True)
    else:
        model.settings["launch"] = Setting({"venv": venv})


def _in_container(found: Found, model: FoundModel, run: Run, words: list[Word]) -> FoundModel | None:
    """The engine of a container. Images of vLLM start it themselves: their words are flags."""
    assert run.image is not None
    if run.entrypoint is not None:
        words = [Word(run.entrypoint, run.image.place), *words]
    return container_engine(found, model, run, words, run.image.place)


def container_engine(found: Found, model: FoundModel, run: Run, words: list[Word], place: Place) -> FoundModel | None:
    """An engine from its container and the words that are given to it; ``model`` has its environment so far."""
    words = _without_wrappers(found, model, words)
    served = _serve(found, words) if words else None
    dialect = VLLM
    if served is not None:
        dialect, _, words = served
    elif words and words[0].text in _SHELLS:
        inner = engine_of(found, words, run)
        if inner is None:
            return None
        inner.environment = {**model.environment, **inner.environment}
        settle(found, inner, run, place)
        return inner
    elif words and words[0].text in ("serve", "vllm"):
        words = words[1:]
    elif not words or not (words[0].text.startswith("-") or "vllm" in (run.image.text if run.image else "")):
        return None
    read_flags(found, model, words, dialect)
    settle(found, model, run, place)
    return complete(found, model)


def complete(found: Found, model: FoundModel) -> FoundModel:
    """The engine with what its entry has to have: a name, weights, a context."""
    settings, place = model.settings, model.place
    weights = settings.get("weights")
    if weights is None:
        found.note(place, "no model is named: write weights: yourself")
        settings["weights"] = weights = Setting("/models/MODEL", "a folder on the boxes, or a hub id", assumed=True)
    path, told_path = str(weights.value), without_secrets([Word(str(weights.value), place)])
    if path[:1] in ("~", ".", "$") or (path.count("/") > 1 and not path.startswith("/")):
        told = path.rstrip("/").rsplit("/", 1)[-1].strip("$.~{}") or "MODEL"
        found.note(place, f"{told_path} is neither a whole path on the boxes nor a hub id: /models/{told} is assumed")
        settings["weights"] = weights = Setting(f"/models/{told}", f"{told_path} where it came from", assumed=True)
    if model.ranks > MOST_RANKS:
        found.note(place, f"{model.ranks:,} ranks are more than {MOST_RANKS} boxes: one box is assumed")
        model.ranks, model.pipeline = 1, False
    if "context" not in settings:
        found.note(place, "how long requests may be is not said, and engines take what the model has: 32768 is assumed")
        settings["context"] = Setting(32768, "the longest request in tokens", assumed=True)
    if str(weights.value).startswith("/") and settings.pop("revision", None) is not None:
        found.note(place, "--revision is left out: only a hub id has a revision")
    served = settings.get("served_as")
    named = served.value[0] if served is not None and isinstance(served.value, list) else str(weights.value)
    model.name = as_name(str(named))
    if served is not None and served.value == [model.name]:
        del settings["served_as"]
    elif served is None:
        settings["served_as"] = Setting([str(weights.value)], "as the engine names it without --served-model-name")
    return model
