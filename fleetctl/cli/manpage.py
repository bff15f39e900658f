"""The manual page fleetctl(1), of the same pages as docs/commands.md:
``python -m fleetctl.cli.manpage docs/exit-codes.md > man/fleetctl.1``.
"""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.cli.manual import COMMON, Entry, Page, common, pages

_HEAD = """\
.TH FLEETCTL 1 "" fleetctl "User Commands"
.SH NAME
fleetctl \\- move a small fleet of GPU boxes between layouts, and back
.SH SYNOPSIS
.B fleetctl
.I COMMAND
[\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]
.SH DESCRIPTION
One file,
.IR fleet.yaml ,
says what the boxes of a fleet are and which layouts it can be in.
.B fleetctl plan
shows what a move to a layout would do,
.B fleetctl cutover
does it, and
.B fleetctl rollback
takes it back. Boxes need SSH, sudo, systemd and python3.
.PP
Nothing is changed before it was shown and agreed to
.RB ( \\-\\-yes
does not ask). A change that fails is undone.
"""

_TAIL = """\
.SH ENVIRONMENT
.TP
.B FLEETCTL_FLEET
The fleet's file, where
.B \\-\\-fleet
is not given.
.SH FILES
.TP
.I fleet.yaml
The fleet.
.B fleetctl schema
prints its JSON Schema.
.TP
.I /etc/fleetctl
On a box: what fleetctl rendered, and the generations to go back to.
.TP
.I /var/lib/fleetctl
On a box: journals, the lock, what was measured.
.SH EXIT STATUS
"""


def page(statuses: Iterable[tuple[str, str]]) -> str:
    """The whole page in man(7); ``statuses`` are (number, meaning)."""
    parts = [_HEAD, ".SH COMMON OPTIONS\n", *map(_entry, common()), ".SH COMMANDS\n", *map(_command, pages()), _TAIL]
    parts += [f".TP\n.B {number}\n{_text(meaning)}\n" for number, meaning in statuses]
    return "".join(parts)


def _command(page: Page) -> str:
    own = [entry for entry in page.options if entry.long not in COMMON]
    paragraphs = [_text(" ".join(paragraph.split())) for paragraph in page.says.split("\n\n")]
    return (
        f".SS {_text(page.usage)}\n" + "\n.PP\n".join(paragraphs) + "\n" + "".join(map(_entry, [*page.arguments, *own]))
    )


def _entry(entry: Entry) -> str:
    return f".TP\n.B {_text(entry.written)}\n{_text(entry.says)}\n"


def _text(text: str) -> str:
    """Text as roff takes it: no line begins a request, and a dash stays one that can be copied."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in escaped.split("\n"))


def statuses(exit_codes: str) -> list[tuple[str, str]]:
    """(number, meaning) of each row of docs/exit-codes.md."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in exit_codes.splitlines()]
    return [(row[0], row[1].replace("`", "")) for row in rows if len(row) == 3 and row[0].isdigit()]


if __name__ == "__main__":
    import sys
    from pathlib import Path

    print(page(statuses(Path(sys.argv[1]).read_text(encoding="utf-8"))), end="")
