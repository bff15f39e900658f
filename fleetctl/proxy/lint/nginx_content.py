"""nginx: limits on prompts, compression, caches, and clients that left."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.proxy.lint.findings import Assumed, Rules, Seen, Severity
from fleetctl.proxy.lint.nginx_outage import PROXY
from fleetctl.proxy.lint.nginx_reader import Config
from fleetctl.proxy.lint.nginx_routes import generating
from fleetctl.proxy.lint.nginx_streams import CORE
from fleetctl.proxy.lint.quantities import nginx_bytes, nginx_seconds, roomy, told

RULES: Rules[Config] = Rules()
SMALL_BODY = 10 * 1024**2


@RULES.rule(
    "N25", Severity.WARNING, "long prompts are refused",
    looks_for=f"`client_max_body_size` below {SMALL_BODY // 1024**2} MiB (the default is 1 MiB)",
    why="the limit is in bytes of JSON: a long conversation with tool results, or one image in Base64, is soon "
    "larger",
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
            f"requests over {size:,.0f} bytes get 413 at any time: about {round(size / 4, -3):,.0f} tokens of plain "
            "English, or an image of "
            f"{size * 3 / 4 / 1024:,.0f} KiB"
        )
        shown = route.shown("client_max_body_size", "1m")
        yield Seen(route.place("client_max_body_size"), route.where, shown, outage, "client_max_body_size 64m")


@RULES.rule(
    "N26", Severity.ERROR, "streams are compressed",
    looks_for="`gzip on` whose `gzip_types` has text/event-stream or *",
    why="with buffering on, the compressor holds events back until it is full or the stream is over",
    source="nginx documentation, ngx_http_gzip_module; tried with 1.22.1: with buffering on, 60 events over 3 s "
    "arrived in one piece at "
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
            "a client that accepts gzip sees nothing of its stream until it is over; when the engine dies it "
            "has seen nothing at all"
            if buffered
            else "CPU time of the proxy for every token, and nothing won"
        )
        severity = None if buffered else Severity.NOTE
        yield Seen(types.place, route.where, types.text, outage, "gzip_types without text/event-stream", severity)


@RULES.rule(
    "N27", Severity.ERROR, "answers from a cache",
    looks_for="`proxy_cache` on completions",
    why="a cache keeps whole answers: it needs buffering, and with POST among its methods the key (the URL, "
    "unless set "
    "otherwise) is the same for every prompt",
    source=f"{PROXY}, `proxy_cache`, `proxy_cache_methods` (default GET HEAD), `proxy_cache_key` "
    "($scheme$proxy_host$request_uri)",
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
            outage, severity = (
                "one client gets the answer to another's prompt, with engines away or not",
                Severity.ERROR,
            )
        elif posts:
            outage, severity = (
                "the same prompt gets the same answer whatever the temperature, and streams wait",
                Severity.WARNING,
            )
        else:
            outage, severity = "GET /v1/models may list an engine's model that is gone", Severity.NOTE
        place = route.place("proxy_cache")
        yield Seen(place, route.where, route.shown("proxy_cache", "off"), outage, "proxy_cache off", severity)


@RULES.rule(
    "N28", Severity.WARNING, "engines work for clients that left",
    looks_for="`proxy_ignore_client_abort on`",
    why="the engine notices a client that left only by its connection; clients that time out and try again pile "
    "up work",
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
            outage = (
                "after an outage the engines first generate answers that nobody waits for any more, each to "
                "its last token"
            )
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
