"""HAProxy: names, state files, connections, compression, and what is open to others."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleetctl.proxy.lint.findings import Assumed, Rules, Seen, Severity
from fleetctl.proxy.lint.haproxy_health import MANUAL
from fleetctl.proxy.lint.haproxy_reader import Config, Section, servers
from fleetctl.proxy.lint.nginx_routes import is_name

RULES: Rules[Config] = Rules()


@RULES.rule(
    "H40", Severity.WARNING, "server names that must resolve",
    looks_for="a server given by name with the default `init-addr`, or with `none` and no `resolvers`",
    why="by default a name is looked up once, at the start, and HAProxy does not start when one of them is unknown",
    source=f"{MANUAL}, `init-addr` (default last,libc); tried with 2.6.12: `could not resolve address`, `Failed "
    "to initialize "
    "server(s) addr.`",
    example="""\
defaults
    mode http
    timeout connect 2s
backend engines
    option httpchk GET /health
    server a spark1.lan:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def names(config: Config, _: Assumed) -> Iterator[Seen]:
    for section, engines in config.used_backends:
        for server in engines:
            if not is_name(server.host) or server.host == "*":
                continue
            ways = server.params.get("init-addr", "last,libc").split(",")
            resolvers = "resolvers" in server.params
            write = "resolvers NAME init-addr last,libc,none  (and a section `resolvers NAME` with `parse-resolv-conf`)"
            if "none" in ways and not resolvers:
                outage = "unless its name is known at the start, the server stays in maintenance (MAINT) for ever"
                shown, severity = f"init-addr {','.join(ways)} without resolvers", Severity.ERROR
            elif "none" not in ways and not re.search(r"[0-9]$", ways[-1]):
                outage = (
                    "with DNS away, a restart or reload of HAProxy fails as a whole: every server is gone "
                    "because of one name"
                )
                shown, severity = f"a server name with init-addr {','.join(ways)}", Severity.WARNING
            elif not resolvers:
                outage = "a box that gets another address is not found until HAProxy is reloaded"
                shown, severity = "a server name without resolvers", Severity.NOTE
            else:
                continue
            yield Seen(server.place, section.title, shown, outage, write, severity)


