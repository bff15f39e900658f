"""HTTP to an engine or a worker of this box, over TCP or through its Unix socket."""

import http.client
import socket

UNIX = "unix:"


def connection_to(address: str, port: int, timeout: float) -> http.client.HTTPConnection:
    """A connection to ``address`` and ``port``; of ``unix:PATH`` the port says nothing. ``timeout`` in seconds."""
    if address.startswith(UNIX):
        return _Through(address[len(UNIX) :], timeout)
    return http.client.HTTPConnection(address, port, timeout=timeout)


def place_of(address: str, port: int) -> str:
    """The same in words."""
    return address if address.startswith(UNIX) else "%s:%d" % (address, port)


class _Through(http.client.HTTPConnection):
    """HTTP through a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
        except OSError:
            self.close()
            raise
