"""nginx: which engine a request goes to, and what is around it: metrics, error pages, limits, includes."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.proxy.lint.findings import Assumed, Rules, Seen, Severity
from fleetctl.proxy.lint.nginx_outage import UPSTREAM
from fleetctl.proxy.lint.nginx_reader import Config
from fleetctl.proxy.lint.nginx_routes import balanced, generating, routes
from fleetctl.proxy.lint.quantities import count

RULES: Rules[Config] = Rules()
CORE = "nginx documentation, Core functionality"
FEW_CONNECTIONS = 1024


def workers(config: Config) -> int | None:
    """How many worker processes there are; None for ``auto``, or where the file does not say and is only a part."""
    lines = config.every("worker_processes")
    if lines:
        return count(lines[-1].arg(0))
    return 1 if config.every("http") or config.every("events") else None


@RULES.rule(
    "N30", Severity.WARNING, "busy engines get as much as idle ones",
    looks_for="several servers without `least_conn` (or `random two least_conn`)",
    why="requests last from a second to minutes, so taking turns piles long ones up on one engine",
    source=f"{UPSTREAM}: weighted round robin by default",
    example="""\
upstream engines {
    server 192.0.2.11:8000;
    server 192.0.2.12:8000;
}
""",
)  # fmt: skip
def round_robin(config: Config, _: Assumed) -> Iterator[Seen]:
    for upstream in balanced(config):
        method = upstream.method
        fair = method is not None and (
            method.name != "random" or bool({"least_conn", "least_time"} & {arg.split("=")[0] for arg in method.args})
        )
        if fair:
            continue
        share = f"1 of {len(upstream.active)} requests" if len(upstream.active) > 1 else "a fixed share of the requests"
        outage = (
            f"each engine gets {share} however busy it is: after one is back, they still queue behind the "
            f"long ones of the other"
        )
        shown = method.text if method else "round robin (the default)"
        place = method.place if method else upstream.block.place
        yield Seen(place, f"upstream {upstream.name}", shown, outage, f"least_conn; zone {upstream.name} 64k")


@RULES.rule(
    "N31", Severity.WARNING, "clients are tied to an engine",
    looks_for="`ip_hash`, `hash` or `sticky`",
    why="all clients behind one address (an office, a proxy, a batch job) use one engine; ip_hash looks at the "
    "first three "
    "numbers of an IPv4 address only",
    source=f"{UPSTREAM}, `ip_hash`, `hash`",
    example="""\
upstream engines {
    ip_hash;
    server 192.0.2.11:8000;
    server 192.0.2.12:8000;
}
""",
)  # fmt: skip
def tied(config: Config, _: Assumed) -> Iterator[Seen]:
    for upstream in balanced(config):
        method = upstream.method
        if method is not None and method.name in ("ip_hash", "hash", "sticky"):
            outage = (
                "one engine can be full while another is idle; when one goes or comes, the clients that move "
                "lose their prefix cache"
            )
            if method.name == "hash" and "consistent" not in method.args:
                outage += " (without `consistent`: nearly all of them)"
            write = f"least_conn; zone {upstream.name} 64k"
            yield Seen(method.place, f"upstream {upstream.name}", method.text, outage, write)


@RULES.rule(
    "N32", Severity.NOTE, "each worker counts for itself",
    looks_for="several servers without `zone`, with several worker processes (or an unknown number)",
    why="without a shared zone every worker has its own connections, failures and limits",
    source=f"{UPSTREAM}, `zone`",
    example="""\
worker_processes 4;
events {
}
http {
    upstream engines {
        least_conn;
        server 192.0.2.11:8000 max_fails=3 fail_timeout=2s;
        server 192.0.2.12:8000 max_fails=3 fail_timeout=2s;
    }
}
""",
)  # fmt: skip
def no_zone(config: Config, _: Assumed) -> Iterator[Seen]:
    number = workers(config)
    if number == 1:
        return
    for upstream in balanced(config):
        if upstream.block.own("zone"):
            continue
        fails = max((peer.max_fails for peer in upstream.peers), default=1)
        failures = "1 failure" if fails == 1 else f"{fails} failures"
        each = f"each of {number} workers ({number * fails} in all)" if number else "each worker"
        outage = f"a dead engine is noticed after {failures} in {each}; least_conn sees a part of the load only"
        write = f"zone {upstream.name} 64k"
        yield Seen(upstream.block.place, f"upstream {upstream.name}", "no zone", outage, write)


@RULES.rule(
    "N33", Severity.WARNING, "metrics of changing engines",
    looks_for="a location for /metrics that passes to several servers",
    why="each read comes from another process, so counters jump and go backwards: a monitor reports a starved engine",
    source="vLLM's counters are per process; read every engine at its own address and add them up",
    example="""\
