"""The operations that change a fleet, in groups, and the words for one in sentences. Pure."""

from __future__ import annotations

IN_PLACE = ("apply", "upgrade")
"""Operations that bring changed settings to the live layout, as another generation of it."""
WEIGHTS = ("weights push", "weights pull", "weights repair", "weights prune")
"""Operations on weights alone."""

ASIDE = (*WEIGHTS, "images push")
"""Operations that bring files and nothing else: engines go on meanwhile."""

LORAS = ("lora push", "lora remove")
"""Operations on adapters of engines that go on serving."""

ON_BOXES = ("setup", "teardown")
"""Operations that make boxes ready or give them back."""

GUARDED = (*ASIDE, "setup")
"""Operations that touch nothing which serves, and may take hours: guards go on with their work meanwhile."""

MEASURES = ("calibrate", "tune")
"""Operations that measure an engine: one that was cut off is only taken back."""

STAYING = ("restart", "drain", "undrain", *MEASURES, "doctor", *ASIDE, *LORAS, *ON_BOXES)
"""Operations that work on the live layout and leave the fleet in its generation."""


def with_article(operation: str) -> str:
    """``a cutover``, ``an upgrade``."""
    return f"{'an' if operation[:1] in 'aeiou' else 'a'} {operation}"


def road(operation: str, from_layout: str | None, to_layout: str | None) -> str:
    """``split → replicas``, or the layout that it stays in; empty for what is about no layout."""
    if operation in (*ASIDE, *LORAS, *ON_BOXES):
        return ""
    return " → ".join(dict.fromkeys((from_layout or "nothing", to_layout or "nothing")))


def left(operation: str, from_layout: str | None) -> str:
    """Where a move that was undone has left the fleet."""
    if operation == "weights prune":
        return "engines were not touched, and what was only put aside is back"
    if operation in WEIGHTS:
        return "engines were not touched, and what had arrived stays and is not sent again"
    if operation in ASIDE:
        return "engines were not touched, and images that had arrived whole stay"
    if operation in LORAS:
        return "every copy has the adapters that it had"
    if operation in ON_BOXES:
        return "the boxes are as they were"
    return f"the fleet is back in {from_layout or 'the state before fleetctl'}"
