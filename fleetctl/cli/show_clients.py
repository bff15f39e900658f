"""How clients that go round the proxy are shown."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table as Grid
from rich.text import Text

from fleetctl.cli.output import console, emit
from fleetctl.doctor.clients import matters

if TYPE_CHECKING:
    from rich.live import Live

    from fleetctl.facts.clients import Client
    from fleetctl.run.direct import Direct, Searched, Standing
    from fleetctl.spec.fleet import Fleet

_MOST = 40  # rows


def event(client: Client) -> dict[str, Any]:
    """A client as JSON. ``direct``: it goes round the proxy; otherwise it only reads figures, or tried once."""
    told = asdict(client) | {
        "process": client.process.model_dump() if client.process else None,
        "requests": client.requests.model_dump() if client.requests else None,
        "asked": sorted(client.asked),
    }
    return {"direct": matters(client), **told}


def tell(direct: Direct, found: list[Client]) -> None:
    """All of it as one event."""
    emit(
        "clients",
        layout=direct.live.layout,
        clients=[event(client) for client in found],
        refused=direct.refused,
        not_seen=[error.message for error in direct.away.values()],
    )


def show_clients(direct: Direct, found: list[Client]) -> None:
    """A table, and what the firewall refused."""
    out = console()
    if found:
        out.print(_grid(found))
    else:
        out.print("nobody talks to an engine directly, as far as was seen", markup=False)
    _around(direct)


def _around(direct: Direct) -> None:
    out = console()
    for box, who in direct.refused.items():
        out.print(f"{box}: within a day the firewall refused {', '.join(who)}", markup=False)
    for error in direct.away.values():
        out.print(f"not looked at: {error.message}", markup=False)


class Table:
    """A table that stays on the terminal and changes; in a pipe a line for each change."""

    def __init__(self, direct: Direct) -> None:
        from rich.live import Live

        self._direct = direct
        self._out = console()
        self._began = time.time()
        self._live: Live | None = None
        self._nobody = True
        if self._out.is_terminal:
            self._live = Live(Text("looking …"), console=self._out, auto_refresh=False)
            self._live.start()
        else:
            engines = sorted(engine.id for engine in direct.live.engines)
            self._out.print(f"watching {', '.join(engines)} for clients that go round the proxy", markup=False)

    def show(self, standing: Standing) -> None:
        """What is there now."""
        self._nobody = self._nobody and not standing.clients
        if self._live is not None:
            found = list(standing.clients)
            title = f"watched for {standing.at - self._began:.0f} s; Ctrl-C ends"
            self._live.update(_grid(found, title) if found else Text(f"nobody yet; {title}"), refresh=True)
            return
        for client in standing.changed:
            self._out.print(f"{_time(standing.at)}  {_line(client)}", markup=False)

    def end(self) -> None:
        """Leave what was shown last."""
        if self._live is not None:
            self._live.stop()
        if self._nobody:
            watched = f"in the {time.time() - self._began:.0f} s that were watched"
            self._out.print(f"nobody talked to an engine directly {watched}", markup=False)
        _around(self._direct)


def _grid(found: list[Client], title: str | None = None) -> Grid:
    grid = Grid(title=title, title_justify="left", title_style="dim", box=None, pad_edge=False)
    for name in ("client", "from", "engines", "since", "open", "seen", "to engine", "from engine", "asked for"):
        grid.add_column(name, overflow="fold", header_style="bold")
    for client in found[:_MOST]:
        who = str(client.process) if client.process else client.address
        grid.add_row(
            Text(who, style="yellow" if matters(client) else "dim"),
            Text(f"{client.box} ({client.address})" if client.box else client.address),
            Text(", ".join(client.engines)),
            _time(client.first),
            str(client.open),
            str(client.connections),
            _size(client.up),
            _size(client.down),
            Text(_asked(client)),
        )
    return grid


def _line(client: Client) -> str:
    return (
        f"{client.name} → {', '.join(client.engines)}: {client.open} open, {client.connections} seen since "
        f"{_time(client.first)}, {_size(client.up)} to the engine, {_size(client.down)} back{_note(client)}"
    )


def _note(client: Client) -> str:
    return "" if matters(client) else "; it only reads figures, or tried once"


def _asked(client: Client) -> str:
    """What the engines' logs say that it wanted."""
    if client.requests is not None:
        last = _time(client.requests.worked or client.requests.last)
        return f"{client.requests.work} for work, {client.requests.reads} reads; last {last}"
    return ", ".join(sorted(client.asked)) or "not known"


def _time(at: float) -> str:
    when = time.localtime(at)
    return time.strftime("%H:%M:%S" if time.time() - at < 43200 else "%m-%d %H:%M", when)


def _size(count: int | None) -> str:
    if count is None:
        return "unknown"
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def show_searched(fleet: Fleet, searched: list[Searched]) -> None:
    """File, line and address of every setting that names an engine; the rest of its line may be a secret."""
    out = console()
    for one in searched:
        where = f"{one.box}:" if one.box else ""
        for setting in one.found:
            near = " (its port is set nearby)" if setting.near else ""
            told = f"{where}{setting.path}:{setting.line}: {setting.address} is an engine ({setting.engine}){near}"
            out.print(told, markup=False)
        found = len(one.found)
        told = f"{where}{one.path}: {one.files} files, {found} place{'' if found == 1 else 's'}"
        out.print(f"{told}{f' ({one.why})' if one.why else ''}", markup=False)
    if any(one.found for one in searched):
        out.print(f"write {fleet.proxy_address}:{fleet.proxy.port}, the proxy, instead", markup=False)