upstream engines {
    least_conn;
    server 192.0.2.11:8000;
    server 192.0.2.12:8000;
}
server {
    location /metrics {
        proxy_pass http://engines;
    }
}
""",
)  # fmt: skip
def metrics(config: Config, _: Assumed) -> Iterator[Seen]:
    for route in routes(config):
        if "metrics" in route.path.lower() and route.upstream is not None and route.upstream.several:
            outage = "totals are wrong by day, and in an outage they seem to restart with every read"
            write = "read http://EACH-ENGINE:PORT/metrics directly; return 404 here"
            yield Seen(route.proxy_pass.place, route.where, route.proxy_pass.text, outage, write)


@RULES.rule(
    "N34", Severity.NOTE, "errors in HTML",
    looks_for="no `error_page` for 502, 503 or 504",
    why="clients of the OpenAI API read a JSON body and the header Retry-After; nginx's own pages have neither",
    source="nginx documentation, ngx_http_core_module, `error_page`; tried with 1.22.1: `<head><title>504 "
    "Gateway Time-out`",
    example="""\
server {
    location /v1/ {
        proxy_pass http://192.0.2.11:8000;
    }
}
""",
)  # fmt: skip
def html_errors(config: Config, _: Assumed) -> Iterator[Seen]:
    for route in generating(config):
        covered = {word for page in route.at.nearest("error_page") for word in page.args[:-1]}
        missing = [code for code in ("502", "503", "504") if code not in covered]
        if missing:
            outage = (
                f"clients see an HTML page for {', '.join(missing)} where they expect JSON, and are not told "
                f"when to come back"
            )
            write = (
                "error_page 502 503 504 = @away, and there default_type application/json, add_header "
                "Retry-After 10 always, return 503"
            )
            yield Seen(route.proxy_pass.place, route.where, "no error_page", outage, write)


@RULES.rule(
    "N35", Severity.NOTE, "few connections",
    looks_for=f"`worker_connections` below {FEW_CONNECTIONS} (the default is 512)",
    why="a stream takes two connections, one to the client and one to the engine, for minutes",
    source=f"{CORE}, `worker_connections` (default 512)",
    example="events {\n    worker_connections 256;\n}\nhttp {\n}\n",
)  # fmt: skip
def few_connections(config: Config, _: Assumed) -> Iterator[Seen]:
    for events in config.every("events"):
        lines = events.own("worker_connections")
        limit = count(lines[-1].arg(0)) if lines else 512
        if limit is not None and limit < FEW_CONNECTIONS:
            outage = (
                f"a worker carries at most {limit // 2} streams; in an outage waiting clients use that up, "
                f"and others get nothing"
            )
            shown = lines[-1].text if lines else "worker_connections 512 (the default)"
            place = lines[-1].place if lines else events.place
            yield Seen(place, "events", shown, outage, "worker_connections 4096")


@RULES.rule(
    "N36", Severity.NOTE, "a part that was not read",
    looks_for="an `include` that is missing, or outside the folder of the file",
    why="settings in it may change what is said here",
    source="only files under the folder of FILE are read",
    example="http {\n    include missing.conf;\n}\n",
)  # fmt: skip
def not_read(config: Config, _: Assumed) -> Iterator[Seen]:
    for missed in config.not_read:
        outage = "unknown: rules about missing settings may be wrong"
        write = "run this where nginx runs, on its nginx.conf, or on the output of `nginx -T`"
        yield Seen(missed.place, "include", f"include {missed.pattern} ({missed.reason})", outage, write)
