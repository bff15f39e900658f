"""Load that engines are measured with, what was measured, and the concurrency at which a copy does best."""
