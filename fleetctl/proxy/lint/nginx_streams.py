"""nginx: settings that delay, cut or garble streams, and refuse long prompts."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.proxy.lint.findings import Assumed, Rules, Seen, Severity
from fleetctl.proxy.lint.nginx_outage import PROXY
from fleetctl.proxy.lint.nginx_reader import Config
from fleetctl.proxy.lint.nginx_routes import Route, generating
from fleetctl.proxy.lint.quantities import longest_prompt, nginx_bytes, nginx_seconds, roomy, told

RULES: Rules[Config] = Rules()
CORE = "nginx documentation, ngx_http_core_module"
SMALL_BODY = 10 * 1024**2


def http_11(route: Route) -> bool:
    """Whether the engine is asked over HTTP/1.1 or later; 1.0 is the default before nginx 1.29.7."""
    return route.value("proxy_http_version", "1.0") != "1.0"


@RULES.rule(
    "N20", Severity.ERROR, "streams arrive in lumps",
    looks_for="`proxy_buffering on`, which is the default",
    why="nginx fills a buffer (4 or 8 KiB) before it passes anything on. Over HTTP/1.1 with chunks version 1.22 passed each "
    "event on at once all the same; a client that reads slowly still fills buffers, then a file of up to 1 GiB",
    source=f"{PROXY}, `proxy_buffering`; tried with 1.22.1 and an event every 50 ms: over HTTP/1.0 the first byte came after "
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
            outage = "a client that stops reading makes nginx store its stream, on disk too; the engine generates it to the end"
            severity = Severity.NOTE
        else:
            outage = (
                "tokens reach clients in lumps of 4 to 8 KiB (about 30 to 60 tokens), the first after seconds; clients that "
                "wait for a first token give up and try again, in an outage most of all"
            )
            severity = Severity.ERROR
        place = route.place("proxy_buffering")
        yield Seen(place, route.where, shown, outage, "proxy_buffering off; proxy_http_version 1.1", severity)


@RULES.rule(
    "N21", Severity.ERROR, "long prompts are cut off",
    looks_for="`proxy_read_timeout` (default 60 s) shorter than the longest wait for a first token",
    why="an engine sends nothing, not even a header, until the first token; the timeout counts between two reads",
    source=f"{PROXY}, `proxy_read_timeout`; first tokens measured on one GB10: 50.7 s for 67,414 prompt tokens, 135 s for 134,506, "
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
            f"prompts of more than {longest_prompt(seconds)} get 504 after {told(seconds)}, with every engine in good health, "
            "and count as failures of the engine (max_fails)"
        )
        shown = route.shown("proxy_read_timeout", "60s")
        write = f"proxy_read_timeout {roomy(assumed.first_token_s)}"
        yield Seen(route.place("proxy_read_timeout"), route.where, shown, outage, write)


@RULES.rule(
    "N22", Severity.NOTE, "slow clients are cut off",
    looks_for="`send_timeout` or `proxy_send_timeout` below 30 s",
    why="they count between two writes, to the client and to the engine; waiting for a first token is not counted: with 1 s "
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
    ends = {"send_timeout": "a client that reads nothing", "proxy_send_timeout": "an upload to an engine that takes nothing"}
    for route in generating(config):
        for name, who in ends.items():
            seconds = route.seconds(name, 60.0)
            if seconds < 30:
                outage = f"{who} for {told(seconds)} is cut off"
                yield Seen(route.place(name), route.where, route.shown(name, "60s"), outage, f"{name} 60s")


@RULES.rule(
    "N23", Severity.WARNING, "a broken stream looks complete",
    looks_for="`proxy_http_version 1.0`, the default before nginx 1.29.7",
    why="in HTTP/1.0 the end of the connection is the end of the answer, so a dead engine cannot be told from a finished one",
    source=f"{PROXY}, `proxy_http_version`; tried with 1.22.1: an engine that died in mid-stream gave the client a complete 200; over "
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
        shown = route.shown("proxy_http_version", "1.0")
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


@RULES.rule(
    "N25", Severity.WARNING, "long prompts are refused",
    looks_for=f"`client_max_body_size` below {SMALL_BODY // 1024**2} MiB (the default is 1 MiB)",
    why="the limit is in bytes of JSON: a long conversation with tool results, or one image in Base64, is soon larger",
    source=f"{CORE}, `client_max_body_size` (default 1m); tried with 1.22.1: 413 with an HTML page",
    example="""\
