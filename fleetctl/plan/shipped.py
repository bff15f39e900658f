"""The playbooks that come with fleetctl."""

from __future__ import annotations

import difflib

from fleetctl.errors import SpecError
from fleetctl.resources import root_folder, root_text


def shipped() -> dict[str, str]:
    """Name → what it is for, the first line of its file."""
    names = sorted(path.stem for path in root_folder("playbooks").glob("*.yaml"))
    return {name: playbook_text(name).partition("\n")[0].removeprefix("# ") for name in names}


def playbook_text(name: str) -> str:
    """A playbook as it is shipped. Raises SpecError, with the nearest name, when there is none."""
    known = sorted(path.stem for path in root_folder("playbooks").glob("*.yaml"))
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
        raise SpecError(f"there is no playbook {name}", hint=hint)
    return root_text("playbooks", f"{name}.yaml")
