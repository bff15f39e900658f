"""One adapter per kind of engine: how its command line is made. Pure."""
