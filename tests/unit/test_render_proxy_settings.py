"""Settings of the proxy in fleet.yaml, and what becomes of them in haproxy.cfg."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.errors import SpecError
from fleetctl.render.proxy import haproxy_config, proxy_config
from fleetctl.spec.load import load_fleet

EXAMPLE = Path(__file__).parents[2] / "templates" / "example.yaml"


def rendered(settings: str, folder: Path) -> str:
    """haproxy.cfg of the example with more settings of the proxy, written in YAML's flow style."""
    path = folder / "fleet.yaml"
    path.write_text(EXAMPLE.read_text().replace("  hold: 20m\n", f"  hold: 20m\n  {settings}\n"))
    return haproxy_config(proxy_config(load_fleet(path).fleet, "split"))


def test_https_needs_one_key(tmp_path: Path) -> None:
    assert " ssl crt '/etc/ssl/private/my fleet.pem' " in rendered(
        "tls: {certificate: /etc/ssl/private/my fleet.pem}", tmp_path
    )
    assert " ssl crt " not in rendered("drain: 1m", tmp_path)


def test_the_time_between_comment_lines_is_a_setting(tmp_path: Path) -> None:
    assert "keepalive_seconds 10\n" in rendered("drain: 1m", tmp_path)
    assert "keepalive_seconds 2.5\n" in rendered("keepalive: 2500ms", tmp_path)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("tls: {certificate: fleet.pem}", "not an absolute path"),
        ("tls: {certificate: /root/fleet.pem}", "ProtectHome="),
        ("tls: {}", "certificate"),
        ("keepalive: 0", "too short"),
    ],
)
def test_what_cannot_work_is_refused(settings: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=told):
        rendered(settings, tmp_path)
