"""What recipes of sparkrun and spark-vllm-docker have in common: a model, an image, defaults, a command with gaps."""

from __future__ import annotations

import json
import re

from fleetctl.errors import SpecError
from fleetctl.importing.command import container_engine
from fleetctl.importing.container import Run
from fleetctl.importing.dialects import seen
from fleetctl.importing.found import Found, FoundModel, Setting, Word, program, set_environment
from fleetctl.importing.tree import LONGEST, Node
from fleetctl.importing.vllm_flags import VLLM
from fleetctl.importing.words import commands, shell_words

GPUS = "--gpus=all"
_GAP = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_MOST_ROUNDS = 5  # values may have gaps themselves
_LONG = {
    "tensor_parallel": "--tensor-parallel-size",
    "pipeline_parallel": "--pipeline-parallel-size",
    "data_parallel": "--data-parallel-size",
}
_SGLANG = {
    "tensor_parallel": "--tp-size",
    "pipeline_parallel": "--pp-size",
    "data_parallel": "--dp-size",
    "max_model_len": "--context-length",
    "gpu_memory_utilization": "--mem-fraction-static",
    "max_num_seqs": "--max-running-requests",
}
"""Defaults whose flag is not spelled as they are."""
_TOLD = {"name", "description", "recipe_version", "metadata", "benchmark", "runtime_version", "maintainer"}
_KNOWN = {"model", "model_revision", "container", "defaults", "env", "command", "runtime"}
_TOPOLOGY = {"mode", "min_nodes", "max_nodes", "solo_only", "cluster_only"}
_LEFT_OUT = {
    "mods": "patches the image before each start: build an image that has it in it",
    "build_args": "the image is built with it: build it, and name it by digest",
    "pre_exec": "runs in the container before each start: build an image that has it in it",
    "post_exec": "runs after the start: gates: prove an engine instead",
    "post_commands": "runs after the start: gates: prove an engine instead",
    "stop_after_post": "an engine of fleetctl goes on running",
    "executor_config": "options of the container: write those that matter under launch: options:",
    "solo_args": "only without a cluster",
    "cluster_args": "only in a cluster",
}


def read_recipe(found: Found, root: Node, *, doubled: bool) -> None:
    """The engine of a recipe. ``doubled``: braces that are no gaps stand twice in the command."""
    model = FoundModel(root.place, "")
    defaults = _defaults(root)
    for name, value in (env.items or ()) if (env := root.get("env")) is not None else ():
        set_environment(found, model, name, value.text or "", value.place)
    run = Run("docker", options=[GPUS])
    command = root.get("command")
    image = root.get("container")
    if image is not None and image.text:
        run.image = Word(image.text, image.place)
    else:
        usual = ((seen([command.text]) if command is not None and command.text else None) or VLLM).image
        found.note(root.place, f"no container: is named: {usual} is assumed")
        run.image = Word(usual, root.place)
    named = root.get("model")
    if command is not None and command.text:
        text = _filled(command.text, {key: value.text or "" for key, value in defaults.items()}, doubled=doubled)
        words = _engine(found, command, text)
        if words is None:
            return
        for word in words:
            for gap in _GAP.findall("" if '"' in word.text else word.text):
                found.note(word.place, f"{{{gap}}} in the command is not among the defaults: write the value")
    else:
        words = _from_defaults(root, defaults)
    engine = container_engine(found, model, run, words)
    if engine is None:
        found.note(root.place, "the command starts no engine that is read here")
        return
    if named is not None and named.text and engine.settings["weights"].assumed:
        engine.settings["weights"] = Setting(named.text)
    revision = root.get("model_revision")
    if revision is not None and revision.text:
        engine.settings.setdefault("revision", Setting(revision.text))
    if image is None:
        engine.settings["launch"].assumed = True
    found.models.append(engine)
    _rest(found, root)


def _defaults(root: Node) -> dict[str, Node]:
    found = dict((root.get("defaults") or root).items or ()) if root.get("defaults") is not None else {}
    model = root.get("model")
    return {**({"model": model} if model is not None else {}), **found}


def _filled(command: str, defaults: dict[str, str], *, doubled: bool) -> str:
    """The command with the defaults in its gaps; what is not among them stays as it stands."""
    text = command.replace("{{", "\x00").replace("}}", "\x01") if doubled else command
    for _ in range(_MOST_ROUNDS):
        filled = _GAP.sub(lambda gap: defaults.get(gap[1], gap[0]).replace("\n", " "), text)
        if filled == text:
            break
        if len(filled) > LONGEST:
            raise SpecError("the defaults of the recipe name each other without end")
        text = filled
    return text.replace("\x00", "{").replace("\x01", "}")


def _engine(found: Found, command: Node, text: str) -> list[Word] | None:
    """The words of the command that starts an engine; others in the same text are noted."""
    all_of_them = commands(shell_words(command.place.file, text, command.lines_from))
    engines = [one for one in all_of_them if seen(word.text for word in one[:6])]
    for other in all_of_them:
        if other not in engines[:1]:
            found.note(other[0].place, f"{program(other)} of the command was left out")
    if not engines:
        found.note(command.place, "the command starts no engine that is read here")
        return None
    return engines[0]


def _from_defaults(root: Node, defaults: dict[str, Node]) -> list[Word]:
    """The command that sparkrun makes of the defaults where a recipe has none."""
    model = defaults.get("model")
    sglang = root.said("runtime") == "sglang"
    words = [Word("sglang" if sglang else "vllm", root.place), Word("serve", root.place)]
    words += [Word(model.text or "", model.place)] if model is not None else []
    spelled = _SGLANG if sglang else _LONG
    for key, value in defaults.items():
        if key == "model":
            continue
        flag = spelled.get(key, "--" + key.replace("_", "-"))
        text = value.text if value.text is not None else json.dumps(_plain(value))
        if not value.quoted and text.lower() in ("true", "yes", "on"):
            words.append(Word(flag, value.place))
        elif value.quoted or text.lower() not in ("false", "no", "off", "null", "~", ""):
            words += [Word(flag, value.place), Word(text, value.place)]
    return words


def _plain(node: Node) -> object:
    """A mapping or list as JSON has it, for a flag that takes JSON."""
    if node.items is not None:
        return {key: _plain(value) for key, value in node.items}
    if node.parts is not None:
        return [_plain(part) for part in node.parts]
    if not node.quoted:
        try:
            return json.loads(node.text or "null")
        except (ValueError, RecursionError):
            pass
    return node.text


def _rest(found: Found, root: Node) -> None:
    """Keys that fleet.yaml has no place for."""
    for key, value in root.items or ():
        if key in _TOLD | _KNOWN | _TOPOLOGY:
            continue
        empty = value.text == "" or value.parts == () or value.items == ()
        if not empty:
            found.note(value.place, f"{key}: {_LEFT_OUT.get(key, 'fleetctl knows no such key')}")
