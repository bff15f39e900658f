"""What sudo says when it does not do as asked. The launcher sets LC_ALL=C, so the words are known."""

from __future__ import annotations

import re

from fleetctl.errors import BoxError


class PasswordWanted(Exception):  # noqa: N818 - no error: the next thing to do
    """sudo would do it for a password."""


# Words of sudo and, after the bar, of sudo-rs.
_WANTED = re.compile(r"a password is required|interactive authentication is required")
_REFUSED = re.compile(r"try again|incorrect password attempt|[Aa]uthentication fail|incorrect authentication attempt")
_TERMINAL = re.compile(r"must have a tty|a terminal is required|requires? a tty")
_NO_RIGHT = re.compile(
    r"is not in the sudoers file|is not allowed to (?:run sudo|execute)|may not run sudo|I'm sorry .* I'm afraid"
)


def refused(text: str) -> bool:
    """Whether sudo has refused a password."""
    return _REFUSED.search(text) is not None


def explain(box: str, user: str, text: str, *, asked: bool) -> None:
    """Raise what sudo's words on standard error mean; return when they are not sudo's.

    Raises PasswordWanted when sudo was not given a password and wants one, BoxError otherwise.
    """
    if found := _NO_RIGHT.search(text):
        raise BoxError(
            box,
            f"{user} has no right to use sudo as needed: {_line(text, found)}",
            hint=f"as somebody who may use sudo there: fleetctl setup {box} gives an account what it needs",
        )
    if found := _TERMINAL.search(text):
        raise BoxError(
            box,
            f"sudo insists on a terminal, which fleetctl does not use: {_line(text, found)}",
            hint=f"add to sudoers there: Defaults:{user} !requiretty",
        )
    if asked and (refused(text) or _WANTED.search(text)):
        raise BoxError(box, f"sudo refused the password of {user}")
    if _WANTED.search(text):
        raise PasswordWanted
    if found := re.search(r"^sudo(?:-rs)?: ", text, re.MULTILINE):
        raise BoxError(box, f"sudo does not work for {user}: {_line(text, found)}")


def _line(text: str, found: re.Match[str]) -> str:
    """The line that matters, without most of the command that sudo repeats."""
    line = text[text.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0].strip()
    return line if len(line) <= 160 else f"{line[:160]}…"
