"""Weights on the boxes as people and programs read them."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fleetctl.cli.output import console, emit, hang
from fleetctl.spec.units import size

if TYPE_CHECKING:
    from fleetctl.plan.weights import Lying, Wanted
    from fleetctl.run.weights import Found

_STYLES = {"proven": "green", "unproven": "yellow", "touched": "yellow"}


class Reading:
    """Context manager: the progress of boxes that read weights, as bars on a terminal, as events in JSON."""

    def __init__(self, *, as_json: bool) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        out = console(error=True)
        self._json = as_json
        self._bars: dict[tuple[str, str], Any] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=out,
            transient=True,
            disable=as_json or not out.is_terminal,
        )

    def __enter__(self) -> Reading:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def hear(self, box: str, model: str, event: dict[str, Any]) -> None:
        """Take an event of one box."""
        if self._json:
            emit("progress", box=box, model=model, **event)
            return
        key = (box, model)
        if key not in self._bars:
            self._bars[key] = self._progress.add_task(f"{box} {model}", total=event["total"])
        self._progress.update(self._bars[key], completed=event["bytes"])


def show_found(found: Found, wrong: dict[str, list[str]], out: Console) -> None:
    """A table of models and boxes, then what is not right and what to do."""
    table = Table("model", "box", "state", "size", "files", "weights", "since", box=None, pad_edge=False)
    for wanted, lying in found:
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(lying.at)) if lying.at else ""
        by = f"{since}, {lying.by}" if lying.by else since
        state = f"[{_STYLES.get(lying.state, 'red')}]{lying.state}[/]"
        name = f"{wanted.name} ({lying.commit[:12]})" if lying.commit else wanted.name
        table.add_row(wanted.model, wanted.box, state, size(lying.bytes), str(lying.files), escape(name), escape(by))
    out.print(table)
    for wanted, lying in found:
        if lying.staged:
            out.print(
                f"{wanted.box}: {size(lying.staged)} of a transfer of {wanted.name} that was cut off are there; "
                f"`fleetctl weights push {wanted.model}` goes on with it",
                markup=False,
            )
    for model, lines in wrong.items():
        for line in lines:
            hang(out, f"[yellow]problem:[/] {escape(f'{model}: {line}')}", 9)
        hang(out, escape(f"  {_way_out(model, [one for one in found if one[0].model == model])}"), 4)


def _way_out(model: str, found: Found) -> str:
    """The command that helps. A folder's files come from where the operator says, a hub id's from the hub."""
    states = {lying.state for _, lying in found}
    if states <= {"missing", "broken"}:
        origin = " --from FOLDER" if any(wanted.name.startswith("/") for wanted, _ in found) else ""
        fetched = f"`fleetctl weights pull {model}{origin}` fetches them"
        return f"{fetched}, `fleetctl weights push {model}` brings them to all boxes"
    if states & {"missing", "broken"}:
        return f"`fleetctl weights push {model}` brings them there"
    if states & {"unproven", "touched"}:
        return f"`fleetctl weights verify {model}` makes the checksums"
    return f"`fleetctl weights verify {model} --repair` sends what is wrong again (--from BOX says which is right)"


def tell_found(found: Found, wrong: dict[str, list[str]]) -> None:
    """The same for programs."""
    emit("weights", places=[told(wanted, lying) for wanted, lying in found], problems=wrong)


def told(wanted: Wanted, lying: Lying) -> dict[str, Any]:
    """One place as JSON."""
    return {"model": wanted.model, "box": wanted.box, "weights": wanted.name, **lying.model_dump(exclude={"sums"})}
