#!/usr/bin/python3
"""``alive.py SOCKET``: exit status 0 when HAProxy answers on its runtime API and is not about to stop.

keepalived asks every second whether this box may have the floating address, so it imports next to nothing.
"""

import socket
import sys

LIMIT = 1.0  # seconds


def alive(path):
    """Whether HAProxy answers. A worker that a reload has replaced is stopping, and does not have this socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(LIMIT)
        try:
            client.connect(path)
            client.sendall(b"show info\n")
            told = b"".join(iter(lambda: client.recv(65536), b""))
        except OSError:
            return False
    return b"\nStopping: 0\n" in told


if __name__ == "__main__":
    sys.exit(0 if alive(sys.argv[1]) else 1)
