"""nginx: what happens to a request whose engine fails, and which requests are run twice."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.proxy.lint.findings import Assumed, Rules, Seen, Severity
from fleetctl.proxy.lint.nginx_outage import PROXY, UPSTREAM
from fleetctl.proxy.lint.nginx_reader import Config
from fleetctl.proxy.lint.nginx_routes import Route, generating
from fleetctl.proxy.lint.quantities import count, nginx_seconds, told

RULES: Rules[Config] = Rules()
_PAIR = """\
upstream engines {
    least_conn;
    server 192.0.2.11:8000;
    server 192.0.2.12:8000;
}
"""


def cases(route: Route) -> tuple[str, ...]:
    """When a request goes to the next server."""
    setting = route.at.setting("proxy_next_upstream")
    return setting.args if setting else ("error", "timeout")


def several(config: Config) -> Iterator[Route]:
    for route in generating(config):
        if route.upstream is not None and route.upstream.several:
            yield route


@RULES.rule(
    "N10", Severity.ERROR, "a generation may run twice",
    looks_for="`proxy_next_upstream … non_idempotent`",
    why="with it a POST that an engine already has is sent to the next one too; without it only what was never "
    "sent moves on",
    source=f"{PROXY}, `proxy_next_upstream`; tried with 1.22.1 and proxy_read_timeout 1s: one request ran on "
    "both engines and got "
    "504 after 2.0 s",
    example=_PAIR
    + """\
server {
    location /v1/ {
        proxy_pass http://engines;
        proxy_read_timeout 60s;
        proxy_next_upstream error timeout http_502 non_idempotent;
    }
}
""",
)  # fmt: skip
def twice(config: Config, _: Assumed) -> Iterator[Seen]:
    for route in several(config):
        when = cases(route)
        tries = count(route.value("proxy_next_upstream_tries", "0")) or 0
        if "non_idempotent" not in when or tries == 1:
            continue
        limit = route.seconds("proxy_read_timeout", 60.0)
        copies = len(route.upstream.active) if route.upstream else 2
        tries = min(tries, copies) if tries else copies
        if "timeout" in when:
            outage = (
                f"a prompt without a first token after {told(limit)} (proxy_read_timeout) is sent to the next "
                "engine as well, "
                f"up to {tries} in all, while the first goes on generating; the client gets 504 after "
                f"{told(tries * limit)}"
            )
        else:
            outage = f"a request on which an engine dies is run again on the next, up to {tries} in all"
        shown = route.shown("proxy_next_upstream", "error timeout")
        severity = None if "timeout" in when else Severity.WARNING
        place = route.place("proxy_next_upstream")
        yield Seen(place, route.where, shown, outage, "proxy_next_upstream error timeout", severity)


@RULES.rule(
    "N11", Severity.ERROR, "no second try",
    looks_for="`proxy_next_upstream off`, `proxy_next_upstream_tries 1`, or a list without `error`",
    why="a refused connection was never a request: passing it on is always safe",
    source=f"{PROXY}, `proxy_next_upstream` (default error timeout)",
    example=_PAIR
    + """\
server {
    location /v1/ {
        proxy_pass http://engines;
        proxy_next_upstream off;
    }
}
""",
)  # fmt: skip
def no_second_try(config: Config, _: Assumed) -> Iterator[Seen]:
    for route in several(config):
        fails = max((peer.max_fails for peer in route.upstream.peers), default=1) if route.upstream else 1
        each = "the first request" if fails == 1 else f"the first {fails} requests"
        how_long = f"{each} after every fail_timeout" if fails else "every request"
        outage = f"while one engine is stopped, {how_long} for it: 502, though another engine is idle"
        if count(route.value("proxy_next_upstream_tries", "0")) == 1:
            place, shown = route.place("proxy_next_upstream_tries"), "proxy_next_upstream_tries 1"
        elif "off" in cases(route) or "error" not in cases(route):
            place, shown = route.place("proxy_next_upstream"), route.shown("proxy_next_upstream", "")
        else:
            continue
        yield Seen(place, route.where, shown, outage, "proxy_next_upstream error timeout; proxy_next_upstream_tries 0")


@RULES.rule(
    "N12", Severity.WARNING, "no time for a second try",
    looks_for="`proxy_next_upstream_timeout` no longer than `proxy_connect_timeout`",
    why="the time counts from the first try; when that alone uses it up, there is no second",
    source=f"{PROXY}, `proxy_next_upstream_timeout` (default 0, no limit)",
    example=_PAIR
    + """\
