#!/usr/bin/python3 -IBS
"""fleetctl @VERSION@: for a user who may bring and remove LoRA adapters and do nothing else (docs/lora.md).

Started as root by sudo, by a forced command of sshd. What it does is in fleetctl/onbox/loras_only.py, packed below.
"""

import base64
import json
import sys
import zlib
from importlib.machinery import ModuleSpec

SOURCES, INDEX = json.loads(
    zlib.decompress(
        base64.b64decode(
            """
@SOURCES@
"""
        )
    ).decode("utf-8")
)


class Packed:
    """Finds and loads modules from SOURCES."""

    def find_spec(self, name, path=None, target=None):
        if name in SOURCES or any(known.startswith(name + ".") for known in SOURCES):
            return ModuleSpec(name, self, is_package=name not in SOURCES)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        name = module.__name__
        if name in SOURCES:
            exec(compile(SOURCES[name], name.replace(".", "/") + ".py", "exec"), module.__dict__)


sys.meta_path.insert(0, Packed())
from fleetctl.onbox.loras_only import main  # noqa: E402 - it is found by what stands before

sys.exit(main(INDEX))
