"""A file of records, one line of JSON each, that is only ever appended to and does not grow for ever."""

import json
import os
from typing import Any, Dict, Iterable, List

from fleetctl.onbox.main import OpError


def records(file: str, keys: Iterable[str], most: int) -> List[Dict[str, Any]]:
    """Records with all of these keys in the last ``most`` bytes, oldest first. Damaged lines say nothing."""
    try:
        with open(file, "rb") as source:
            source.seek(max(0, os.fstat(source.fileno()).st_size - most))
            lines = source.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and set(keys) <= set(record):
            found.append(record)
    return found


def append(file: str, record: Dict[str, Any], keys: Iterable[str], most: int) -> None:
    """Append a record; of a file that is longer than ``most`` bytes only the newer half stays. Raises OpError."""
    kept = records(file, keys, most) if os.path.exists(file) and os.path.getsize(file) > most else None
    try:
        os.makedirs(os.path.dirname(file), mode=0o700, exist_ok=True)
        if kept is not None:
            with open(file + ".new", "w", encoding="utf-8") as out:
                out.writelines(json.dumps(one) + "\n" for one in kept[len(kept) // 2 :])
            os.replace(file + ".new", file)
        with open(file, "a", encoding="utf-8") as out:
            out.write(json.dumps(record) + "\n")
    except OSError as error:
        raise OpError("%s cannot be written: %s" % (file, error)) from None
