"""Words survive systemd.

The reading is done here by the rules of systemd.syntax(7) and systemd.service(5), written down again; in the lab by
systemd itself (tests/lab/test_lab_units.py).
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.errors import SpecError
from fleetctl.render.escape import environment_line, exec_line

TEXT = st.text(
    st.characters(blacklist_categories=["Cs", "Cn"], blacklist_characters="\0"),
    max_size=40,
)
TRICKY = st.text(st.sampled_from("%$'\"\\ ;{}a\n\t-@+!:|x0é"), max_size=12)
WORDS = st.lists(st.one_of(TEXT, TRICKY), max_size=6)


def read_words(line: str) -> list[str]:
    """Split and unquote as systemd does; an unquoted ; would end the command."""
    assert "\n" not in line
    words, word, quote, position = [], None, None, 0
    while position < len(line):
        char = line[position]
        if char == "\\":
            if line[position + 1] == "x":
                char, position = chr(int(line[position + 2 : position + 4], 16)), position + 2
            else:
                char = {"n": "\n", "t": "\t"}.get(line[position + 1], line[position + 1])
            word, position = (word or "") + char, position + 2
            continue
        if quote is None and char == " ":
            words, word = ([*words, word] if word is not None else words), None
        elif char in "'\"" and quote in (None, char):
            word, quote = word or "", None if quote else char
        else:
            assert not (quote is None and char == ";" and word is None), "an unquoted ; ends the command"
            word = (word or "") + char
        position += 1
    assert quote is None
    return words if word is None else [*words, word]


def no_specifiers(word: str) -> str:
    assert not re.sub("%%", "", word).count("%"), "a specifier would be expanded"
    return word.replace("%%", "%")


def no_variables(word: str) -> str:
    assert not word.replace("$$", "").count("$"), "a variable would be expanded"
    return word.replace("$$", "$")


@given(WORDS)
def test_any_word_of_a_command_line_arrives_as_it_was(words: list[str]) -> None:
    line = exec_line(["/bin/x", *words])
    assert [no_variables(no_specifiers(word)) for word in read_words(line)] == ["/bin/x", *words]


@given(st.one_of(TEXT, TRICKY))
def test_any_value_of_a_variable_arrives_as_it_was(value: str) -> None:
    assert [no_specifiers(word) for word in read_words(environment_line("NAME", value))] == [f"NAME={value}"]


def test_what_needs_no_quotes_has_none() -> None:
    assert exec_line(["/bin/x", "--port", "8000", "a=b"]) == "/bin/x --port 8000 a=b"
    assert exec_line(["/bin/x", '{"a":1}', "", ";", "100%", "$HOME"]) == '/bin/x \'{"a":1}\' "" ";" "100%%" "$$HOME"'


@pytest.mark.parametrize("word", ["a\0b", "\ud800", "\ufdd0", "\uffff"])
def test_what_systemd_cannot_pass_on_is_refused(word: str) -> None:
    with pytest.raises(SpecError, match="holds the character U"):
        exec_line(["/bin/x", word])


@pytest.mark.parametrize("program", ["vllm", "-/bin/x", "/opt/$x/vllm", ""])
def test_a_program_that_systemd_cannot_name_is_refused(program: str) -> None:
    with pytest.raises(SpecError, match="cannot be started"):
        exec_line([program])


@pytest.mark.parametrize("name", ["", "A-B", "1A", "A B", "Ä"])
def test_a_name_that_is_no_variable_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match="no name of an environment variable"):
        environment_line(name, "x")
