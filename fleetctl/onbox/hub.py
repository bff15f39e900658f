"""Weights of a hub id, fetched on this box with the engine's own Python before the engine needs them."""

import os
import re
from typing import Any, Dict

from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.process import run

NO_LIBRARY = 3

# What the engine's own download takes: weights in one format, and the small files beside them. What is there already is
# not asked for again; where the hub is out of reach, what an earlier download left has to be enough.
FETCH = """
import glob, os, shutil, sys
try:
    from huggingface_hub import HfApi, snapshot_download
except ImportError:
    sys.exit(3)
repo, revision = sys.argv[1], sys.argv[2] or None
beside = ["*.json", "*.txt", "*.model", "*.jinja", "*.py", "*.tiktoken"]
ends = [".safetensors", ".bin", ".pt"]
def snapshot(end, **more):
    return snapshot_download(
        repo, revision=revision, allow_patterns=[*beside, "*" + end],
        ignore_patterns=["original/*", "consolidated*", "*.onnx"], **more
    )
def kept():
    for end in ends:
        try:
            path = snapshot(end, local_files_only=True)
        except Exception:
            continue
        if glob.glob(glob.escape(path) + "/*" + end):
            return path
def refuse_without_room(info, end):
    from huggingface_hub import constants, try_to_load_from_cache
    cache, need = constants.HF_HUB_CACHE, 0
    for one in info.siblings:
        mine = one.rfilename.endswith(end) and not one.rfilename.startswith(("original/", "consolidated"))
        if mine and one.size and not isinstance(
            try_to_load_from_cache(repo, one.rfilename, revision=info.sha), str
        ):
            need += one.size
    while not os.path.isdir(cache):
        cache = os.path.dirname(cache)
    free = shutil.disk_usage(cache).free
    if need > free:
        sys.exit("no room: %d bytes are to be fetched and %d are free on the disk of %s" % (need, free, cache))
try:
    info = HfApi().model_info(repo, revision=revision, files_metadata=True)
    names = [one.rfilename for one in info.siblings]
    refuse_without_room(info, next((end for end in ends if any(name.endswith(end) for name in names)), ""))
    path = snapshot(next((end for end in ends if any(name.endswith(end) for name in names)), ""))
except Exception as error:
    path = kept()
    if path is None:
        sys.exit("%s: %s" % (type(error).__name__, " ".join(str(error).split())[:300]))
print(path)
"""


def variables(path: str) -> Dict[str, str]:
    """What a file for EnvironmentFile= that fleetctl wrote has in it: NAME="value", with four characters escaped."""
    with open(path) as source:
        rows = [line.rstrip("\n").partition("=") for line in source]
    return {name: re.sub(r"\\(.)", r"\1", value[1:-1]) for name, _, value in rows if name}


@op("hub_library")
def hub_library(call: Call, python: str) -> Dict[str, Any]:
    """Whether a Python has huggingface_hub, so that the box itself can fetch."""
    if not os.access(python, os.X_OK):
        return {"there": False}
    return {"there": run(call, [python, "-c", "import huggingface_hub"], timeout=60)["rc"] == 0}


@op("fetch_weights")
def fetch_weights(
    call: Call, python: str, repo: str, revision: str, env: Dict[str, str], secrets: str, limit: float
) -> Dict[str, Any]:
    """Have the weights of a hub id in the cache that the engine reads. ``left``: why it is left to the engine.

    ``env`` is the engine's environment as far as the hub is concerned; ``secrets`` names a file with more of it.
    """
    if not os.access(python, os.X_OK):
        return {"left": "there is no %s" % python}
    known = variables(secrets) if secrets and os.path.exists(secrets) else {}
    env = {"HOME": "/root", "HF_HUB_DISABLE_PROGRESS_BARS": "1", **env, **known}
    done = run(call, [python, "-c", FETCH, repo, revision], timeout=limit, env=env)
    if done["rc"] == NO_LIBRARY:
        return {"left": "%s has no huggingface_hub" % python}
    if done["rc"] != 0:
        last = [line for line in done["err"].splitlines() if line.strip()] or ["status %s" % done["rc"]]
        raise OpError("the weights %s cannot be fetched: %s" % (repo, last[-1]))
    return {"path": done["out"].strip().splitlines()[-1]}
