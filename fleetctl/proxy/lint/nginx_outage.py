"""nginx: what happens while an engine is away, and how long after it is back."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.proxy.lint.findings import Assumed, Rules, Seen, Severity
from fleetctl.proxy.lint.nginx_reader import Config
from fleetctl.proxy.lint.nginx_routes import balanced, generating, host_of, is_name, routes, upstreams
from fleetctl.proxy.lint.quantities import count, told

RULES: Rules[Config] = Rules()
UPSTREAM = "nginx documentation, ngx_http_upstream_module"
PROXY = "nginx documentation, ngx_http_proxy_module"
LONG_AWAY_S = 3.0
LONG_CONNECT_S = 5.0


@RULES.rule(
    "N01", Severity.WARNING, "an engine that is back gets nothing",
    looks_for=f"several servers with `fail_timeout` above {LONG_AWAY_S:g} s (the default is 10 s)",
    why="nginx only notices a return by trying again after fail_timeout; when all servers are out it answers 502 "
    "`no live "
    "upstreams` without trying any",
    source=f"{UPSTREAM}, `server` (defaults max_fails=1, fail_timeout=10s); tried with 1.22.1: max_fails=3 "
    "fail_timeout=8s, "
    "both engines back, 502 for 9.0 s more; with fail_timeout=2s for 2.4 s",
    example="""\
upstream engines {
    least_conn;
    server 192.0.2.11:8000 max_fails=3 fail_timeout=30s;
    server 192.0.2.12:8000 max_fails=3 fail_timeout=30s;
}
""",
)  # fmt: skip
def away(config: Config, _: Assumed) -> Iterator[Seen]:
    for upstream in balanced(config):
        for peer in upstream.peers:
            seconds = peer.fail_timeout
            if peer.max_fails == 0 or seconds <= LONG_AWAY_S or "down" in peer.params:
                continue
            given = "" if {"max_fails", "fail_timeout"} & set(peer.params) else " (the defaults)"
            shown = f"max_fails={peer.max_fails} fail_timeout={told(seconds).replace(' ', '')}{given}"
            failures = "1 failure" if peer.max_fails == 1 else f"{peer.max_fails} failures"
            outage = (
                f"after {failures} the server gets nothing for {told(seconds)} although it is back; when all "
                "are out, up to "
                f"{told(seconds)} of `no live upstreams` (502) after the engines are ready"
            )
            yield Seen(peer.line.place, f"upstream {upstream.name}", shown, outage, "max_fails=1 fail_timeout=2s")


@RULES.rule(
    "N02", Severity.NOTE, "failures are never counted",
    looks_for="`max_fails=0` with several servers",
    why="a refused connection moves on at once, so this is harmless for a stopped engine, not for a box that "
    "vanished",
    source=f"{UPSTREAM}, `server`: zero disables the accounting of attempts",
    example="""\
upstream engines {
    least_conn;
    server 192.0.2.11:8000 max_fails=0;
    server 192.0.2.12:8000 max_fails=0;
}
server {
    location /v1/ {
        proxy_pass http://engines;
        proxy_connect_timeout 10s;
    }
}
""",
)  # fmt: skip
def never_counted(config: Config, _: Assumed) -> Iterator[Seen]:
    connect = max((r.seconds("proxy_connect_timeout", 60.0) for r in generating(config)), default=60.0)
    for upstream in balanced(config):
        for peer in upstream.peers:
            if peer.max_fails == 0:
                outage = f"while a box is off the network, each request that begins there waits {told(connect)} first"
                yield Seen(
                    peer.line.place, f"upstream {upstream.name}", "max_fails=0", outage, "max_fails=1 fail_timeout=2s"
                )


@RULES.rule(
    "N03", Severity.WARNING, "one server only",
    looks_for="a route to one engine",
    why="there is nowhere else to go, and nginx does not wait: max_fails and fail_timeout are ignored for a "
    "single server",
    source=f"{UPSTREAM}, `server`; tried with 1.22.1: 502 at once while it is down, 200 at once when it is back",
    example="""\
