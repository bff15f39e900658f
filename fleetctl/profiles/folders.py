"""Folders of profiles: those that ship with fleetctl, and the operator's own, which come first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fleetctl.errors import SpecError
from fleetctl.profiles.entry import Entry, parse_entry
from fleetctl.profiles.match import Kept
from fleetctl.profiles.profile import Profile, parse_profile, written
from fleetctl.spec.plain import plain_text

SHIPPED = Path(__file__).parent / "shipped"
ENTRIES = Path(__file__).parent / "entries"
BESIDE = "profiles"
"""Folder beside fleet.yaml."""


def own_folders(given: Path | None, fleet: Path | None = None) -> list[Path]:
    """Where the operator's own profiles are: the folder that was ``given``, else those that there are of ``profiles``
    beside fleet.yaml and ``~/.config/fleetctl/profiles``. Raises SpecError where the one that was given is none."""
    if given is not None:
        if not given.is_dir():
            raise SpecError(f"--profiles {given}: there is no such folder", hint="`fleetctl profile save` makes one")
        return [given]
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    places = [config / "fleetctl" / "profiles"]
    if fleet is not None:
        places.insert(0, fleet.resolve().parent / BESIDE)
    return [place for place in places if place.is_dir()]


def known_profiles(own: Sequence[Path] = ()) -> list[Kept]:
    """All profiles, the operator's own first; of two of one name the first counts.

    Raises SpecError, naming file and key, for a file that is no profile.
    """
    found: dict[str, Kept] = {}
    for folder, mine in [*((folder, True) for folder in own), (SHIPPED, False)]:
        for path in sorted(folder.glob("*.yaml")):
            profile = parse_profile(plain_text(path), str(path))
            found.setdefault(profile.profile, Kept(profile, path.name if not mine else str(path), mine))
    return list(found.values())


def known_entries() -> dict[str, Entry]:
    """The ready entries that ship with fleetctl, by name."""
    found = (parse_entry(plain_text(path), path.name) for path in sorted(ENTRIES.glob("*.yaml")))
    return {entry.entry: entry for entry in found}


def save_profile(profile: Profile, file: Path) -> None:
    """Write a profile to a file that does not exist. Raises SpecError when it does, or cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as out:
            out.write(written(profile))
    except FileExistsError:
        raise SpecError(
            f"{file} exists and is left alone", hint="give it another name with --name, or remove it"
        ) from None
    except OSError as error:
        raise SpecError(f"{file} cannot be written: {error.strerror}") from error
