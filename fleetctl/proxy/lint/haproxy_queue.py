"""HAProxy: which copy a request goes to, and where it waits while all are busy or away."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.proxy.lint.findings import Assumed, Rules, Seen, Severity
from fleetctl.proxy.lint.haproxy_health import MANUAL, connect_seconds
from fleetctl.proxy.lint.haproxy_reader import Config, Section
from fleetctl.proxy.lint.quantities import count, haproxy_seconds, told

RULES: Rules[Config] = Rules()
SHORT_QUEUE_S = 60.0
FEW_CONNECTIONS = 500


def holds(section: Section) -> bool:
    """Whether something waits, or answers in a way of its own, while no server is up."""
    words = {word for line in section.all("http-request") for word in line.words}
    rules = {word for kind in ("acl", "use_backend", "use-server") for line in section.all(kind) for word in line.words}
    return any(word.startswith("lua.") for word in words) or any("nbsrv" in word for word in words | rules)


@RULES.rule(
    "H30", Severity.WARNING, "busy copies get as much as idle ones",
    looks_for="several servers without `balance leastconn` (or `random`), or `stick` tables and cookies",
    why="requests last from a second to minutes, so taking turns piles long ones up on one copy; by client "
    "address one "
    "office or batch job sits on one copy",
    source=f"{MANUAL}, `balance` (default roundrobin)",
    example="""\
defaults
    mode http
    retries 3
    option redispatch
    timeout connect 2s
backend engines
    balance roundrobin
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
    server b 192.0.2.12:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def balance(config: Config, _: Assumed) -> Iterator[Seen]:
    effects = {
        "roundrobin": "the copies take turns whether busy or not: after one comes back, half of all requests "
        "still queue "
        "behind the long ones of the other",
        "source": "all clients behind one address use one copy; when a copy leaves or returns most clients "
        "move, and lose "
        "their prefix cache",
        "first": "the first copy is filled to its maxconn before the second gets anything, and without maxconn "
        "takes all",
    }
    effects["static-rr"] = effects["roundrobin"]
    for section, servers in config.used_backends:
        if sum(server.copies for server in servers) < 2:
            continue
        line = section.last("balance")
        method = line.value(1).split("(")[0] if line else "roundrobin"
        shown = line.text if line else "balance roundrobin (the default)"
        place = (line or section.lines[0]).place
        if method not in ("leastconn", "random"):
            outage = effects.get(
                method, "a key decides: a hot key fills one copy while another is idle, whatever its load is"
            )
            yield Seen(place, section.title, shown, outage, "balance leastconn")
        for sticky in (section.last("cookie"), section.last("stick", "on"), section.last("stick", "match")):
            if sticky is not None:
                outage = "a client stays with its copy however busy that is, and waits there when it dies"
                yield Seen(sticky.place, section.title, sticky.text, outage, "no persistence, balance leastconn")


@RULES.rule(
    "H31", Severity.WARNING, "requests wait inside the engine",
    looks_for="a server of an engine without `maxconn`",
    why="what waits in HAProxy's queue can go to whichever copy has room first, and survives the death of a copy; "
    "what waits inside an engine does neither",
    source=f"{MANUAL}, `maxconn` of a server (default 0, no limit), `timeout queue`",
    example="""\
defaults
    mode http
    timeout connect 2s
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s
""",
)  # fmt: skip
def unlimited(config: Config, _: Assumed) -> Iterator[Seen]:
    for section, servers in config.used_backends:
        for server in servers:
            if not count(server.params.get("maxconn", "")):
                outage = (
                    "with one copy away, all load goes into the other's own queue; when that one dies too, or "
                    "is restarted, "
                    "everything waiting in it fails, and a copy that returns gets none of it"
                )
                write = "server NAME … maxconn N, N being what the engine runs at once (--max-num-seqs, or the knee)"
                yield Seen(server.place, section.title, "server … without maxconn", outage, write)


