"""Figures over time as bars of text. Pure. A moment that is not known is a dot, and never an empty bar."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = " ▁▂▃▄▅▆▇█"
UNKNOWN = "·"


def spark(values: Sequence[float | None], width: int, top: float) -> str:
    """The last ``width`` values as one line, ``top`` being the highest bar; zero is the lowest, which can be seen."""
    shown = list(values)[-width:] if width > 0 else []
    return "".join(UNKNOWN if value is None else _BARS[1 + _step(value, top, 7)] for value in shown).rjust(width)


def graph(values: Sequence[float | None], width: int, height: int, top: float) -> list[str]:
    """The same over several lines, the highest first; zero leaves only the ground."""
    shown = list(values)[-width:] if width > 0 else []
    lines = []
    for row in range(height - 1, -1, -1):
        bars = []
        for value in shown:
            if value is None:
                bars.append(UNKNOWN if row == 0 else " ")
            else:
                eighths = max(1, _step(value, top, 8 * height))
                bars.append(_BARS[min(8, max(0, eighths - 8 * row))])
        lines.append("".join(bars).rjust(width))
    return lines


def _step(value: float, top: float, steps: int) -> int:
    return 0 if top <= 0 else min(steps, max(0, round(value / top * steps)))
