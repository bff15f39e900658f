"""Each rule finds what it looks for, works out seconds from the file's numbers, and is silent about a good file."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from fleetctl.proxy.lint.findings import Assumed, Finding, Severity
from fleetctl.proxy.lint.kinds import Kind, lint
from fleetctl.proxy.lint.page import page
from fleetctl.proxy.lint.rules_haproxy import RULES as HAPROXY
from fleetctl.proxy.lint.rules_nginx import RULES as NGINX

SAMPLES = Path(__file__).parent / "lint"
ROOT = Path(__file__).parents[2]
EXAMPLES = [(Kind.HAPROXY, rule.code, rule.example) for rule in HAPROXY]
EXAMPLES += [(Kind.NGINX, rule.code, rule.example) for rule in NGINX]


def found(text: str, kind: Kind | None = None, first_token_s: float = 256.0) -> list[Finding]:
    return lint("FILE", text, kind=kind, folder=Path("/nonexistent"), assumed=Assumed(first_token_s))[1]


def one(text: str, code: str, kind: Kind | None = None) -> Finding:
    (finding,) = [finding for finding in found(text, kind) if finding.code == code]
    return finding


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


@pytest.mark.parametrize(("kind", "code", "example"), EXAMPLES, ids=[code for _, code, _ in EXAMPLES])
def test_every_rule_finds_something_in_its_example(kind: Kind, code: str, example: str) -> None:
    finding = next(finding for finding in found(example, kind) if finding.code == code)
    assert 1 <= finding.place.line <= len(example.splitlines())
    assert finding.outage and finding.write and finding.why and finding.source


def test_codes_are_unique() -> None:
    assert max(Counter(code for _, code, _ in EXAMPLES).values()) == 1


@pytest.mark.parametrize("name", ["good-nginx.conf", "good-haproxy.cfg"])
def test_a_good_file_has_at_most_a_note(name: str) -> None:
    findings = found(sample(name))
    assert {finding.severity for finding in findings} == {Severity.NOTE}
    assert len(findings) == 1  # what this program cannot do by itself


@pytest.mark.parametrize("file", sorted((Path(__file__).parent / "golden").rglob("haproxy.cfg")), ids=str)
def test_what_fleetctl_renders_has_no_finding_at_all(file: Path) -> None:
    assert found(file.read_text()) == []


def test_the_office_files_have_the_findings_that_led_to_an_outage() -> None:
    nginx = {finding.code for finding in found(sample("office-nginx.conf"))}
    assert nginx >= {"N01", "N04", "N05", "N06", "N10", "N20", "N21", "N23", "N25", "N26", "N30", "N33", "N36"}
    haproxy = {finding.code for finding in found(sample("office-haproxy.cfg"))}
    assert haproxy >= {"H02", "H04", "H10", "H11", "H20", "H30", "H31", "H33", "H40", "H45", "H46", "H47"}


PAIR = """\
upstream e {{ least_conn; server 192.0.2.1:80 {0}; server 192.0.2.2:80 {0}; }}
server {{ location / {{ {1} proxy_pass http://e; }} }}
"""


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("max_fails=3 fail_timeout=30s", "after 3 failures the server gets nothing for 30 s although it is back"),
        ("", "after 1 failure the server gets nothing for 10 s"),
        ("fail_timeout=2m", "up to 2 min of `no live upstreams`"),
    ],
)
def test_the_time_that_an_engine_is_left_out_comes_from_the_file(parameters: str, said: str) -> None:
    assert said in one(PAIR.format(parameters, ""), "N01").outage


@pytest.mark.parametrize("parameters", ["max_fails=0", "fail_timeout=2s", "max_fails=1 fail_timeout=1s"])
def test_a_short_memory_is_no_finding(parameters: str) -> None:
    assert not [finding for finding in found(PAIR.format(parameters, "")) if finding.code == "N01"]


def test_one_server_ignores_max_fails_and_is_told_so() -> None:
    text = "upstream e { server 192.0.2.1:80 max_fails=3 fail_timeout=30s; }\n"
    text += "server { location / { proxy_pass http://e; } }"
    assert "max_fails=3 fail_timeout=30s (ignored)" in one(text, "N03").setting
    assert not [finding for finding in found(text) if finding.code == "N01"]


@pytest.mark.parametrize(
    ("setting", "tokens"), [("60s", "about 75,000 tokens"), ("135", "about 135,000 tokens"), ("9600ms", "about 17,000")]
)
def test_a_read_timeout_is_told_in_prompt_tokens(setting: str, tokens: str) -> None:
    assert tokens in one(PAIR.format("", f"proxy_read_timeout {setting};"), "N21").outage
    assert not [f for f in found(PAIR.format("", "proxy_read_timeout 10m;")) if f.code == "N21"]


def test_the_longest_first_token_can_be_given() -> None:
    text = PAIR.format("", "proxy_read_timeout 60s;")
    assert not [finding for finding in found(text, first_token_s=20.0) if finding.code == "N21"]


def test_a_setting_of_an_outer_level_counts_and_is_where_the_finding_points() -> None:
    text = "http {\n proxy_read_timeout 30s;\n" + PAIR.format("", "") + "\n}"
    assert one(text, "N21").place.line == 2
    inner = "http {\n proxy_read_timeout 30s;\n" + PAIR.format("", "proxy_read_timeout 20m;") + "\n}"
    assert not [finding for finding in found(inner) if finding.code == "N21"]


def test_buffering_over_http_1_1_is_a_note_only() -> None:
    assert one(PAIR.format("", ""), "N20").severity is Severity.ERROR
    assert one(PAIR.format("", "proxy_http_version 1.1;"), "N20").severity is Severity.NOTE


def test_locations_with_short_answers_need_no_settings_for_streams() -> None:
    text = "location /health { proxy_pass http://192.0.2.1; }\nlocation /grafana/ { proxy_pass http://192.0.2.1; }"
    assert found(text, Kind.NGINX) == []


HAPROXY_PAIR = """\
defaults
    mode http
    timeout connect {connect}
    timeout server 10m
    {option}
backend e
    option httpchk GET /health
    default-server check {check} maxconn 4
    server a 192.0.2.1:80
    server b 192.0.2.2:80
"""


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ("", "for up to 6 s, a box that vanished (silence, no refusal) for up to 12 s, one that hangs"),
        ("", "an engine that is back gets nothing for up to 4 s"),
        ("inter 10s fall 2 rise 1", "for up to 20 s, a box that vanished (silence, no refusal) for up to 40 s"),
        ("inter 1s downinter 30s rise 1", "an engine that is back gets nothing for up to 30 s"),
    ],
)  # fmt: skip
def test_what_checks_cost_in_seconds(check: str, said: str) -> None:
    assert said in one(HAPROXY_PAIR.format(connect="2s", option="", check=check), "H04").outage


def test_quick_checks_are_no_finding() -> None:
    text = HAPROXY_PAIR.format(connect="2s", option="", check="inter 500ms fall 2 rise 1")
    assert not [finding for finding in found(text) if finding.code == "H04"]


def test_retries_without_redispatch_are_told_in_seconds() -> None:
    finding = one(HAPROXY_PAIR.format(connect="5s", option="retries 4", check=""), "H10")
    assert "after 4 s when the port refuses, after up to 25 s when the box is silent" in finding.outage
    text = HAPROXY_PAIR.format(connect="5s", option="option redispatch", check="")
    assert not [finding for finding in found(text) if finding.code == "H10"]


def test_a_missing_queue_timeout_falls_back_to_connect() -> None:
    finding = one(HAPROXY_PAIR.format(connect="2s", option="", check=""), "H32")
    assert "request 9 and later ones get 503 after 2 s" in finding.outage
    assert "with the largest copy away that begins at request 5" in finding.outage


@pytest.mark.parametrize(
    ("address", "severity"),
    [
        ("ipv4@0.0.0.0:9999 level admin", Severity.ERROR),
        ("*:9999 level admin", Severity.ERROR),
        ("ipv4@10.0.0.1:9999", Severity.WARNING),
        ("ipv4@127.0.0.1:9999 level admin", None),
        ("/run/haproxy.sock level admin", None),
    ],
)
def test_a_runtime_socket_is_for_this_machine_only(address: str, severity: Severity | None) -> None:
    text = f"global\n    stats socket {address}\nbackend e\n"
    assert [finding.severity for finding in found(text) if finding.code == "H45"] == ([severity] if severity else [])


def test_what_a_file_says_cannot_write_to_the_terminal() -> None:
    text = (
        "backend e\n    balance hdr(\x1b[31mred"
        + "x" * 500
        + ")\n    server a 192.0.2.1:80\n    server b 192.0.2.2:80\n"
    )
    finding = one(text, "H30")
    assert finding.setting.isprintable()
    assert len(finding.setting) <= 201


def test_the_page_is_current() -> None:
    told = "run `python -m fleetctl.proxy.lint.page > docs/proxy-lint.md`"
    assert (ROOT / "docs" / "proxy-lint.md").read_text() == page(), told


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
def test_haproxy_itself_accepts_the_good_file(tmp_path: Path) -> None:
    error = tmp_path / "503.http"
    error.write_text("HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\r\n{}")
    file = tmp_path / "haproxy.cfg"
    file.write_text(sample("good-haproxy.cfg").replace("/etc/haproxy/openai-503.json.http", str(error)))
    done = subprocess.run(["haproxy", "-c", "-f", str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_itself_accepts_the_good_file(tmp_path: Path) -> None:
    (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/pid;\n" + sample("good-nginx.conf"))
    words = ["nginx", "-t", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-e", str(tmp_path / "log")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert "syntax is ok" in done.stderr  # whether its own folders exist is not the matter here
