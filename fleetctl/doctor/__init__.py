"""Finds what would hurt before it does. One file per family of findings.

Pure but for ``examine.py`` and ``box/checksums.py``.
"""
