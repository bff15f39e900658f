"""A recipe of sparkrun (github.com/spark-arena/sparkrun, RECIPES.md): a model, a runtime, defaults, a command."""

from __future__ import annotations

from fleetctl.importing.found import Found
from fleetctl.importing.recipe import read_recipe
from fleetctl.importing.tree import Node, read_yaml

READ = ("", "vllm", "vllm-distributed", "vllm-ray", "eugr-vllm", "sglang", "llama-cpp")
"""Runtimes of sparkrun whose command lines are read."""


def looks_like(root: Node) -> bool:
    """It has a model, and something that only recipes of sparkrun have."""
    own = any(root.get(key) is not None for key in ("runtime", "metadata", "min_nodes", "max_nodes"))
    return root.get("model") is not None and (own or root.said("recipe_version") == "2")


def read(file: str, text: str) -> Found:
    """The engine that it starts."""
    found = Found("sparkrun")
    root = read_yaml(file, text)
    runtime = root.get("runtime")
    if runtime is not None and (runtime.text or "") not in READ:
        found.note(runtime.place, f"runtime: {runtime.text}: only those of vLLM, SGLang and llama.cpp are read")
        return found
    if runtime is not None and runtime.text == "llama-cpp" and root.get("command") is None:
        found.note(runtime.place, "of a recipe for llama.cpp the command is read, and this one has none")
        return found
    read_recipe(found, root, doubled=root.said("recipe_version") == "1")
    return found
