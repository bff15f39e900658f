"""What the guard writes down: events and minutes, bounded, and what it has to know when it is started anew."""

import json
import os
import sys
import time
from typing import Any, Dict, Optional

FOLDER = "/var/lib/fleetctl/guard"
STATUS = "/run/fleetctl-guard/status.json"
LIMIT = 256 * 1024  # bytes of one file; one older file is kept


class Notes:
    """What happened and why is in ``events.jsonl``, the worst of every minute in ``minutes.jsonl``, every second of a
    shortage in ``shortages.jsonl``."""

    def __init__(self, folder: str = FOLDER, status: str = STATUS) -> None:
        self.folder = folder
        self._status = status
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._saved = ""

    def event(self, kind: str, unit: str, why: str, **seen: Any) -> None:
        """Something happened. It is in the unit's log too."""
        text = "%s: %s: %s" % (unit, kind, why) if unit else why
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
        self.append("events", dict(seen, at=round(time.time(), 3), kind=kind, unit=unit, why=why))

    def append(self, name: str, record: Dict[str, Any]) -> None:
        """One line more. A full disk must not keep the guard from its work."""
        path = "%s/%s.jsonl" % (self.folder, name)
        try:
            if os.path.exists(path) and os.path.getsize(path) > LIMIT:
                os.replace(path, "%s/%s.1.jsonl" % (self.folder, name))
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with open(descriptor, "w", encoding="utf-8") as stream:
                stream.write(json.dumps(record, sort_keys=True) + "\n")
        except OSError as error:
            sys.stderr.write("cannot write %s: %s\n" % (path, error))

    def status(self, told: Dict[str, Any]) -> None:
        """What ``fleetctl guard status`` shows; in memory only."""
        _replace(self._status, json.dumps(told))

    def save(self, boot: str, kept: Dict[str, Any]) -> None:
        """Keep the state for a guard that is started anew, if it has changed."""
        text = json.dumps({"boot": boot, "kept": kept}, sort_keys=True)
        if text != self._saved and _replace(self.folder + "/state.json", text):
            self._saved = text

    def saved(self, boot: str) -> Optional[Dict[str, Any]]:
        """What an earlier guard has kept in this boot."""
        try:
            with open(self.folder + "/state.json", encoding="utf-8") as source:
                found = json.load(source)
            return dict(found["kept"]) if found["boot"] == boot else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _replace(path: str, text: str) -> bool:
    try:
        descriptor = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(path + ".new", path)
    except OSError as error:
        sys.stderr.write("cannot write %s: %s\n" % (path, error))
        return False
    return True
