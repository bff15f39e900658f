"""Connections that are open to an engine's port, as the kernel tells them."""

from __future__ import annotations

import socket

import pytest

from fleetctl.onbox.connections import open_from


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_open_connections_of_the_proxies_are_counted_and_no_others(family: int, address: str) -> None:
    with socket.socket(family) as server:
        server.bind((address, 0))
        server.listen()
        port = server.getsockname()[1]
        assert open_from({address}, port) == 0
        with socket.create_connection((address, port)) as one, socket.create_connection((address, port)):
            taken = [server.accept()[0] for _ in range(2)]
            assert open_from({address}, port) == 2
            assert open_from({"192.0.2.1"}, port) == 0
            one.close()
            taken[0].close()
            assert open_from({address}, port) == 1
            for connection in taken:
                connection.close()


def test_an_ipv4_client_of_a_dual_stack_engine_is_known_by_its_ipv4_address() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()  # half closed: the client has not let go
            assert open_from({"127.0.0.1"}, port) == 0
            with socket.create_connection(("127.0.0.1", port)):
                held = server.accept()[0]
                assert open_from({"127.0.0.1"}, port) == 1
                held.close()
