"""A recipe of spark-vllm-docker (github.com/eugr/spark-vllm-docker, recipes/README.md): an image and a command."""

from __future__ import annotations

from fleetctl.importing.found import Found
from fleetctl.importing.recipe import read_recipe
from fleetctl.importing.tree import Node, read_yaml


def looks_like(root: Node) -> bool:
    """It has a container and a command, and is none of sparkrun's."""
    return root.get("container") is not None and root.get("command") is not None


def read(file: str, text: str) -> Found:
    """The engine that it starts. Braces of JSON stand twice in its command."""
    found = Found("spark-vllm-docker")
    read_recipe(found, read_yaml(file, text), doubled=True)
    return found
