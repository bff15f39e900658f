"""Load that engines are measured with, what was measured, and the concurrency at which a copy does best."""

MOST_PROBES = 32
"""Measurements of a search for the knee, where nobody says otherwise."""
