"""Figures as words of a few letters. Pure. What is not known is a dash, and never 0."""

from __future__ import annotations

from fleetctl.watch.sample import Copy

NOT_KNOWN = "–"  # noqa: RUF001 - a dash is what tables have for that


def number(value: float | None) -> str:
    """A rate or a count: ``0``, ``3.4``, ``208``, ``12.3k``."""
    if value is None:
        return NOT_KNOWN
    if value < 10 and value != int(value):
        return f"{value:.1f}"
    if value < 10_000:
        return f"{value:.0f}"
    return f"{value / 1000:.1f}k" if value < 999_950 else f"{value / 1e6:.1f}M"


def percent(part: float | None) -> str:
    """A part of 1: ``41%``."""
    return NOT_KNOWN if part is None else f"{100 * part:.0f}%"


def seconds(value: float | None) -> str:
    """A time to the first token: ``53ms``, ``0.53s``, ``12s``, ``4.3m``."""
    if value is None:
        return NOT_KNOWN
    if value < 0.1:
        return f"{1000 * value:.0f}ms"
    if value < 10:
        return f"{value:.2f}s"
    return f"{value:.0f}s" if value < 120 else f"{value / 60:.1f}m"


def gibibytes(size: int | None) -> str:
    """Bytes: ``31.2G``."""
    return NOT_KNOWN if size is None else f"{size / 1024**3:.1f}G"


def pressure(value: float | None) -> str:
    """Percent of time: ``0.0%``."""
    return NOT_KNOWN if value is None else f"{value:.1f}%"


def state_of(copy: Copy) -> str:
    """One word for a copy: the state of its unit where that does not run, else the proxy's word."""
    unit = copy.unit.split()[0] if copy.unit else "unknown"
    if not copy.known and unit in ("active", "unknown"):
        return "unknown"
    return copy.server.lower() if unit == "active" else unit


def short_name(copy: Copy, layout: str | None) -> str:
    """The id of a copy without the layout, which stands above all of them."""
    return copy.id.removeprefix(f"{layout}/") if layout else copy.id


def cut(text: str, width: int) -> str:
    """The text in so many columns, the end of a longer one left out visibly."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def middle_cut(name: str, width: int) -> str:
    """A name such as MODEL@BOX in so many columns: the box stays, where there is room for anything beside it."""
    what, at, box = name.rpartition("@")
    left = width - len(at + box)
    return cut(what, left) + at + box if at and left > 1 else cut(name, width)
