"""Engines' addresses are found in configurations, and nothing else of a line is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetctl.onbox import search as module
from fleetctl.onbox.search import Hits, search

WORDS = [["10.0.0.1", 8000, "one"], ["spark2", 8000, "two"], ["fd00::2", 8000, "two"]]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("base_url: http://10.0.0.1:8000/v1?key=sk-secret", [(1, "10.0.0.1:8000", False)]),
        ("OPENAI_BASE_URL=http://SPARK2:8000/v1", [(1, "spark2:8000", False)]),
        ("url: http://[fd00::2]:8000/v1", [(1, "[fd00::2]:8000", False)]),
        ("a\nhost: 10.0.0.1\nport: 8000\n", [(2, "10.0.0.1:8000", True)]),
        ('{"host": "spark2",\n "name": "x",\n "port": "8000"}', [(1, "spark2:8000", True)]),
        # The proxy, other ports, other machines, longer numbers and names.
        ("http://10.0.0.1:8080/v1", []),
        ("http://10.0.0.1:80001/v1 http://110.0.0.1:8000 http://10.0.0.11:8000 http://myspark2:8000", []),
        ("http://10.0.0.1.example.org:8000 spark2.example.org:8000", []),
        ("host: 10.0.0.1\nport: 22\ntimeout: 8000\n", []),
        ("host: 10.0.0.1\n\n\n\n\nport: 8000\n", []),
    ],
)
def test_addresses_of_engines(text: str, found: list[object], tmp_path: Path) -> None:
    (tmp_path / "config").write_text(text)
    hits = Hits()
    search(str(tmp_path), WORDS, hits)
    assert [(hit["line"], hit["address"], hit["near"]) for hit in hits.found] == found
    assert "sk-secret" not in str(hits.found)


@pytest.mark.parametrize(
    ("text", "many"),
    [
        ("Environment=OPENAI_BASE_URL=http://10.0.0.1:8000/v1", 1),
        ("*/5 * * * * root curl -s http://10.0.0.1:8000/v1/chat/completions -d @/etc/x", 1),
        ("*/5 * * * * root curl -fs http://10.0.0.1:8000/v1/models || systemctl restart x", 0),
        ("*/5 * * * * root curl -fs http://10.0.0.1:8000/health", 0),
        ("# OPENAI_BASE_URL=http://10.0.0.1:8000/v1", 0),
        ("targets: ['10.0.0.1:8000']", 0),
    ],
)
def test_on_a_box_only_what_uses_the_api_counts_and_no_health_check_or_monitor(
    text: str, many: int, tmp_path: Path
) -> None:
    (tmp_path / "job").write_text(text)
    hits = Hits()
    search(str(tmp_path), WORDS, hits, api=True)
    assert len(hits.found) == many


def test_pipes_links_binaries_and_huge_files_keep_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGEST", 1000)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "binary").write_bytes(b"\0http://10.0.0.1:8000")
    (tmp_path / "huge").write_text("http://10.0.0.1:8000\n" * 100)
    (tmp_path / "plain").write_text("http://10.0.0.1:8000\n")
    hits = Hits()
    search(str(tmp_path), WORDS, hits)
    assert [Path(hit["path"]).name for hit in hits.found] == ["plain"]


def test_a_search_that_is_not_complete_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 3)
    for number in range(5):
        (tmp_path / str(number)).write_text("http://10.0.0.1:8000\n")
    hits = Hits()
    search(str(tmp_path), WORDS, hits)
    assert (len(hits.found), hits.why) == (3, "only the first 3 files were looked at")
