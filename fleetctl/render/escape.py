"""Words and variables written so that systemd reads back what was meant: systemd.syntax(7), systemd.service(5).

A word of ExecStart= goes through three readings: quotes and backslashes, then %-specifiers, then $-variables. A line of
Environment= goes through the first two only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fleetctl.errors import SpecError

_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@+-]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _quote(text: str, what: str) -> str:
    """``text`` as one word of a unit file, specifiers doubled. Raises SpecError for what no unit file can hold."""
    for char in text:
        code = ord(char)
        if code == 0 or 0xD800 <= code <= 0xDFFF or 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE:
            raise SpecError(
                f"{what} {text!r} holds the character U+{code:04X}",
                hint="systemd cannot pass it on: leave it out",
            )
    if _PLAIN.fullmatch(text):
        return text
    # Both kinds of quotes read backslashes; JSON stays readable between single ones.
    mark = "'" if '"' in text and "'" not in text else '"'
    quoted = "".join(_escape(char, mark) for char in text)
    return mark + quoted.replace("%", "%%") + mark


def _escape(char: str, mark: str) -> str:
    if char in ("\\", mark):
        return "\\" + char
    code = ord(char)
    return f"\\x{code:02x}" if code < 32 or code == 127 else char


def exec_line(argv: Sequence[str]) -> str:
    """A command line for ExecStart= and its like. ``argv[0]`` is an absolute path.

    Raises SpecError for a program that systemd cannot name: it expands no variable there, so ``$`` would not survive.
    """
    program = argv[0]
    if not program.startswith("/") or "$" in program:
        raise SpecError(f"the program {program!r} cannot be started by systemd", hint="use an absolute path without $")
    return " ".join(_quote(word, "the argument").replace("$", "$$") for word in argv)


def check_variable(name: str) -> None:
    """Raises SpecError for a name that systemd does not take for a variable."""
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"{name!r} is no name of an environment variable",
            hint="use letters, digits and _, no digit in front",
        )


def environment_line(name: str, value: str) -> str:
    """A variable for Environment=. Raises SpecError for a name that is no name of a variable."""
    check_variable(name)
    return _quote(f"{name}={value}", "the environment variable")
