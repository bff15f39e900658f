"""Settings of the proxy are changed in the text of fleet.yaml, and nothing else in it changes."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.errors import SpecError
from fleetctl.spec.edit import save, with_proxy_settings
from fleetctl.spec.load import parse_fleet

EXAMPLE = (Path(__file__).parents[2] / "templates" / "example.yaml").read_text()
HEAD = """\
fleet: office   # ours
boxes:
  a: {address: 10.0.0.1, memory: 100GiB, reserve: 20GiB}
models:
  m: {weights: org/m, context: 8192, launch: {venv: /opt/vllm}}
layouts:
  one: {m: {copies: [a]}}
"""
SET = {"hold": "15m", "retries": "2", "fall": "3"}


def lines(before: str, after: str) -> list[str]:
    """The lines that an edit takes out and puts in."""
    told = difflib.ndiff(before.splitlines(keepends=True), after.splitlines(keepends=True))
    return [line for line in told if line[0] in "+-"]


CASES = {
    "keys that are there keep place and comment": (
        "proxy:\n  hold:   20m   # long\n  box: a\n  retries: 3\n  fall: 2\n",
        ["- hold:   20m   # long", "+ hold:   15m   # long", "- retries: 3", "+ retries: 2", "- fall: 2", "+ fall: 3"],
    ),
    "absent keys come behind the last plain one, before what follows": (
        "proxy:\n    box: a    # the first\n    api_keys:   # secret\n        x: {env: X}\n# end\n",
        ["+ hold: 15m", "+ retries: 2", "+ fall: 3"],
    ),
    "flow style stays flow style": (
        "proxy: {box: a, hold: 20m}   # all\n",
        ["- proxy: {box: a, hold: 20m}   # all", "+ proxy: {box: a, hold: 15m, retries: 2, fall: 3}   # all"],
    ),
    "flow style over lines, with a comma at the end": (
        "proxy: {\n  box: a,\n  api_keys: {x: {env: X}},\n}\n",
        ["- box: a,", "+ box: a, hold: 15m, retries: 2, fall: 3,"],
    ),
    "quotes stay": (
        'proxy:\n  box: \'a\'\n  "hold": "20m"\n',
        ['- "hold": "20m"', '+ "hold": "15m"', "+ retries: 2", "+ fall: 3"],
    ),
    "an alias is replaced and its anchor stays": (
        "gates: {completion: {within: &t 20m}}\nproxy:\n  hold: *t # t\n  box: a\n",
        ["- hold: *t # t", "+ hold: 15m # t", "+ retries: 2", "+ fall: 3"],
    ),
    "an alias in flow style": (
        "gates: {completion: {within: &t 20m}}\nproxy: {box: a, hold: *t}\n",
        ["- proxy: {box: a, hold: *t}", "+ proxy: {box: a, hold: 15m, retries: 2, fall: 3}"],
    ),
    "an anchor that nobody uses stays": (
        "proxy:\n  hold: &h 20m\n  box: a\n",
        ["- hold: &h 20m", "+ hold: &h 15m", "+ retries: 2", "+ fall: 3"],
    ),
    "a key that comes by a merge is written out": (
        "proxy:\n  <<: {hold: 30m, fall: 4}\n  box: a\n",
        ["+ hold: 15m", "+ retries: 2", "+ fall: 3"],
    ),
    "the last line may be without an end": ("proxy:\n  box: a", ["+ hold: 15m", "+ retries: 2", "+ fall: 3"]),
}


def stripped(told: list[str], before: str) -> list[str]:
    return [f"{line[0]} {line[2:].strip()}" for line in told if before.endswith("\n") or line[2:].strip() != "box: a"]


@pytest.mark.parametrize("break_", ["\n", "\r\n"])
@pytest.mark.parametrize("case", CASES)
def test_only_the_settings_change(case: str, break_: str) -> None:
    text, expected = CASES[case]
    before = (HEAD + text).replace("\n", break_)
    after = with_proxy_settings(before, SET)
    assert sorted(stripped(lines(before, after), text)) == sorted(expected)
    assert after.count("\r") == (after.count("\n") if break_ == "\r\n" else 0)
    proxy = parse_fleet(after, "fleet.yaml").proxy
    assert (proxy.hold, proxy.retries, proxy.fall, proxy.box) == (900.0, 2, 3, "a")


def test_indentation_is_that_of_the_other_keys() -> None:
    after = with_proxy_settings(HEAD + "proxy:\n      box: a\n", {"fall": "3"})
    assert after.endswith("proxy:\n      box: a\n      fall: 3\n")


def test_an_empty_value_gets_one_and_keeps_its_comment() -> None:
    before = HEAD + "proxy:\n  box: a\n  timeout_queue:   # as hold\n"
    after = with_proxy_settings(before, {"timeout_queue": "1m"})
    assert after == before.replace("timeout_queue:   #", "timeout_queue: 1m   #")


def test_a_file_keeps_its_mode_its_link_and_its_byte_order_mark(tmp_path: Path) -> None:
    file, link = tmp_path / "kept" / "fleet.yaml", tmp_path / "fleet.yaml"
    file.parent.mkdir()
    before = HEAD.replace("\n", "\r\n")
    file.write_bytes(b"\xef\xbb\xbf" + before.encode())
    file.chmod(0o640)
    link.symlink_to(file)
    save(link, before, before + "# more\r\n")
    assert file.read_bytes() == b"\xef\xbb\xbf" + before.encode() + b"# more\r\n"
    assert (file.stat().st_mode & 0o777, link.is_symlink(), [*file.parent.iterdir()]) == (0o640, True, [file])


def test_a_file_that_was_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("what another has written\n")
    with pytest.raises(SpecError, match="changed meanwhile"):
        save(file, HEAD, HEAD + "# more\n")
    with pytest.raises(SpecError, match="cannot be written"):
        save(tmp_path / "gone.yaml", HEAD, HEAD)
    assert (file.read_text(), [*tmp_path.iterdir()]) == ("what another has written\n", [file])


@pytest.mark.parametrize(
    ("proxy", "change", "told"),
    [
        ("proxy: {box: a, hold: &t 20m}\ngates: {completion: {within: *t}}\n", {"hold": "15m"}, "write this under"),
        ("<<: {proxy: {box: a}}\n", {"hold": "15m"}, "not written out"),
        ("proxy: {box: a}\n", {"hold": "soon"}, "no settings of a proxy"),
        ("proxy: {box: a}\n", {"drain": "2h"}, "write this under"),
        ("proxy: {box: b}\n", {"hold": "15m"}, "there is no box"),
    ],
)
def test_what_would_change_more_or_be_wrong_is_refused(proxy: str, change: dict[str, str], told: str) -> None:
    with pytest.raises(SpecError) as caught:
        with_proxy_settings(HEAD + proxy, change)
    assert told in str(caught.value)


def test_the_example_keeps_every_other_line() -> None:
    after = with_proxy_settings(EXAMPLE, SET)
    assert [line for line in lines(EXAMPLE, after) if line[0] == "-"] == ["-   hold: 20m\n"]
    assert with_proxy_settings(after, SET) == after


ODD = st.sampled_from(
    ["'", '"', "&x ", "*x", "\t", " ", "\n", "# ", "{", "}", ": ", "<<: ", "- ", "? ", ", ", "|", "!a"]
)


@settings(max_examples=300)
@given(st.integers(0, len(EXAMPLE)), ODD, st.integers(0, 12))
def test_a_damaged_file_gives_an_error_and_never_a_traceback(place: int, odd: str, cut: int) -> None:
    text = EXAMPLE[:place] + odd + EXAMPLE[place + cut :]
    try:
        after = with_proxy_settings(text, SET)
    except SpecError:
        return
    assert parse_fleet(after, "fleet.yaml").proxy.hold == 900.0
