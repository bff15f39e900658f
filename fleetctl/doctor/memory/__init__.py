"""Findings about memory: who holds it, what it fell short of, and what would make it fall short."""
