"""A model small enough to make on the spot, for real engines in the lab."""

from __future__ import annotations

import shutil
from pathlib import Path

from fleetctl.errors import LabError
from fleetctl.lab.command import run
from fleetctl.lab.requirements import Say

SCRIPT = Path(__file__).with_name("tinymodel_script.py")
# What vLLM reads; a folder with all of them is a whole model.
FILES: tuple[str, ...] = (
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)


def whole_model(target: Path) -> bool:
    """Whether ``target`` holds all files of a tiny model."""
    return all((target / name).is_file() for name in FILES)


def make_tiny_model(target: Path, python: Path, say: Say, shape: tuple[int, int, int] | None = None) -> Path:
    """Write a tiny random Llama (under 1 MB) to ``target``, unless it is there already; return ``target``.

    ``shape``: hidden size, layers and positions of a larger one, for which reading a prompt takes time.

    ``python`` is the interpreter of an engine's venv, which has torch, transformers and tokenizers. With the
    same versions of those the files are the same each time. LabError when the script fails.
    """
    if whole_model(target):
        return target
    if target.exists() and any(target.iterdir()):
        raise LabError(f"{target} exists and is not a tiny model", hint="Move it away, or name another folder.")
    say(f"making a tiny model in {target}")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    run([str(python), "-I", str(SCRIPT), str(partial), *map(str, shape or ())], doing="making a tiny model")
    missing = [name for name in FILES if not (partial / name).is_file()]
    if missing:
        raise LabError(f"the tiny model in {partial} came without {', '.join(missing)}")
    for file in partial.iterdir():
        # Engines may run as another user than the one who made the model.
        file.chmod(0o644)
    partial.chmod(0o755)
    if target.exists():
        target.rmdir()
    partial.rename(target)
    return target
