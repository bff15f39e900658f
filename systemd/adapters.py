#!/usr/bin/python3
"""Start an engine with the LoRA adapters that this box keeps: ``adapters.py FOLDER MODEL -- COMMAND…``.

FOLDER/index.json says which adapters MODEL has, with their files and sizes. Those that are whole are added to COMMAND
as vLLM's ``--lora-modules NAME=PATH…``, and COMMAND takes the place of this process. vLLM loads them before it listens,
so that it answers nothing before it has them. An adapter that is not whole, or of a higher rank than COMMAND takes,
would keep vLLM from starting: it is left out, and the log says so.
"""

import json
import os
import re
import struct
import sys

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DIGEST = re.compile(r"[0-9a-f]{16}")


def wanted(folder, model):
    """Name → what the index says of it; nothing where there is no index, or one that was damaged."""
    try:
        with open(os.path.join(folder, "index.json"), encoding="utf-8") as source:
            found = json.load(source)["adapters"].get(model, {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print("adapters: %s/index.json is damaged: %s" % (folder, error), file=sys.stderr)
        return {}
    return found if isinstance(found, dict) else {}


def highest_rank(command):
    """What COMMAND says of --max-lora-rank; vLLM's own default is 16."""
    at = [number + 1 for number, word in enumerate(command[:-1]) if word == "--max-lora-rank"]
    return int(command[at[-1]]) if at and command[at[-1]].isdigit() else 16


def header_fits(path):
    """Whether a safetensors file is as long as its own header says."""
    with open(path, "rb") as source:
        size = os.fstat(source.fileno()).st_size
        start = source.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if 8 + length > size:
            return False
        tensors = json.loads(source.read(length).decode("utf-8"))
        ends = [tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"]
    return size == 8 + length + max(ends or [0])


def fault(path, entry, rank):
    """Why an adapter cannot be loaded; None where it can."""
    if entry["rank"] > rank:
        return "it has rank %d, and the engine takes %d" % (entry["rank"], rank)
    for name, (size, _) in sorted(entry["files"].items()):
        file = os.path.join(path, name)
        if os.path.islink(file) or not os.path.isfile(file):
            return "%s is missing" % name
        if os.path.getsize(file) != size:
            return "%s has %d bytes of %d" % (name, os.path.getsize(file), size)
        if name.endswith(".safetensors") and not header_fits(file):
            return "%s is damaged" % name
    return None


def modules(folder, model, command):
    """``NAME=PATH`` of every adapter that can be loaded."""
    found = []
    rank = highest_rank(command)
    for name, entry in sorted(wanted(folder, model).items()):
        try:
            if not NAME.fullmatch(name) or not DIGEST.fullmatch(entry["digest"]):
                raise ValueError("no name or digest of an adapter")
            path = os.path.join(folder, model, name, entry["digest"])
            why = fault(path, entry, rank)
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error) as error:
            why = "%s: %s" % (type(error).__name__, error)
        if why is None:
            found.append("%s=%s" % (name, path))
        else:
            print("adapters: the engine starts without %s: %s" % (name, why), file=sys.stderr)
    return found


def main(words):
    at = words.index("--")
    folder, model = words[:at]
    command = words[at + 1 :]
    os.makedirs(os.path.join(folder, model), mode=0o755, exist_ok=True)
    found = modules(folder, model, command)
    if found:
        command += ["--lora-modules", *found]
    sys.stderr.flush()
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
