"""Whatever is in a file, there are findings at lines of it, or one clear error."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.errors import SpecError
from fleetctl.proxy.lint.kinds import Kind, lint
from fleetctl.proxy.lint.rules_haproxy import RULES as HAPROXY
from fleetctl.proxy.lint.rules_nginx import RULES as NGINX

HERE = Path(__file__).parent
FILES = [*sorted((HERE / "lint").iterdir()), *sorted((HERE / "golden").rglob("haproxy.cfg"))]
TEXTS = [file.read_text() for file in FILES] + [rule.example for rule in (*HAPROXY, *NGINX)]
WORDS = sorted({word for text in TEXTS for word in text.split()})
SNIPPETS = st.one_of(
    st.sampled_from(
        ["{", "}", ";", "'", '"', "\\", "#", "\n", "\t", "\0", "\r", "\x85", "\u2028", "$", "${", "=", ":", "@", "no ",
         "-", "99999999999999999999", "-1", "0", "1e9", "²", "٣", "include *;", "include lint;", "_by_lua_block {",
         "# configuration file /x:\n", "from", "defaults from a", "[::", "unix:", "max_conns=²", "inter"]
    ),
    st.text(max_size=4),
    st.sampled_from(WORDS),
)  # fmt: skip
FEW = settings(max_examples=250)


def findings_or_told(text: str, kind: Kind | None) -> None:
    try:
        _, findings = lint("FILE", text, kind=kind, folder=HERE)
    except SpecError as error:
        assert error.message
        return
    for finding in findings:
        assert finding.place.line >= 1
        if finding.place.file == "FILE":
            assert finding.place.line <= text.count("\n") + 1
        assert finding.outage
        assert finding.write


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A configuration with lines taken out, doubled or mixed, and snippets put in or over words."""
    text = draw(st.sampled_from(TEXTS))
    lines = text.split("\n")
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(0, len(lines) - 1)))
        what = draw(st.integers(0, 4))
        if not lines or what == 0:
            lines.insert(at, draw(st.sampled_from(draw(st.sampled_from(TEXTS)).split("\n"))))
        elif what == 1:
            del lines[at]
        elif what == 2:
            words = lines[at].split(" ")
            words[draw(st.integers(0, len(words) - 1))] = draw(SNIPPETS)
            lines[at] = " ".join(words)
        elif what == 3:
            column = draw(st.integers(0, len(lines[at])))
            lines[at] = lines[at][:column] + draw(SNIPPETS) + lines[at][column:]
        else:
            lines[at] = " ".join(lines[at].split(" ")[: draw(st.integers(0, 4))])
    return "\n".join(lines)


@FEW
@given(mutated(), st.sampled_from([None, *Kind]))
def test_a_changed_configuration_is_read_or_refused(text: str, kind: Kind | None) -> None:
    findings_or_told(text, kind)


@FEW
@given(st.text(max_size=200), st.sampled_from([None, *Kind]))
def test_any_text_is_read_or_refused(text: str, kind: Kind | None) -> None:
    findings_or_told(text, kind)


def test_large_files_take_a_moment_not_minutes() -> None:
    """Thousands of servers, locations and braces; what grows with their square would not come back."""
    servers = "".join(f"    server s{n} 192.0.2.1:{n} check\n" for n in range(3_000))
    findings_or_told("defaults\n    mode http\nbackend e\n" + servers, None)
    locations = "".join(f"location /{n} {{ proxy_pass http://e; }}\n" for n in range(3_000))
    findings_or_told("upstream e { server a; server b; }\nserver {\n" + locations + "}", None)
    findings_or_told('"' * 100_000, Kind.NGINX)
    findings_or_told("backend e\n server " + '"a' * 100_000, Kind.HAPROXY)
