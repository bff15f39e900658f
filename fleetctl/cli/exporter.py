"""``fleetctl exporter``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, Via


def exporter(
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where to answer GET /metrics.")] = (
        "127.0.0.1:9790"
    ),
    write: Annotated[
        Path | None,
        typer.Option(
            "--write", metavar="DIR", help="Write scrape configuration, alert rules and a Grafana dashboard, and end."
        ),
    ] = None,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Serve the figures of every copy, and their sums, as Prometheus metrics.

    The engines are read when Prometheus asks, each on its own box. It runs until it is stopped; Ctrl-C and SIGTERM end
    it with status 0.
    """
    import signal
    import threading

    from fleetctl.cli.output import console, emit, say
    from fleetctl.cli.session import fleet_file, open_fleet
    from fleetctl.render.guard import memory_low
    from fleetctl.run.watching import watcher_of
    from fleetctl.spec.fleet_guard import Guard
    from fleetctl.watch.exporter import for_this_machine_alone, parse_place
    from fleetctl.watch.exporter import listen as listen_at

    host, _ = parse_place(listen)
    if write is not None:
        from fleetctl.watch.prometheus_files import files

        for name, text in files(fleet_file(fleet, via, accept_new=accept_new, ssh_config=ssh_config), listen).items():
            target = write / name
            write.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            if json:
                emit("file", written=str(target))
            else:
                console().print(f"{target}", markup=False)
        return
    with (
        open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, partly=True) as subject,
        watcher_of(subject) as watcher,
    ):
        guard = subject.fleet.guard or Guard()
        low = {name: memory_low(guard, box.reserve) for name, box in subject.fleet.boxes.items()}
        server = listen_at(listen, watcher.sample, low)

        def stop(number: int, frame: object) -> None:
            threading.Thread(target=server.shutdown, daemon=True).start()  # serve_forever must not wait for itself

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        place = f"http://{listen.rpartition(':')[0]}:{server.server_port}/metrics"
        if json:
            emit("listening", url=place, fleet=subject.fleet.fleet)
        else:
            console().print(f"{subject.fleet.fleet}: {place}", markup=False)
        if not for_this_machine_alone(host):
            warning = "everybody who reaches this address reads the metrics: there is no password, and no encryption"
            say(warning if json else f"warning: {warning}", as_json=json)
        with server:
            server.serve_forever(poll_interval=0.2)
