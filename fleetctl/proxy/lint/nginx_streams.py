"""nginx: settings that delay, cut or garble streams."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.proxy.lint.findings import Assumed, Rules, Seen, Severity
from fleetctl.proxy.lint.nginx_outage import PROXY
from fleetctl.proxy.lint.nginx_reader import Config
from fleetctl.proxy.lint.nginx_routes import Route, generating
from fleetctl.proxy.lint.quantities import longest_prompt, roomy, told

RULES: Rules[Config] = Rules()
CORE = "nginx documentation, ngx_http_core_module"


def http_11(route: Route) -> bool:
    """Whether the engine is asked over HTTP/1.1 or later; 1.0 is the default before nginx 1.29.7."""
    return route.value("proxy_http_version", "1.0") != "1.0"


@RULES.rule(
    "N20", Severity.ERROR, "streams arrive in lumps",
    looks_for="`proxy_buffering on`, which is the default",
    why="nginx fills a buffer (4 or 8 KiB) before it passes anything on. Over HTTP/1.1 with chunks version 1.22 "
    "passed each "
    "event on at once all the same; a client that reads slowly still fills buffers, then a file of up to 1 GiB",
    source=f"{PROXY}, `proxy_buffering`; tried with 1.22.1 and an event every 50 ms: over HTTP/1.0 the first "
    "byte came after "
    "1.4 s and 60 events in 3 pieces; with `proxy_buffering off` 60 pieces, the first at once",
    example="""\
server {
    location /v1/ {
        proxy_pass http://192.0.2.11:8000;
        proxy_buffering on;
    }
}
""",
)  # fmt: skip
def buffering(config: Config, _: Assumed) -> Iterator[Seen]:
    for route in generating(config):
        if route.value("proxy_buffering", "on") == "off":
            continue
        shown = route.shown("proxy_buffering", "on")
        if http_11(route):
            outage = (
                "a client that stops reading makes nginx store its stream, on disk too; the engine generates "
                "it to the end"
            )
            severity = Severity.NOTE
        else:
            outage = (
                "tokens reach clients in lumps of 4 to 8 KiB (about 30 to 60 tokens), the first after seconds; "
                "clients that "
                "wait for a first token give up and try again, in an outage most of all"
            )
            severity = Severity.ERROR
        place = route.place("proxy_buffering")
        yield Seen(place, route.where, shown, outage, "proxy_buffering off; proxy_http_version 1.1", severity)


@RULES.rule(
    "N21", Severity.ERROR, "long prompts are cut off",
    looks_for="`proxy_read_timeout` (default 60 s) shorter than the longest wait for a first token",
    why="an engine is silent until the first token (some send the head of a stream at once, then nothing); "
    "the timeout counts between two reads",
    source=f"{PROXY}, `proxy_read_timeout`; first tokens measured on one GB10: 50.7 s for 67,414 prompt tokens, "
    "135 s for 134,506, "
    "256 s for 202,323; tried with 1.22.1: 504 at that very second, and a stream that pauses that long is cut",
    example="""\
server {
    location /v1/ {
        proxy_pass http://192.0.2.11:8000;
    }
}
""",
)  # fmt: skip
def read_timeout(config: Config, assumed: Assumed) -> Iterator[Seen]:
    for route in generating(config):
        seconds = route.seconds("proxy_read_timeout", 60.0)
        if seconds >= assumed.first_token_s:
            continue
        outage = (
            f"prompts of more than {longest_prompt(seconds)} get 504 after {told(seconds)}, with every engine "
            "in good health, "
            "and count as failures of the engine (max_fails)"
        )
        shown = route.shown("proxy_read_timeout", "60s")
        write = f"proxy_read_timeout {roomy(assumed.first_token_s)}"
        yield Seen(route.place("proxy_read_timeout"), route.where, shown, outage, write)


@RULES.rule(
    "N22", Severity.NOTE, "slow clients are cut off",
    looks_for="`send_timeout` or `proxy_send_timeout` below 30 s",
    why="they count between two writes, to the client and to the engine; waiting for a first token is not "
    "counted: with 1 s "
    "for both, a stream with a pause of 3 s arrived whole",
    source=f"{CORE}, `send_timeout`; {PROXY}, `proxy_send_timeout` (both 60 s); tried with 1.22.1",
    example="""\
server {
    send_timeout 5s;
    location /v1/ {
        proxy_pass http://192.0.2.11:8000;
    }
}
""",
)  # fmt: skip
def send_timeouts(config: Config, _: Assumed) -> Iterator[Seen]:
    ends = {
        "send_timeout": "a client that reads nothing",
        "proxy_send_timeout": "an upload to an engine that takes nothing",
    }
    for route in generating(config):
        for name, who in ends.items():
            seconds = route.seconds(name, 60.0)
            if seconds < 30:
                outage = f"{who} for {told(seconds)} is cut off"
                yield Seen(route.place(name), route.where, route.shown(name, "60s"), outage, f"{name} 60s")


@RULES.rule(
    "N23", Severity.WARNING, "a broken stream looks complete",
    looks_for="`proxy_http_version 1.0`, the default before nginx 1.29.7",
    why="in HTTP/1.0 the end of the connection is the end of the answer, so a dead engine cannot be told from a "
    "finished one",
    source=f"{PROXY}, `proxy_http_version`; tried with 1.22.1: an engine that died in mid-stream gave the client "
    "a complete 200; over "
    "1.1 the client saw the break. From 1.29.7 the default is 1.1",
    example="""\
server {
    location /v1/ {
        proxy_pass http://192.0.2.11:8000;
        proxy_buffering off;
        proxy_read_timeout 10m;
    }
}
""",
)  # fmt: skip
def old_http(config: Config, _: Assumed) -> Iterator[Seen]:
    for route in generating(config):
        if http_11(route):
            continue
        outage = "streams running on an engine that dies end as if complete, with half an answer and status 200"
        write = 'proxy_http_version 1.1; proxy_set_header Connection ""'
        shown = route.shown("proxy_http_version", "1.0", "the default before 1.29.7")
        yield Seen(route.place("proxy_http_version"), route.where, shown, outage, write)


@RULES.rule(
    "N24", Severity.NOTE, "connections are not kept",
    looks_for='`keepalive` in an upstream without `proxy_http_version 1.1` and `proxy_set_header Connection ""`',
    why="before nginx 1.29.7 the header Connection: close is sent to the engine unless it is set",
    source=f"{PROXY}, `proxy_set_header` (default Connection close)",
    example="""\
upstream engines {
    server 192.0.2.11:8000;
    keepalive 32;
    keepalive_timeout 4s;
}
server {
    location /v1/ {
        proxy_pass http://engines;
        proxy_http_version 1.1;
    }
}
""",
)  # fmt: skip
def keepalive(config: Config, _: Assumed) -> Iterator[Seen]:
    for route in generating(config):
        kept = route.upstream.block.own("keepalive") if route.upstream else []
        headers = route.at.nearest("proxy_set_header")
        set_right = any(header.arg(0).lower() == "connection" and header.arg(1, "x") != "close" for header in headers)
        if kept and kept[-1].arg(0) != "0" and not (http_11(route) and set_right):
            outage = "no harm in an outage: a connection per request, as if keepalive were not there"
            write = 'proxy_http_version 1.1; proxy_set_header Connection "" (beside the other proxy_set_header lines)'
            yield Seen(kept[-1].place, route.where, kept[-1].text, outage, write)
