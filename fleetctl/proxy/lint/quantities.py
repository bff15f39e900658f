"""Durations and sizes as HAProxy and nginx write them, and how long prompts take."""

from __future__ import annotations

import math
import re
from itertools import pairwise

_HAPROXY_UNITS = {"us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NGINX_UNITS = {
    "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "M": 2592000.0, "y": 31536000.0,
}  # fmt: skip
_SIZES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}

# Prompt tokens and the seconds until their first token, measured on one GB10.
FIRST_TOKENS = ((0, 0.0), (16_900, 9.6), (67_414, 50.7), (134_506, 135.0), (202_323, 256.0))
MOST = 1e12  # seconds or bytes: longer numbers are typing errors, and would not fit a float


def haproxy_seconds(text: str) -> float | None:
    """Seconds of a HAProxy time, where a bare number counts milliseconds; None when it is not one."""
    match = re.fullmatch(r"([0-9]{1,15})(us|ms|s|m|h|d|)", text)
    return None if match is None else min(int(match[1]) * _HAPROXY_UNITS[match[2]], MOST)


def nginx_seconds(text: str) -> float | None:
    """Seconds of an nginx time (``90``, ``1m30s``, ``500ms``), where a bare number counts seconds."""
    if not re.fullmatch(r"(?:[0-9]{1,15}(?:ms|[smhdwMy]) ?)*(?:[0-9]{1,15}(?:ms|[smhdwMy])?)", text):
        return None
    parts = re.findall(r"([0-9]{1,15})(ms|[smhdwMy]|)", text)
    return min(sum(int(number) * _NGINX_UNITS[unit] for number, unit in parts), MOST)


def nginx_bytes(text: str) -> float | None:
    """Bytes of an nginx size (``1m``, ``512k``)."""
    match = re.fullmatch(r"([0-9]{1,15})([kKmMgG]?)", text)
    return None if match is None else min(int(match[1]) * _SIZES[match[2].lower()], MOST)


def count(text: str) -> int | None:
    """A whole number of a setting, None when it is not one."""
    return int(text) if re.fullmatch(r"[0-9]{1,12}", text) else None


def told(seconds: float) -> str:
    """A duration in words: ``0.25 s``, ``30 s``, ``10 min``, ``1 h``."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"


def longest_prompt(seconds: float) -> str:
    """How many prompt tokens have their first token after ``seconds``, between the measured points."""
    points = FIRST_TOKENS
    for (tokens, at), (more, later) in pairwise(points):
        if seconds <= later:
            reached = tokens + (seconds - at) / (later - at) * (more - tokens)
            return f"about {round(reached, -3 if reached >= 10_000 else -2):,.0f} tokens"
    return f"more than {points[-1][0]:,} tokens"


def roomy(seconds: float) -> str:
    """A timeout with room for waiting in the queue: twice ``seconds``, in whole minutes, in both spellings."""
    return f"{max(1, math.ceil(2 * seconds / 60))}m"