server {
    location /v1/ {
        proxy_pass http://engines;
        proxy_connect_timeout 5s;
        proxy_next_upstream_timeout 5s;
    }
}
""",
)  # fmt: skip
def no_time(config: Config, _: Assumed) -> Iterator[Seen]:
    for route in several(config):
        limit = nginx_seconds(route.value("proxy_next_upstream_timeout", "0")) or 0.0
        connect = route.seconds("proxy_connect_timeout", 60.0)
        if 0 < limit <= connect:
            outage = f"a request for a box that vanished gets 504 after {told(connect)} and is not tried elsewhere"
            shown = route.shown("proxy_next_upstream_timeout", "0")
            place = route.place("proxy_next_upstream_timeout")
            yield Seen(place, route.where, shown, outage, "proxy_connect_timeout 2s; proxy_next_upstream_timeout 0")


@RULES.rule(
    "N13", Severity.NOTE, "errors that no engine is put out for",
    looks_for="`http_500`, `http_502`, `http_503` or `http_504` in `proxy_next_upstream` without `non_idempotent`",
    why="they do nothing for POST: the answer goes to the client and is not counted as a failure either. With "
    "non_idempotent they would, and generations could run twice",
    source=f"{PROXY}, `proxy_next_upstream`; tried with 1.22.1: with http_500 and one engine that answers 500, "
    "every second POST "
    "got 500 and the engine stayed in; GET went on to the other",
    example=_PAIR
    + """\
server {
    location /v1/ {
        proxy_pass http://engines;
        proxy_next_upstream error timeout http_500 http_502 http_503;
    }
}
""",
)  # fmt: skip
def not_counted(config: Config, _: Assumed) -> Iterator[Seen]:
    for route in several(config):
        when = cases(route)
        codes = [word for word in when if word in ("http_500", "http_502", "http_503", "http_504")]
        if codes and "non_idempotent" not in when and "off" not in when:
            share = f"1 of {len(route.upstream.active)}" if route.upstream and route.upstream.active else "many"
            outage = f"an engine that answers 500 to everything stays in: {share} completions fail until someone looks"
            shown = route.shown("proxy_next_upstream", "error timeout")
            write = "proxy_next_upstream error timeout, and a watcher that sends real completions and takes a copy out"
            yield Seen(route.place("proxy_next_upstream"), route.where, shown, outage, write)


@RULES.rule(
    "N14", Severity.WARNING, "a request that began cannot move",
    looks_for="`proxy_request_buffering off` with several servers",
    why="then the body is passed on as it comes and nothing is kept to send again",
    source=f"{PROXY}, `proxy_request_buffering`: when disabled, a request cannot go to the next server once its "
    "body was begun",
    example=_PAIR
    + """\
server {
    location /v1/ {
        proxy_pass http://engines;
        proxy_request_buffering off;
    }
}
""",
)  # fmt: skip
def unbuffered_request(config: Config, _: Assumed) -> Iterator[Seen]:
    for route in several(config):
        if route.value("proxy_request_buffering", "on") == "off":
            outage = (
                "a request whose engine goes away while it is being sent ends with 502 though another engine is idle"
            )
            shown = route.shown("proxy_request_buffering", "on")
            place = route.place("proxy_request_buffering")
            yield Seen(place, route.where, shown, outage, "proxy_request_buffering on")


@RULES.rule(
    "N15", Severity.WARNING, "old connections fail",
    looks_for="`keepalive` in an upstream whose `keepalive_timeout` (60 s by default) is longer than the "
    "engine's 5 s",
    why="vLLM closes a connection that was idle for 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE); a POST sent into that "
    "moment is lost, and "
    "is not passed on because it may have arrived",
    source=f"{UPSTREAM}, `keepalive_timeout`; vLLM pull request 18472",
    example="""\
upstream engines {
    least_conn;
    server 192.0.2.11:8000;
    server 192.0.2.12:8000;
    keepalive 32;
}
server {
    location /v1/ {
        proxy_pass http://engines;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
    }
}
""",
)  # fmt: skip
def stale_connections(config: Config, _: Assumed) -> Iterator[Seen]:
    for route in generating(config):
        block = route.upstream.block if route.upstream else None
        kept = block.own("keepalive") if block else []
        if block is None or not kept or kept[-1].arg(0) == "0":
            continue
        timeouts = block.own("keepalive_timeout")
        seconds = nginx_seconds(timeouts[-1].arg(0)) if timeouts else None
        seconds = 60.0 if seconds is None else seconds
        if seconds >= 5.0:
            outage = (
                f"now and then 502 although every engine is well: connections idle for 5 to {told(seconds)} "
                f"are closed already"
            )
            shown = timeouts[-1].text if timeouts else "keepalive_timeout 60s (the default)"
            write = "keepalive_timeout 4s; in the upstream (or VLLM_HTTP_TIMEOUT_KEEP_ALIVE=75 on the engines)"
            yield Seen(kept[-1].place, f"upstream {block.arg(0)}", shown, outage, write)
