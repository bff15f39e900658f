"""HTTPS at the proxy, with the operator's own certificate."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest
from holding import haproxy, write_files
from test_lab_hold import ASK, engines_of, two_layouts

pytestmark = [
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="HAProxy starts as root"),
]


def made_certificate(folder: Path, name: str = "IP:127.0.0.1") -> Path:
    """A PEM file with a certificate for 127.0.0.1, or another name, and its key."""
    pem = folder / "fleet's own.pem"
    key, cert = folder / "key", folder / "cert"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=fleet", "-addext", f"subjectAltName={name}", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    pem.write_text(cert.read_text() + key.read_text())
    return pem


def test_clients_speak_https_with_the_certificate_of_the_operator(tmp_path: Path) -> None:
    asyncio.run(_ask_over_https(tmp_path))


async def _ask_over_https(tmp_path: Path) -> None:
    pem = made_certificate(tmp_path)
    config = two_layouts(certificate=str(pem))
    engine = engines_of(config)[0]
    await engine.start()
    trusted = ssl.create_default_context(cafile=str(pem))
    with haproxy(config) as proxy:
        url = proxy.url.replace("http://", "https://")
        async with httpx.AsyncClient(verify=trusted, trust_env=False) as http:
            answer = await http.post(f"{url}/v1/chat/completions", json=ASK)
            assert (answer.status_code, answer.json()["engine"]) == (200, "split-one")
        async with httpx.AsyncClient(trust_env=False) as http:
            with pytest.raises(httpx.HTTPError):
                await http.post(f"{proxy.url}/v1/chat/completions", json=ASK)
    await engine.kill()


def test_http_2_and_tls_1_2_are_spoken_and_tls_1_1_is_not(tmp_path: Path) -> None:
    config = two_layouts(layout=None, certificate=str(made_certificate(tmp_path)))
    with haproxy(config):
        for words, expected in ((["-alpn", "h2"], "ALPN protocol: h2"), (["-tls1_2"], "TLSv1.2")):
            told = _connected(config.port, *words)
            assert expected in told.stdout, told.stdout + told.stderr
            assert told.returncode == 0
        assert _connected(config.port, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0").returncode != 0


def _connected(port: int, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", *words],
        input="",
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_certificate_that_is_not_on_the_box_is_refused_by_name(tmp_path: Path) -> None:
    path = write_files(two_layouts(certificate="/etc/ssl/private/missing.pem"), tmp_path)
    told = subprocess.run(["haproxy", "-c", "-f", str(path)], capture_output=True, text=True, check=False)
    assert told.returncode != 0
    assert "/etc/ssl/private/missing.pem" in told.stderr