@RULES.rule(
    "H32", Severity.WARNING, "the queue gives up early",
    looks_for=f"`maxconn` on servers with `timeout queue` below {SHORT_QUEUE_S:g} s or missing",
    why="places get free when a generation ends, so waiting a minute or more is normal while one copy is away",
    source=f"{MANUAL}, `timeout queue`: unspecified, timeout connect is used; tried with 2.6.12: `timeout "
    "connect 1s` and a "
    "full server answered 503 after 1.0 s",
    example="""\
defaults
    mode http
    timeout connect 2s
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def short_queue(config: Config, _: Assumed) -> Iterator[Seen]:
    for section, servers in config.used_backends:
        limits = [count(server.params.get("maxconn", "")) or 0 for server in servers]
        if not any(limits):
            continue
        line = section.last("timeout", "queue")
        seconds = haproxy_seconds(line.value(2)) if line else connect_seconds(section)
        if seconds is None or seconds == 0 or seconds >= SHORT_QUEUE_S:
            continue
        shown = line.text if line else f"no timeout queue (then timeout connect counts: {told(seconds)})"
        room = sum(limit * server.copies for limit, server in zip(limits, servers, strict=True))
        left = room - max(limit * server.copies for limit, server in zip(limits, servers, strict=True))
        outage = f"request {room + 1} and later ones get 503 after {told(seconds)} in the queue"
        if len(servers) > 1:
            outage += f"; with the largest copy away that begins at request {left + 1}"
        yield Seen((line or servers[0].line).place, section.title, shown, outage, "timeout queue 20m")


@RULES.rule(
    "H33", Severity.WARNING, "clients that left keep their place",
    looks_for="no `option abortonclose`",
    why="without it a request whose client has gone is still sent and generated; clients that time out and try again "
    "then fill the queue with work that nobody reads, most of all after an outage",
    source=f"{MANUAL}, `option abortonclose`",
    example="""\
defaults
    mode http
    timeout connect 2s
    timeout queue 20m
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def abandoned(config: Config, _: Assumed) -> Iterator[Seen]:
    for section, servers in config.used_backends:
        if not section.has("option", "abortonclose"):
            line = section.last("timeout", "queue")
            seconds = haproxy_seconds(line.value(2)) if line else connect_seconds(section)
            kept = f"for up to {told(seconds)} " if seconds else ""
            outage = f"requests of clients that left stay in the queue {kept}and then take a place of an engine"
            place = section.lines[0].place if section.lines else servers[0].place
            yield Seen(place, section.title, "no option abortonclose", outage, "option abortonclose")


@RULES.rule(
    "H34", Severity.NOTE, "503 at once while no engine is up",
    looks_for="a backend with nothing that waits while `nbsrv` is 0",
    why="HAProxy queues for a server that is full, not for one that is down: without a wait of its own a restart "
    "of the "
    "only copy is an outage for every client",
    source=f"{MANUAL}, `nbsrv`; tried with 2.6.12: 503 after 0.0 s with all servers down",
    example="""\
defaults
    mode http
    timeout connect 2s
    timeout queue 20m
    option abortonclose
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def no_hold(config: Config, _: Assumed) -> Iterator[Seen]:
    for section, servers in config.used_backends:
        if section.mode != "http" or holds(section):
            continue
        single = sum(server.copies for server in servers) == 1
        when = "each restart of the only server" if single else "the minutes in which every server is down"
        outage = f"during {when} each request gets 503 at once, for as long as an engine takes to load"
        write = (
            "a wait while nbsrv(BACKEND) is 0: a Lua action, as in the configuration that `fleetctl render` "
            "writes; at least "
            "an errorfile 503 with Retry-After"
        )
        yield Seen(section.place, section.title, "no hold", outage, write)


@RULES.rule(
    "H35", Severity.WARNING, "few connections",
    looks_for=f"`maxconn` of the process or of a frontend below {FEW_CONNECTIONS}",
    why="a stream or a request in the queue keeps its connection for minutes; further clients are left in the "
    "kernel's "
    "backlog, where nobody counts them",
    source=f"{MANUAL}, `maxconn`",
    example="""\
global
    maxconn 100
defaults
    mode http
    timeout connect 2s
    timeout client 10m
frontend clients
    bind :8080
    default_backend engines
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def few_connections(config: Config, _: Assumed) -> Iterator[Seen]:
    lines = [(line, "global") for line in config.globally("maxconn")[-1:]]
    lines += [(line, s.title) for s in config.of("frontend", "listen") for line in s.all("maxconn")[-1:]]
    for line, where in lines:
        limit = count(line.value(1))
        if limit is not None and 0 < limit < FEW_CONNECTIONS:
            outage = (
                f"client {limit + 1} gets no answer, not even an error, while {limit} streams run or wait: with "
                "one engine "
                "away the queue fills that quickly"
            )
            yield Seen(line.place, where, line.text, outage, f"maxconn {max(2000, 4 * limit)}")
