"""Logs of the engines on all boxes, in the order of time."""
