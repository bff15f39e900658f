"""One adapter per kind of engine: its command line, its answers and its metrics. Pure."""
