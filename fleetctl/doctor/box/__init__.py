"""Findings about boxes themselves: clocks, disks, limits, versions, model files, and what would put them to sleep."""
