"""Configurations are read as HAProxy and nginx read them: quotes, comments, defaults, includes, and where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.errors import SpecError
from fleetctl.proxy.lint import haproxy_reader, nginx_reader
from fleetctl.proxy.lint.haproxy_reader import servers, split_words
from fleetctl.proxy.lint.kinds import Kind, detect
from fleetctl.proxy.lint.nginx_words import words_of
from fleetctl.proxy.lint.quantities import haproxy_seconds, longest_prompt, nginx_bytes, nginx_seconds, told


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("  server a 10.0.0.1:80 check # the first", ("server", "a", "10.0.0.1:80", "check")),
        (r"description a\ b\#c", ("description", "a b#c")),
        ("log-format 'a \"b\" #c'", ("log-format", 'a "b" #c')),
        (r'acl x hdr "a \"b\" # c"d', ("acl", "x", "hdr", 'a "b" # cd')),
        ("# all of it", ()),
        ('never "closed', ("never", "closed")),
    ],
)
def test_haproxy_words(line: str, words: tuple[str, ...]) -> None:
    assert tuple(word.replace('\\"', '"') for word in split_words(line)) == words


def test_a_backend_inherits_from_the_defaults_before_it_or_the_ones_it_names() -> None:
    text = """\
defaults slow
    timeout server 1h
defaults from slow
    mode http
    option redispatch
    default-server inter 5s maxconn 3
backend first
    no option redispatch
    server a 192.0.2.1:80 check
backend second from slow
    default-server check
    server-template b 1-3 host:80 inter 9s no-check
"""
    first, second = haproxy_reader.read("h", text).backends
    assert first.mode == "http"
    assert first.last("timeout", "server") is not None
    assert not first.has("option", "redispatch")
    assert servers(first)[0].params == {"inter": "5s", "maxconn": "3", "check": ""}
    assert second.mode == "tcp"
    assert servers(second)[0].copies == 3
    assert not servers(second)[0].checked


def test_nginx_words_know_quotes_comments_variables_and_lua() -> None:
    text = "a 'b;c' \"d}\" ${e}f; # no {\nlog '{\"x\": 1}';\ncontent_by_lua_block { if '}' then { } end -- }\n}\nz;"
    seen = [(word.text, word.line) for word in words_of(text)]
    assert seen[:5] == [("a", 1), ("b;c", 1), ("d}", 1), ("${e}f", 1), (";", 1)]
    assert ('{"x": 1}', 2) in seen
    assert seen[-4:] == [("{", 3), ("}", 4), ("z", 5), (";", 5)]


def test_nginx_includes_are_followed_in_the_folder_of_the_file_only(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "b.conf").write_text("\nserver {\n  location / { proxy_pass http://a; }\n}\n")
    outside = tmp_path.parent / "outside.conf"
    outside.write_text("gzip on;")
    text = f"http {{\n include conf.d/*.conf;\n include gone.conf;\n include none/*;\n include {outside};\n"
    text += " include ../outside.conf;\n}\n"
    config = nginx_reader.read("n", text, tmp_path)
    (found,) = config.every("proxy_pass")
    assert (Path(found.place.file).name, found.place.line) == ("b.conf", 3)
    assert found.parent is not None and found.parent.setting("gzip") is None
    assert [(missed.place.line, missed.pattern) for missed in config.not_read] == [
        (3, "gone.conf"),
        (5, str(outside)),
        (6, "../outside.conf"),
    ]


def test_a_file_that_includes_itself_is_named(tmp_path: Path) -> None:
    (tmp_path / "me.conf").write_text("include me.conf;\n")
    config = nginx_reader.read("n", "include me.conf;", tmp_path)
    assert "includes itself" in config.not_read[-1].reason


def test_a_dump_of_nginx_is_read_with_its_includes() -> None:
    text = """\
# configuration file /etc/nginx/nginx.conf:
http {
    include /etc/nginx/conf.d/*.conf;
    proxy_read_timeout 5s;
}
# configuration file /etc/nginx/conf.d/a.conf:
server {
    location / { proxy_pass http://192.0.2.1; }
}
"""
    (found,) = nginx_reader.read("standard input", text).every("proxy_pass")
    assert str(found.place) == "/etc/nginx/conf.d/a.conf:2"
    assert found.parent is not None
    setting = found.parent.setting("proxy_read_timeout")
    assert setting is not None and setting.arg(0) == "5s"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http {\n}\n}\n", "n:3: a } without"),
        ("http {\n server {\n }\n", "n:1: the block `http` is never closed"),
        ("a {" * 60 + "}" * 60, "blocks inside each other"),
        ("a; {\n}", "n:1: a { without a name"),
        ("a;\nb c", "n:2: `b …` is not ended"),
    ],
)
def test_braces_that_do_not_match_are_told_with_their_line(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        nginx_reader.read("n", text)


def test_the_two_kinds_are_told_apart() -> None:
    samples = Path(__file__).parent / "lint"
    for file in samples.glob("*.conf"):
        assert detect(file.name, file.read_text()) is Kind.NGINX
    for file in samples.glob("*.cfg"):
        assert detect(file.name, file.read_text()) is Kind.HAPROXY
    for text in ("", "hello\n", "[Unit]\nDescription=x\n", "a: 1\nb:\n  - 2\n", '{"a": 1}'):
        with pytest.raises(SpecError, match="neither"):
            detect("x", text)


def test_durations_and_sizes() -> None:
    assert haproxy_seconds("50000") == 50
    assert haproxy_seconds("500ms") == 0.5
    assert haproxy_seconds("2x") is None
    assert nginx_seconds("90") == 90
    assert nginx_seconds("1m30s") == 90
    assert nginx_seconds("1h 30m") == 5400
    assert nginx_seconds("x") is None
    assert nginx_bytes("8k") == 8192
    assert haproxy_seconds("9" * 15 + "d") is not None
    assert (told(0.25), told(30), told(600), told(7200)) == ("0.25 s", "30 s", "10 min", "2 h")


def test_the_longest_prompt_follows_what_was_measured() -> None:
    assert longest_prompt(9.6) == "about 17,000 tokens"
    assert longest_prompt(135.0) == "about 135,000 tokens"
    assert longest_prompt(1000.0) == "more than 202,323 tokens"