server {
    client_max_body_size 1m;
    location /v1/ {
        proxy_pass http://192.0.2.11:8000;
    }
}
""",
)  # fmt: skip
def body_size(config: Config, _: Assumed) -> Iterator[Seen]:
    for route in generating(config):
        size = nginx_bytes(route.value("client_max_body_size", "1m"))
        if size is None or size == 0 or size >= SMALL_BODY:
            continue
        outage = (
            f"requests over {size:,.0f} bytes get 413 at any time: about {size / 4:,.0f} tokens of plain English, or an image of "
            f"{size * 3 / 4 / 1024:,.0f} KiB"
        )
        shown = route.shown("client_max_body_size", "1m")
        yield Seen(route.place("client_max_body_size"), route.where, shown, outage, "client_max_body_size 64m")


@RULES.rule(
    "N26", Severity.ERROR, "streams are compressed",
    looks_for="`gzip on` whose `gzip_types` has text/event-stream or *",
    why="with buffering on, the compressor holds events back until it is full or the stream is over",
    source="nginx documentation, ngx_http_gzip_module; tried with 1.22.1: with buffering on, 60 events over 3 s arrived in one piece at "
    "the end; with `proxy_buffering off` one by one",
    example="""\
server {
    gzip on;
    gzip_types application/json text/event-stream;
    location /v1/ {
        proxy_pass http://192.0.2.11:8000;
        proxy_http_version 1.1;
    }
}
""",
)  # fmt: skip
def gzip(config: Config, _: Assumed) -> Iterator[Seen]:
    for route in generating(config):
        types = route.at.setting("gzip_types")
        hit = types is not None and bool({"*", "text/event-stream"} & set(types.args))
        if route.value("gzip", "off") != "on" or types is None or not hit:
            continue
        buffered = route.value("proxy_buffering", "on") != "off"
        outage = (
            "a client that accepts gzip sees nothing of its stream until it is over; when the engine dies it has seen nothing at all"
            if buffered
            else "CPU time of the proxy for every token, and nothing won"
        )
        severity = None if buffered else Severity.NOTE
        yield Seen(types.place, route.where, types.text, outage, "gzip_types without text/event-stream", severity)


@RULES.rule(
    "N27", Severity.ERROR, "answers from a cache",
    looks_for="`proxy_cache` on completions",
    why="a cache keeps whole answers: it needs buffering, and with POST among its methods the key (the URL, unless set "
    "otherwise) is the same for every prompt",
    source=f"{PROXY}, `proxy_cache`, `proxy_cache_methods` (default GET HEAD), `proxy_cache_key` ($scheme$proxy_host$request_uri)",
    example="""\
server {
    location /v1/ {
        proxy_pass http://192.0.2.11:8000;
        proxy_cache answers;
        proxy_cache_methods GET HEAD POST;
    }
}
""",
)  # fmt: skip
def cache(config: Config, _: Assumed) -> Iterator[Seen]:
    for route in generating(config):
        if route.value("proxy_cache", "off") == "off":
            continue
        methods = route.at.setting("proxy_cache_methods")
        key = route.value("proxy_cache_key", "")
        posts = methods is not None and "POST" in methods.args
        if posts and "request_body" not in key:
            outage, severity = "one client gets the answer to another's prompt, with engines away or not", Severity.ERROR
        elif posts:
            outage, severity = "the same prompt gets the same answer whatever the temperature, and streams wait", Severity.WARNING
        else:
            outage, severity = "GET /v1/models may list an engine's model that is gone", Severity.NOTE
        place = route.place("proxy_cache")
        yield Seen(place, route.where, route.shown("proxy_cache", "off"), outage, "proxy_cache off", severity)


@RULES.rule(
    "N28", Severity.WARNING, "engines work for clients that left",
    looks_for="`proxy_ignore_client_abort on`",
    why="the engine notices a client that left only by its connection; clients that time out and try again pile up work",
    source=f"{PROXY}, `proxy_ignore_client_abort` (default off)",
    example="""\
server {
    location /v1/ {
        proxy_pass http://192.0.2.11:8000;
        proxy_ignore_client_abort on;
    }
}
""",
)  # fmt: skip
def ignored_abort(config: Config, _: Assumed) -> Iterator[Seen]:
    for route in generating(config):
        if route.value("proxy_ignore_client_abort", "off") == "on":
            outage = "after an outage the engines first generate answers that nobody waits for any more, each to its last token"
            place = route.place("proxy_ignore_client_abort")
            shown = route.shown("proxy_ignore_client_abort", "off")
            yield Seen(place, route.where, shown, outage, "proxy_ignore_client_abort off")


@RULES.rule(
    "N29", Severity.WARNING, "a reload cuts streams",
    looks_for="`worker_shutdown_timeout` shorter than twice the longest wait for a first token",
    why="after a reload the old workers finish their streams, but no longer than this",
    source="nginx documentation, Core functionality, `worker_shutdown_timeout`",
    example="worker_shutdown_timeout 30s;\nevents {\n}\nhttp {\n}\n",
)  # fmt: skip
def shutdown(config: Config, assumed: Assumed) -> Iterator[Seen]:
    for directive in config.every("worker_shutdown_timeout"):
        seconds = nginx_seconds(directive.arg(0))
        if seconds is not None and 0 < seconds < 2 * assumed.first_token_s:
            outage = f"every reload ends all streams that are still running {told(seconds)} later"
            write = f"worker_shutdown_timeout {roomy(2 * assumed.first_token_s)}"
            yield Seen(directive.place, "main", directive.text, outage, write)
