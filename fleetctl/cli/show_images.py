"""Container images of the boxes as people and programs read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fleetctl.cli.output import emit, hang
from fleetctl.spec.units import size

if TYPE_CHECKING:
    from fleetctl.plan.imagepush import ImageWanted
    from fleetctl.run.images import Found


def show_images(found: list[tuple[ImageWanted, Found]], wrong: dict[str, list[str]], out: Console) -> None:
    """A table of images and boxes, then what is not right and what to do."""
    from fleetctl.plan.images import short

    table = Table("image", "for", "box", "id", "size", "", box=None, pad_edge=False)
    for wanted, there in found:
        for box, one in there.items():
            state = one.problem or ("" if one.id else "missing")
            pinned = "pinned by id:" if wanted.identity and one.id == wanted.identity else state
            table.add_row(
                escape(wanted.name),
                ", ".join(wanted.models),
                box,
                short(one.id) if one.id else "-",
                size(one.size) if one.id else "-",
                f"[red]{escape(state)}[/]" if state else pinned,
            )
    out.print(table)
    for wanted, there in found:
        ids = {one.id for one in there.values() if one.id}
        if len(ids) == 1 and wanted.identity is None and "@sha256:" not in wanted.name:
            identity = next(iter(ids))
            out.print(f"`id: {identity}` beside `image: {wanted.name}` keeps it so", markup=False, soft_wrap=True)
        for line in wrong.get(wanted.name, ()):
            hang(out, f"[yellow]problem:[/] {escape(f'{wanted.name}: {line}')}", 9)
        if wrong.get(wanted.name):
            out.print(f"  `fleetctl images push {wanted.name}` copies it from box to box", markup=False)


def tell_images(found: list[tuple[ImageWanted, Found]], wrong: dict[str, list[str]]) -> None:
    """The same for programs."""
    emit(
        "images",
        images=[
            {
                "image": wanted.name,
                "engine": wanted.engine,
                "pinned": wanted.identity,
                "models": list(wanted.models),
                "boxes": {box: one.model_dump(include={"id", "size", "problem"}) for box, one in there.items()},
            }
            for wanted, there in found
        ],
        problems=wrong,
    )
