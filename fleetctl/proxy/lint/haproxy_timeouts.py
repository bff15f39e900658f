"""HAProxy: timeouts that end long prompts and running streams, or make an outage longer."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.proxy.lint.findings import Assumed, Rules, Seen, Severity
from fleetctl.proxy.lint.haproxy_health import MANUAL, connect_seconds, retries
from fleetctl.proxy.lint.haproxy_reader import Config
from fleetctl.proxy.lint.haproxy_retries import redispatches
from fleetctl.proxy.lint.quantities import haproxy_seconds, longest_prompt, roomy, told

RULES: Rules[Config] = Rules()
LONG_CONNECT_S = 5.0
_MEASURED = "first tokens measured on one GB10: 50.7 s for 67,414 prompt tokens, 135 s for 134,506, 256 s for 202,323"


@RULES.rule(
    "H20", Severity.ERROR, "long prompts are cut off",
    looks_for="`timeout server` shorter than the longest wait for a first token, or none",
    why="an engine is silent until the first token (some send the head of a stream at once, then nothing); "
    "timeout server counts that silence",
    source=f"{MANUAL}, `timeout server`; {_MEASURED}; tried with 2.6.12: 504 at that very second, and a stream "
    "that pauses "
    "that long is cut",
    example="""\
defaults
    mode http
    timeout connect 2s
    timeout server 60s
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def short_server(config: Config, assumed: Assumed) -> Iterator[Seen]:
    write = f"timeout server {roomy(assumed.first_token_s)}"
    for section, servers in config.used_backends:
        line = section.last("timeout", "server")
        seconds = haproxy_seconds(line.value(2)) if line else None
        if line is None or seconds == 0:
            outage = "an engine that accepts and never answers holds each of its requests for ever"
            place = line.place if line else servers[0].place
            yield Seen(place, section.title, "no timeout server", outage, write, Severity.WARNING)
        elif seconds is not None and seconds < assumed.first_token_s:
            outage = (
                f"prompts of more than {longest_prompt(seconds)} get 504 after {told(seconds)}, with every "
                "engine in good "
                f"health; a stream in which the engine pauses {told(seconds)} is cut in the middle"
            )
            yield Seen(line.place, section.title, line.text, outage, write)


@RULES.rule(
    "H21", Severity.NOTE, "slow clients are cut off",
    looks_for="`timeout client` shorter than the longest wait for a first token, or none",
    why="it counts while the client is expected to send or to read, not while it waits for the engine: with 1 s "
    "and an "
    "engine silent for 4 s the answer still arrived. Set it as long as timeout server so that one number rules "
    "streams",
    source=f"{MANUAL}, `timeout client`; tried with 2.6.12",
    example="""\
defaults
    mode http
    timeout connect 2s
    timeout client 30s
    timeout server 10m
frontend clients
    bind :8080
    default_backend engines
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def short_client(config: Config, assumed: Assumed) -> Iterator[Seen]:
    balancing = {section.place for section, _engines in config.used_backends}
    for section in config.of("frontend", "listen"):
        if section.kind == "listen" and section.place not in balancing:
            continue
        line = section.last("timeout", "client")
        seconds = haproxy_seconds(line.value(2)) if line else None
        write = f"timeout client {roomy(assumed.first_token_s)}"
        if line is None:
            outage = "connections of clients that vanished are kept for ever, each with a place in maxconn"
            yield Seen(section.place, section.title, "no timeout client", outage, write)
        elif seconds is not None and 0 < seconds < assumed.first_token_s:
            outage = (
                f"a client that reads nothing of its stream for {told(seconds)} (a paused laptop, a debugger) "
                f"is cut off"
            )
            yield Seen(line.place, section.title, line.text, outage, write)


@RULES.rule(
    "H22", Severity.NOTE, "upgraded connections are cut off",
    looks_for="`timeout tunnel` shorter than the longest wait for a first token",
    why="it replaces the client's and the server's timeout once a connection is upgraded, as for the realtime "
    "API over "
    "WebSocket; plain streams (SSE) do not use it",
    source=f"{MANUAL}, `timeout tunnel`",
    example="""\
defaults
    mode http
    timeout connect 2s
    timeout server 10m
    timeout tunnel 30s
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def short_tunnel(config: Config, assumed: Assumed) -> Iterator[Seen]:
    for section, _ in config.used_backends:
        line = section.last("timeout", "tunnel")
        seconds = haproxy_seconds(line.value(2)) if line else None
        if line is not None and seconds is not None and 0 < seconds < assumed.first_token_s:
            outage = f"a WebSocket on which nothing is said for {told(seconds)} is closed"
            yield Seen(line.place, section.title, line.text, outage, f"timeout tunnel {roomy(assumed.first_token_s)}")


@RULES.rule(
    "H23", Severity.WARNING, "waiting for a box that is gone",
    looks_for=f"`timeout connect` above {LONG_CONNECT_S:g} s, or none",
    why="a box that vanished refuses nothing: every request for it waits this long before it may go elsewhere. In one "
    "room a connection takes milliseconds",
    source=f"{MANUAL}, `timeout connect`; none is infinite",
    example="""\
defaults
    mode http
    retries 3
    option redispatch 1
    timeout connect 30s
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
    server b 192.0.2.12:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def long_connect(config: Config, _: Assumed) -> Iterator[Seen]:
    for section, servers in config.used_backends:
        line = section.last("timeout", "connect")
        seconds = connect_seconds(section)
        if line is None or seconds == 0:
            outage = "a request for a box that vanished waits until the kernel gives up (about 2 min), or for ever"
            place = line.place if line else servers[0].place
            yield Seen(place, section.title, "no timeout connect", outage, "timeout connect 2s")
        elif seconds is not None and seconds > LONG_CONNECT_S:
            tries = retries(section)
            copies = sum(server.copies for server in servers)
            if copies > 1 and tries and redispatches(section):
                then = f"{told(seconds)} before another server is tried"
            else:
                then = f"{told(seconds * (tries + 1))} ({tries + 1} tries) and then gets 503"
            outage = f"a request for a box that vanished waits {then}"
            yield Seen(line.place, section.title, line.text, outage, "timeout connect 2s")


@RULES.rule(
    "H24", Severity.WARNING, "a reload cuts streams",
    looks_for="`hard-stop-after` shorter than twice the longest wait for a first token",
    why="after a reload the old process finishes its streams, but no longer than this",
    source=f"{MANUAL}, `hard-stop-after`",
    example="""\
global
    hard-stop-after 30s
defaults
    mode http
    timeout connect 2s
    timeout server 10m
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def hard_stop(config: Config, assumed: Assumed) -> Iterator[Seen]:
    for line in config.globally("hard-stop-after"):
        seconds = haproxy_seconds(line.value(1))
        if seconds is not None and seconds < 2 * assumed.first_token_s:
            outage = f"every reload ends all streams that are still running {told(seconds)} later"
            write = f"hard-stop-after {roomy(2 * assumed.first_token_s)}"
            yield Seen(line.place, "global", line.text, outage, write)
