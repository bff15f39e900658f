"""``fleetctl top``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, Via


def top(
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.2, max=3600, help="Seconds between two looks.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print what is seen in one interval, and end.")] = False,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Show live what every copy does: tokens/s, requests, cache, memory; with keys to drain, restart and see logs.

    With --json one event a sample, for as long as it is read; with --once one sample, and exit status 3 when a box
    could not be asked.
    """
    import sys

    from fleetctl.cli.quietly import ended_quietly
    from fleetctl.cli.session import QUICK, open_fleet
    from fleetctl.errors import BoxError, SpecError
    from fleetctl.run.watching import watcher_of

    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not (once or json or on_terminal):
        raise SpecError(
            "top draws on a terminal, and this is none", hint="--once prints one sample, --json one event a sample"
        )
    with (
        ended_quietly(),
        open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, partly=True, reach=QUICK) as subject,
        watcher_of(subject) as watcher,
    ):
        if once or json:
            from fleetctl.cli.show_top import show_samples

            last = show_samples(watcher.sample, interval, once=once, as_json=json)
            if any(box.why is not None for box in last.boxes.values()):
                raise typer.Exit(BoxError.exit_code)
            return
        from fleetctl.run.overview import state_of
        from fleetctl.watch.top.app import Top

        options = _options(None if via else fleet, via, accept_new, ssh_config)
        Top(
            watcher.sample,
            lambda: state_of(subject).found,
            interval=interval,
            options=options,
            may_change=via is None,
        ).run()


def _options(fleet: Path | None, via: str | None, accept_new: bool, ssh_config: Path | None) -> tuple[str, ...]:
    """The options that lead a further command to the same fleet."""
    words: list[str] = []
    if fleet is not None:
        words += ["--fleet", str(fleet)]
    if via is not None:
        words += ["--via", via]
    if ssh_config is not None:
        words += ["--ssh-config", str(ssh_config)]
    return (*words, *(["--accept-new-host-keys"] if accept_new else []))
