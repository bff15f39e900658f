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


def test_the_silence_of_a_hung_engine_is_a_setting(tmp_path: Path) -> None:
    assert "silence_seconds 300\n" in rendered("drain: 1m", tmp_path)
    assert "silence_seconds 90\n" in rendered("silence_limit: 90s", tmp_path)


def test_checks_tries_and_limits_are_settings(tmp_path: Path) -> None:
    text = rendered("drain: 1m", tmp_path)
    for line in ("retries 3", "timeout connect 500ms", "timeout http-keep-alive 60000ms", "timeout queue 1200000ms"):
        assert f"    {line}\n" in text
    assert "check inter 500ms fastinter 250ms downinter 250ms rise 1 fall 2 " in text
    text = rendered("timeout_queue: 90s\n  timeout_connect: 1s\n  timeout_http_keep_alive: 2m\n  retries: 0", tmp_path)
    for line in ("retries 0", "timeout connect 1000ms", "timeout http-keep-alive 120000ms", "timeout queue 90000ms"):
        assert f"    {line}\n" in text
    assert "hold_seconds 1200\n" in text
    text = rendered("check_interval: 200ms\n  rise: 2\n  fall: 3", tmp_path)
    assert "check inter 200ms fastinter 100ms downinter 100ms rise 2 fall 3 " in text


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("tls: {certificate: fleet.pem}", "not an absolute path"),
        ("tls: {certificate: /root/fleet.pem}", "ProtectHome="),
        ("tls: {}", "certificate"),
        ("keepalive: 0", "too short"),
        ("silence_limit: 0", "too short"),
        ("silence_limit: 1h", "not shorter than stream_limit"),
        ("silence_limit: 2m\n  stream_limit: 90s", "not shorter than stream_limit"),
    ],
)
def test_what_cannot_work_is_refused(settings: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=told):
        rendered(settings, tmp_path)
