"""Who listens on a port is found, also in a process that opens and closes files all the time."""

import os
import socket

import pytest

from fleetctl.onbox.ports import listeners, port_owners


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_listening_port_has_its_process(family: socket.AddressFamily, address: str) -> None:
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        assert list(listeners([port])) == [port]
        assert port_owners([port])[str(port)]["pid"] == os.getpid()


def test_ports_that_are_free_or_only_connected_are_not_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        with client:
            mine = client.getsockname()[1]
            assert port_owners([mine]) == {}
    assert port_owners([server_port_that_is_free()]) == {}
    assert port_owners([]) == {}


def server_port_that_is_free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
