"""Groups of commands one of which can be left out: ``bench MODEL`` is short for ``bench load MODEL``."""

from __future__ import annotations

from typing import Any, ClassVar

from typer.core import TyperGroup


class Shortened(TyperGroup):
    """What names no command of the group belongs to the one called ``usual``."""

    usual: ClassVar[str]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in self.commands or args[0] in ("--help", "-h"))
        helped = not args and self.no_args_is_help
        return super().parse_args(ctx, args if named or helped else [self.usual, *args])
