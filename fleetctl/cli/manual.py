"""Every command as a page of the manual, read off the commands themselves; docs/commands.md is made of them:
``python -m fleetctl.cli.manual > docs/commands.md``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COMMON = (
    "--json",
    "--debug",
    "--help",
    "--accept-new-host-keys",
    "--ssh-config",
    "--via",
    "--fleet",
    "--yes",
    "--take-over",
)
"""Options that mean the same wherever they are; they are told once."""

_KINDS = {"int range": "N", "int": "N", "float range": "N", "float": "N", "path": "FILE", "str": "TEXT"}
_RANGE = re.compile(r"(?:; )?(?:-?[\d.]+<=?)?x[<>]=?-?[\d.]+")


@dataclass(frozen=True)
class Entry:
    """An argument or an option: how it is written, and what it says."""

    written: str
    says: str

    @property
    def long(self) -> str:
        """The option's long name; "" for an argument."""
        return next((word for word in re.split(r"[ ,]+", self.written) if word.startswith("--")), "")


@dataclass(frozen=True)
class Page:
    """One command of the manual."""

    name: str
    arguments: tuple[Entry, ...]
    options: tuple[Entry, ...]
    says: str

    @property
    def usage(self) -> str:
        """How the command is called."""
        words = [self.name, "[OPTIONS]", *(entry.written for entry in self.arguments)]
        return " ".join(words)

    @property
    def summary(self) -> str:
        """The first paragraph of what it says."""
        return self.says.split("\n\n")[0].replace("\n", " ")


def pages() -> list[Page]:
    """A page for every command, in the order of ``fleetctl --help``, the commands of a group by name."""
    import typer

    from fleetctl.cli.main import app

    root = typer.main.get_command(app)
    return list(_walk(root, typer.Context(root, info_name="fleetctl")))


def common() -> list[Entry]:
    """The options that mean the same in every command that has them."""
    found = {entry.long: entry for page in pages() for entry in page.options if entry.long in COMMON}
    return [found[name] for name in COMMON if name in found]


def _walk(command: Any, context: Any) -> Iterator[Page]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield _page(command, context)
        return
    for name, each in sorted(inner.items()) if context.parent else inner.items():
        shown = f"[{name}]" if name == getattr(command, "usual", None) else name
        yield from _walk(each, type(context)(each, info_name=shown, parent=context))


def _page(command: Any, context: Any) -> Page:
    arguments, options = [], []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:
            continue
        written, says = record
        if parameter.param_type_name == "argument":
            arguments.append(Entry(_argument(parameter, written), _plain(says)))
        else:
            options.append(Entry(_option(written), _plain(says)))
    return Page(context.command_path, tuple(arguments), tuple(options), (command.help or "").strip())


def _argument(parameter: Any, written: str) -> str:
    name = re.sub(r" <[^>]*>$", "", written)
    return name if parameter.nargs == 1 or name.endswith("…") else f"{name}…"


def _option(written: str) -> str:
    return re.sub(r"<([^>]*)>", lambda found: _KINDS.get(found[1], found[1].upper()), written)


def _plain(says: str) -> str:
    """Help without what the framework adds about ranges and what is required."""
    text, _, extra = says.partition("  [")
    kept = [_RANGE.sub("", part) for part in extra.rstrip("]").split("; ")] if extra else []
    kept = [part for part in kept if part and part != "required"]
    return " ".join(text.split()) + (f" ({'; '.join(kept)})" if kept else "")


_INTRODUCTION = """\
# Commands

Made from the commands themselves; `fleetctl COMMAND --help` and `man fleetctl` say the same. Every command ends with a
[documented status](exit-codes.md). Boxes, models, layouts and engines complete in the shell after
`fleetctl --install-completion`.

## Options that mean the same everywhere

"""


def markdown() -> str:
    """The whole of docs/commands.md."""
    parts = [_INTRODUCTION, _table(common())]
    for page in pages():
        own = [entry for entry in page.options if entry.long not in COMMON]
        also = [f"`{entry.long}`" for entry in page.options if entry.long in COMMON and entry.long not in ("--help",)]
        parts.append(f"\n## `{page.name}`\n\n    {page.usage}\n\n{_joined(page.says)}\n")
        if page.arguments or own:
            parts.append("\n" + _table([*page.arguments, *own]))
        if also:
            parts.append(f"\nAlso: {', '.join(also)}.\n")
    return "".join(parts)


def _joined(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _table(entries: list[Entry]) -> str:
    rows = [f"| `{_cell(entry.written)}` | {_cell(entry.says)} |" for entry in entries]
    return "\n".join(["| | |", "| --- | --- |", *rows, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(markdown(), end="")