upstream engines {
    server 192.0.2.11:8000 max_fails=3 fail_timeout=30s;
}
server {
    location /v1/ {
        proxy_pass http://engines;
    }
}
""",
)  # fmt: skip
def single(config: Config, _: Assumed) -> Iterator[Seen]:
    for route in generating(config):
        upstream = route.upstream
        if "$" in route.target or (upstream is not None and upstream.several):
            continue
        if upstream is not None and not upstream.peers:
            continue
        ignored = [p for p in upstream.peers if {"max_fails", "fail_timeout"} & set(p.params)] if upstream else []
        shown = f"one server, with {' '.join(ignored[0].line.args[1:])} (ignored)" if ignored else "one server"
        place = upstream.peers[0].line.place if upstream else route.proxy_pass.place
        outage = "each restart of the engine is an outage: 502 at once, for as long as it takes to load"
        write = "a second `server`; or a proxy that holds requests meanwhile, as HAProxy with a Lua action can"
        yield Seen(place, f"upstream {upstream.name}" if upstream else route.where, shown, outage, write)


@RULES.rule(
    "N04", Severity.NOTE, "no active health check",
    looks_for="several servers and no `health_check` or `check` directive",
    why="nginx without a subscription has no active checks: it learns from clients' requests that an engine is "
    "gone, and a "
    "hung engine looks like a busy one",
    source=f"{UPSTREAM}: periodic health checks are part of the commercial subscription",
    example="""\
upstream engines {
    least_conn;
    server 192.0.2.11:8000;
    server 192.0.2.12:8000;
}
server {
    location /v1/ {
        proxy_pass http://engines;
        proxy_read_timeout 10m;
    }
}
""",
)  # fmt: skip
def no_check(config: Config, _: Assumed) -> Iterator[Seen]:
    if config.every("health_check") or config.every("check"):
        return
    longest = max((r.seconds("proxy_read_timeout", 60.0) for r in generating(config)), default=60.0)
    for upstream in balanced(config):
        fails = max((peer.max_fails for peer in upstream.peers), default=1)
        outage = (
            f"an engine that accepts and never answers stays in: each request there waits {told(longest)} "
            "(proxy_read_timeout) and gets 504"
        )
        if fails:
            outage += (
                f"; after {fails} of them it is out for fail_timeout, and then tried with a client's request again"
            )
        write = (
            "HAProxy with `option httpchk GET /health`; in nginx something outside that rewrites `server … "
            "down` and reloads"
        )
        yield Seen(upstream.block.place, f"upstream {upstream.name}", "passive checks only", outage, write)


@RULES.rule(
    "N05", Severity.WARNING, "waiting for a box that is gone",
    looks_for=f"`proxy_connect_timeout` above {LONG_CONNECT_S:g} s (the default is 60 s)",
    why="a box that vanished refuses nothing; in one room a connection takes milliseconds",
    source=f"{PROXY}, `proxy_connect_timeout` (default 60s)",
    example="""\
