"""Notes in a file of JSON lines that is appended to and does not grow for ever."""

import json
import os
from typing import Any, Dict, List

from fleetctl.onbox.main import OpError


def read(path: str, most: int) -> List[Dict[str, Any]]:
    """The objects in the last ``most`` bytes of a file, oldest first. Lines that were damaged are left out."""
    try:
        with open(path, "rb") as source:
            source.seek(max(0, os.fstat(source.fileno()).st_size - most))
            lines = source.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


def append(path: str, record: Dict[str, Any], most: int) -> None:
    """Append an object; of a file beyond ``most`` bytes the newer half stays. OpError when it cannot be written."""
    kept = read(path, most) if os.path.exists(path) and os.path.getsize(path) > most else None
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if kept is not None:
            with open(path + ".new", "w", encoding="utf-8") as out:
                out.writelines(json.dumps(one) + "\n" for one in kept[len(kept) // 2 :])
            os.replace(path + ".new", path)
        with open(path, "a+b") as out:
            size = out.seek(0, os.SEEK_END)
            out.seek(max(0, size - 1))
            torn = size > 0 and out.read(1) != b"\n"  # the last line was cut off: it must not take this one with it
            out.write((b"\n" if torn else b"") + json.dumps(record).encode() + b"\n")
    except OSError as error:
        raise OpError("%s cannot be written: %s" % (path, error)) from None
