"""Finds what would hurt before it does. One file per family of findings; pure but for ``examine.py`` and ``box/checksums.py``."""