@RULES.rule(
    "H41", Severity.WARNING, "old addresses come back",
    looks_for="`load-server-state-from-file` other than `none` (but for the file that fleetctl keeps up to date)",
    why="the file holds addresses and administrative states of an earlier time, and they win over the configuration",
    source=f"{MANUAL}, `load-server-state-from-file`",
    example="""\
global
    server-state-file /var/lib/haproxy/state
defaults
    mode http
    load-server-state-from-file global
    timeout connect 2s
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def state_file(config: Config, _: Assumed) -> Iterator[Seen]:
    files = config.globally("server-state-file")
    if files and files[-1].value(1).startswith("/var/lib/fleetctl/"):
        return
    for section, _engines in config.used_backends:
        line = section.last("load-server-state-from-file")
        if line is not None and line.value(1) != "none":
            outage = (
                "after a restart a server may have the address, or the drained state, that it had when the "
                "file was written"
            )
            yield Seen(line.place, section.title, line.text, outage, "load-server-state-from-file none")


@RULES.rule(
    "H42", Severity.NOTE, "connections that both sides may close",
    looks_for="connections to engines kept for reuse (no `option http-server-close`), above all `http-reuse always`",
    why="vLLM closes a connection that was idle for 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE); a request sent into that "
    "moment "
    "is lost, and must not be retried when it may have arrived",
    source=f"{MANUAL}, `http-reuse`, `option http-server-close`; vLLM pull request 18472",
    example="""\
defaults
    mode http
    http-reuse always
    timeout connect 2s
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def reuse(config: Config, _: Assumed) -> Iterator[Seen]:
    for section, engines in config.used_backends:
        closing = section.has("option", "http-server-close") or section.has("option", "httpclose")
        if section.mode != "http" or closing:
            continue
        line = section.last("http-reuse")
        eager = line is not None and line.value(1) in ("always", "aggressive")
        shown = line.text if line is not None and eager else "no option http-server-close"
        outage = "now and then a request on an old connection fails although every engine is well"
        place = line.place if line is not None else engines[0].place
        severity = Severity.WARNING if eager else Severity.NOTE
        yield Seen(place, section.title, shown, outage, "option http-server-close", severity)


@RULES.rule(
    "H43", Severity.NOTE, "a connection per request for clients",
    looks_for="`option httpclose`, `option forceclose` or `no option http-keep-alive`",
    why="closing on the client's side too makes each call of an agent open a new connection (with TLS: two more "
    "round trips); "
    "it protects nothing that http-server-close does not",
    source=f"{MANUAL}, `option httpclose`",
    example="""\
defaults
    mode http
    option httpclose
    timeout connect 2s
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def http_close(config: Config, _: Assumed) -> Iterator[Seen]:
    for section in config.of("frontend", "listen", "backend"):
        lines = [section.last("option", name) for name in ("httpclose", "forceclose")]
        lines += [line for line in section.all("option", "http-keep-alive")[-1:] if line.negated]
        for line in lines:
            if line is not None:
                outage = "no harm in an outage; when all clients come back at once, they come with all their handshakes"
                yield Seen(line.place, section.title, line.text, outage, "option http-server-close")


@RULES.rule(
    "H44", Severity.NOTE, "event streams are compressed",
    looks_for="`compression algo` for every type, or for text/event-stream",
    why="HAProxy compresses each event by itself: tried with 2.6.12, 60 events arrived one by one and only 6 % "
    "smaller, each "
    "at the price of a flush",
    source=f"{MANUAL}, `compression`; tried with 2.6.12",
    example="""\
defaults
    mode http
    compression algo gzip
    timeout connect 2s
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def compression(config: Config, _: Assumed) -> Iterator[Seen]:
    for section in config.of("frontend", "listen", "backend"):
        algo = section.last("compression", "algo")
        types = [word for line in section.all("compression", "type") for word in line.words[2:]]
        if algo is not None and (not types or any("event-stream" in word for word in types)):
            outage = "CPU time of the proxy for every token, and nothing won"
            write = "compression type application/json  (without text/event-stream), or no compression"
            yield Seen(algo.place, section.title, algo.text, outage, write)


@RULES.rule(
    "H45", Severity.ERROR, "anyone may command the proxy",
    looks_for="`stats socket` on a TCP address that is not loopback; `stats admin if TRUE`",
    why="the runtime API has no password: with level admin whoever reaches it can drain every engine or change "
    "addresses",
    source=f"{MANUAL}, `stats socket` (level default operator), `stats admin`",
    example="""\
global
    stats socket ipv4@0.0.0.0:9999 level admin
defaults
    mode http
    timeout connect 2s
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def open_admin(config: Config, _: Assumed) -> Iterator[Seen]:
    for line in config.globally("stats", "socket"):
        address = line.value(2).rsplit("@", 1)[-1]
        remote = not address.startswith("/") and not line.value(2).startswith(("unix@", "abns@", "fd@", "sockpair@"))
        if not remote or re.match(r"(127\.|localhost|\[?::1)", address):
            continue
        admin = "admin" in line.words
        outage = f"anyone who reaches {address} " + (
            "can stop all traffic with one line" if admin else "reads its state"
        )
        write = "stats socket /run/haproxy/admin.sock user root mode 600 level admin"
        yield Seen(line.place, "global", line.text, outage, write, None if admin else Severity.WARNING)
    for section in config.of("defaults", "frontend", "listen", "backend"):
        for line in section.lines:
            if line.words[:3] == ("stats", "admin", "if") and line.value(3) in ("TRUE", "always_true"):
                outage = "whoever opens the statistics page can take every engine out of service"
                yield Seen(line.place, section.title, line.text, outage, "no stats admin; use the Unix socket")


@RULES.rule(
    "H46", Severity.WARNING, "metrics of changing copies",
    looks_for="a rule that sends /metrics to a backend with several servers",
    why="each read comes from another process, so counters jump and go backwards: a monitor reports a starved engine",
    source="vLLM's counters are per process; read every copy at its own address and add them up",
    example="""\
defaults
    mode http
    timeout connect 2s
frontend clients
    bind :8080
    use_backend engines if { path_beg /metrics }
    default_backend engines
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
    server b 192.0.2.12:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def metrics(config: Config, _: Assumed) -> Iterator[Seen]:
    several = {s.name for s, engines in config.used_backends if sum(server.copies for server in engines) > 1}
    for section in config.of("frontend", "listen"):
        for line in section.all("use_backend"):
            if line.value(1) in several and _is_metrics(section, line.words):
                outage = "totals are wrong by day, and in an outage they seem to restart with every read"
                write = "read http://EACH-COPY:PORT/metrics directly; http-request deny if { path /metrics } here"
                yield Seen(line.place, section.title, line.text, outage, write)


def _is_metrics(section: Section, words: tuple[str, ...]) -> bool:
    if any(word.startswith("/metrics") for word in words):
        return True
    about = {line.value(1) for line in section.all("acl") if any(w.startswith("/metrics") for w in line.words)}
    return bool(about & set(words))


@RULES.rule(
    "H47", Severity.NOTE, "errors in HTML",
    looks_for="no `errorfile`, `errorfiles` or `http-error` for 503",
    why="clients of the OpenAI API read a JSON body and the header Retry-After; HAProxy's own pages have neither",
    source=f"{MANUAL}, `errorfile`; tried with 2.6.12: `<html><body><h1>503 Service Unavailable`",
    example="""\
defaults
    mode http
    timeout connect 2s
    errorfile 503 /etc/haproxy/errors/503.html
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def html_errors(config: Config, _: Assumed) -> Iterator[Seen]:
    write = "errorfile 503 FILE with `content-type: application/json`, `retry-after: 10` and an OpenAI error body"
    for section, engines in config.used_backends:
        if section.mode != "http":
            continue
        file = section.last("errorfile", "503")
        outage = "clients see an HTML page where they expect JSON, and are not told when to come back"
        if file is not None and file.value(2).endswith((".html", "/errors/503.http")):
            yield Seen(file.place, section.title, file.text, outage, write)
        elif file is None and not any(section.has(kind) for kind in ("errorfiles", "http-error", "errorloc")):
            yield Seen(engines[0].place, section.title, "no errorfile 503", outage, write)


@RULES.rule(
    "H48", Severity.WARNING, "connections are balanced, not requests",
    looks_for="`mode tcp` (the default) for engines",
    why="a client that keeps its connection stays on one copy; HTTP timeouts, retries and error pages do not apply",
    source=f"{MANUAL}, `mode` (default tcp)",
    example="""\
defaults
    timeout connect 2s
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def tcp_mode(config: Config, _: Assumed) -> Iterator[Seen]:
    for section, engines in config.used_backends:
        if section.mode == "tcp":
            line = section.last("mode")
            outage = "all requests on a connection go to the copy that got the first, and end with it"
            place = line.place if line else (section.lines[0] if section.lines else servers(section)[0].line).place
            shown = line.text if line else "mode tcp (the default)"
            severity = Severity.NOTE if line and len(engines) == 1 else None
            yield Seen(place, section.title, shown, outage, "mode http", severity)
