"""``fleetctl web``."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, Via


def web(
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDRESS:PORT", help="Where to serve the page.")
    ] = "127.0.0.1:9791",
    host: Annotated[
        list[str] | None, typer.Option("--host", metavar="NAME", help="One more name that the page is asked for by.")
    ] = None,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Serve a read-only status page, live, until Ctrl-C. Boxes are asked only while somebody looks.

    Everybody who can reach the address sees it: there is no password. The default is this machine alone.
    """
    import ipaddress
    import signal

    from fleetctl.cli.output import console, emit, say
    from fleetctl.cli.session import QUICK, open_fleet
    from fleetctl.errors import SpecError
    from fleetctl.run.watching import Watched
    from fleetctl.watch.feed import Feed
    from fleetctl.watch.page import Page

    address, _, port = listen.rpartition(":")
    address = "127.0.0.1" if address == "localhost" else address.removeprefix("[").removesuffix("]")
    try:
        loopback = ipaddress.ip_address(address).is_loopback
        number = int(port)
        if not 0 <= number < 65536:
            raise ValueError(port)
    except ValueError:
        raise SpecError(f"--listen {listen} is not ADDRESS:PORT", hint="like 127.0.0.1:9791 or [::1]:9791") from None
    with (
        open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, partly=True, reach=QUICK) as subject,
        Watched(subject) as watched,
    ):
        feed = Feed(watched.sample, watched.state)
        try:
            page = Page((address, number), feed, host or ())
        except OSError as error:
            raise SpecError(f"cannot listen on {listen}: {error.strerror}", hint="--listen names another") from error
        shown = f"[{page.server_name}]" if ":" in page.server_name else page.server_name
        url = f"http://{shown}:{page.server_port}/"
        if json:
            emit("web", url=url, loopback=loopback)
        else:
            console().print(f"the page is at {url} until Ctrl-C", markup=False)
        if not loopback:
            warning = "everybody who reaches this address sees the page: there is no password, and no encryption"
            say(warning if json else f"warning: {warning}", as_json=json)

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, stop)
        try:
            page.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            pass  # how it is meant to end
        finally:
            feed.close()
            page.server_close()