upstream engines {
    least_conn;
    server 192.0.2.11:8000 max_fails=3 fail_timeout=2s;
    server 192.0.2.12:8000 max_fails=3 fail_timeout=2s;
}
server {
    location /v1/ {
        proxy_pass http://engines;
    }
}
""",
)  # fmt: skip
def long_connect(config: Config, _: Assumed) -> Iterator[Seen]:
    for route in generating(config):
        seconds = route.seconds("proxy_connect_timeout", 60.0)
        if seconds <= LONG_CONNECT_S:
            continue
        several = route.upstream is not None and route.upstream.several
        then = "before another server is tried, and only then is the failure counted" if several else "and gets 504"
        outage = f"a request for a box that vanished waits {told(seconds)} {then}"
        if several and route.upstream is not None:
            away_s = max(peer.fail_timeout for peer in route.upstream.peers)
            outage += f"; this begins again every fail_timeout ({told(away_s)})"
        shown = route.shown("proxy_connect_timeout", "60s")
        yield Seen(route.place("proxy_connect_timeout"), route.where, shown, outage, "proxy_connect_timeout 2s")


@RULES.rule(
    "N06", Severity.WARNING, "names that must resolve at the start",
    looks_for="a server or `proxy_pass` given by name, without `resolve`",
    why="nginx looks such names up once, when it starts or reloads",
    source=f"{UPSTREAM}, `server … resolve` (open source since 1.27.3, with zone and resolver); tried with 1.22.1: "
    "`[emerg] host not found in upstream`",
    example="""\
upstream engines {
    least_conn;
    server spark1.lan:8000;
    server spark2.lan:8000;
}
""",
)  # fmt: skip
def names(config: Config, _: Assumed) -> Iterator[Seen]:
    outage = (
        "with DNS away nginx does not start (`host not found in upstream`) and serves nothing at all; a box "
        "that gets another "
        "address is not found until the next reload"
    )
    write = "the address; or from 1.27.3 `server NAME resolve;` with `zone` and `resolver`"
    known = upstreams(config)
    for upstream in known.values():
        for peer in upstream.peers:
            if is_name(peer.host) and "resolve" not in peer.params:
                yield Seen(peer.line.place, f"upstream {upstream.name}", "a server name", outage, write)
    for route in routes(config):
        if route.upstream is None and is_name(host_of(route.target)):
            yield Seen(route.proxy_pass.place, route.where, "a name in proxy_pass", outage, write)


@RULES.rule(
    "N07", Severity.NOTE, "an engine that waits for the others to die",
    looks_for="a `backup` server",
    why="a backup server gets traffic only while no other is available: a copy that could carry half of it "
    "stands idle",
    source=f"{UPSTREAM}, `server … backup`",
    example="""\
upstream engines {
    least_conn;
    server 192.0.2.11:8000;
    server 192.0.2.12:8000 backup;
}
""",
)  # fmt: skip
def backup(config: Config, _: Assumed) -> Iterator[Seen]:
    for upstream in balanced(config):
        for peer in upstream.peers:
            if "backup" in peer.params:
                outage = "all load stays on the other servers until every one of them is out"
                write = "without backup, with least_conn, unless the box is kept for something else"
                yield Seen(peer.line.place, f"upstream {upstream.name}", peer.line.text, outage, write)


@RULES.rule(
    "N08", Severity.WARNING, "a full server is an error",
    looks_for="`max_conns` on a server",
    why="nginx has no queue without a subscription: at the limit a request is refused, not made to wait",
    source=f"{UPSTREAM}, `max_conns`, `queue` (commercial); tried with 1.22.1: the second request to "
    "max_conns=1 got 502 at once",
    example="""\
upstream engines {
    least_conn;
    server 192.0.2.11:8000 max_conns=12;
    server 192.0.2.12:8000 max_conns=12;
}
""",
)  # fmt: skip
def max_conns(config: Config, _: Assumed) -> Iterator[Seen]:
    for upstream in upstreams(config).values():
        limits = [limit for p in upstream.peers if (limit := count(p.params.get("max_conns", "")))]
        room = sum(limits)
        if not room or len(limits) < len(upstream.peers):
            continue
        outage = f"request {room + 1} gets 502 at once"
        if len(limits) > 1:
            outage += f"; with the largest server away that begins at request {room - max(limits) + 1}"
        peer = next(p for p in upstream.peers if "max_conns" in p.params)
        write = "no max_conns (requests then wait in the engine), or HAProxy with maxconn and timeout queue"
        yield Seen(peer.line.place, f"upstream {upstream.name}", f"max_conns, {room} in all", outage, write)
