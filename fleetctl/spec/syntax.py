"""YAML text to a node tree, with syntax errors put in plain words."""

from __future__ import annotations

import re

import yaml

from fleetctl.spec.problems import FleetFileError, Problem, line_shown

LONGEST = 1 << 20
"""Longest fleet.yaml that is read, in characters."""

_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # the line breaks that YAML counts
_NOT_YAML = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_INDENTATION = "check the indentation and the quotes up to here"
_TAGS = "tags (`!name`) are not used in a fleet; put text that begins with ! in quotes"
_AT_PROBLEM = (
    # What the parser says, and the same in plain words.
    ("unknown escape character", "a backslash in double quotes is an escape; use 'single quotes'"),
    ("escape code", "this escape is no character; use 'single quotes' for text with backslashes"),
    (
        "mapping values are not allowed",
        f"no key can begin here; {_INDENTATION}, and quote text that has `: ` in it",
    ),
    ("expected '-' indicator", f"this line is in a list and does not begin with `-`; {_INDENTATION}"),
    ("expected <block end>", f"this does not fit with the lines above; {_INDENTATION}"),
    ("did not find expected key", f"a key is expected here; {_INDENTATION}"),
    ("expected node content", "a value is missing here"),
    ("undefined alias", "this *alias has no &anchor of that name above it"),
    ("second occurrence", "this &anchor is already used above; give it a name of its own"),
    ("found another document", "a second document begins here (`---`); a fleet is one document"),
    ("nesting depth", "this is nested too deeply for a fleet"),
    ("tag", _TAGS),
    ("unexpected ':'", "a `:` needs a space after it, or the text around it quotes"),
    ("directive", "`%` at the beginning of a line is a directive of YAML; put the text in quotes"),
)
_AT_BEGINNING = (
    # The same, for what is best shown where the broken thing began.
    ("unexpected end of stream", "the quote that begins here is never closed"),
    ("document indicator", "the quote that begins here is never closed"),
    ("expected ',' or ']'", "the [ that begins here is not closed, or a comma is missing in it"),
    ("expected ',' or '}'", "the { that begins here is not closed, or a comma is missing in it"),
    ("could not find expected ':'", "this has no `:`; write `key: value`, or `- item` in a list"),
)


def lines_of(text: str) -> list[str]:
    """The lines of a text as YAML counts them, without their ends."""
    return _BREAK.split(text)


def compose(text: str, source: str) -> yaml.Node | None:
    """The node tree of a YAML text; None when there is nothing in it. Raises FleetFileError."""
    if len(text) > LONGEST:
        message = f"the file has {len(text):,} characters, more than a fleet can need ({LONGEST:,})"
        raise FleetFileError(source, [Problem(1, 1, (), message)])
    odd = _NOT_YAML.search(text)
    if odd:
        line = _BREAK.split(text[: odd.start()])
        what = f"a character that YAML does not allow (U+{ord(odd[0]):04X}); delete it"
        raise FleetFileError(source, [Problem(len(line), len(line[-1]) + 1, (), what)])
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise FleetFileError(source, [_syntax_problem(error, text)]) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise FleetFileError(source, [Problem(1, 1, (), f"this is not YAML: {type(error).__name__}")]) from None
    return node


def _syntax_problem(error: yaml.MarkedYAMLError, text: str) -> Problem:
    found = error.problem or error.context or "it cannot be read"
    mark = error.problem_mark or error.context_mark
    what = f"this is not valid YAML: {found}"
    for words, plain in _AT_BEGINNING:
        if words in found:
            what, mark = plain, error.context_mark or mark
            break
    else:
        what = next((plain for words, plain in _AT_PROBLEM if words in found), what)
    lines = lines_of(text)
    row, column = (mark.line, mark.column) if mark else (0, 0)
    if row >= len(lines):  # the parser stands behind the last line when something is missing at the end
        row, column = len(lines) - 1, len(lines[-1])
    line = lines[row]
    column = min(column, len(line))
    if "cannot start any token" in found:
        what = _odd_beginning(line[column : column + 1])
    return Problem(row + 1, column + 1, (), f"{what}\n{_pointed_at(line, column)}")


def _odd_beginning(character: str) -> str:
    if character == "\t":
        return "a tab; YAML is indented with spaces, so replace the tab by spaces"
    return f"text cannot begin with {character or 'this character'}; put it in quotes"


def _pointed_at(line: str, column: int) -> str:
    """The offending line with a caret below the column, cut to what fits a terminal."""
    line = line_shown(line).replace("\t", " ")
    begin = max(0, column - 60)
    return f"    {line[begin : begin + 100]}\n    {' ' * (column - begin)}^"
