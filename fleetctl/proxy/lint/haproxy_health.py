"""HAProxy: how soon an engine that is gone leaves the rotation, and how soon one that is back gets traffic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fleetctl.proxy.lint.findings import Assumed, Rules, Seen, Severity
from fleetctl.proxy.lint.haproxy_reader import Config, Section, Server
from fleetctl.proxy.lint.quantities import count, haproxy_seconds, told

RULES: Rules[Config] = Rules()
MANUAL = "HAProxy 2.6 configuration manual"
GOOD_CHECK = "check inter 500ms fastinter 250ms downinter 250ms rise 1 fall 2"
SLOW_S = 3.0


@dataclass(frozen=True)
class Cadence:
    """What the checks of a server cost in seconds."""

    refused: float
    silent: float
    hung: float
    back: float
    told: str


def connect_seconds(section: Section) -> float | None:
    """``timeout connect`` in seconds; None when it is missing."""
    line = section.last("timeout", "connect")
    return haproxy_seconds(line.value(2)) if line else None


def retries(section: Section) -> int:
    """How often a failed connection is tried again; 3 when nothing is said."""
    line = section.last("retries")
    found = count(line.value(1)) if line else None
    return 3 if found is None else found


def cadence(section: Section, server: Server) -> Cadence:
    """How long until a server that refuses, is off the network, or hangs, is out, and until one that is back is in.

    A failure that comes at once costs ``inter`` a check; one that has to time out costs its timeout and ``inter``.
    """

    def seconds(name: str, default: float) -> float:
        found = haproxy_seconds(server.params.get(name, ""))
        return default if found is None else found

    inter = seconds("inter", 2.0)
    fast = seconds("fastinter", inter)
    down = seconds("downinter", inter)
    fall = count(server.params.get("fall", "")) or 3
    rise = count(server.params.get("rise", "")) or 2
    check = section.last("timeout", "check")
    connect = connect_seconds(section)
    wait = inter if check is None else min(inter, connect if connect is not None else inter)
    refused = inter + (fall - 1) * fast
    reading = haproxy_seconds(check.value(2)) if check else None
    silent = refused + fall * wait
    hung = refused + fall * (inter if reading is None else reading)
    if "on-error" in server.params and "observe" in server.params and connect is not None:
        limit = count(server.params.get("error-limit", "")) or 10
        refused = min(refused, inter if limit > 1 else 0.0)
        silent = min(silent, limit * connect)
    shown = f"inter {told(inter)}, fall {fall}, rise {rise}"
    return Cadence(refused, silent, hung, down + (rise - 1) * fast, shown)


def http_check(section: Section) -> bool:
    """Whether checks ask over HTTP."""
    kinds = ("httpchk", "tcp-check", "ssl-hello-chk", "ldap-check", "mysql-check", "pgsql-check", "redis-check")
    chosen = [line for line in section.all("option") if line.value(1) in kinds and not line.negated]
    return bool(chosen) and chosen[-1].value(1) == "httpchk"


@RULES.rule(
    "H01", Severity.ERROR, "server without a check",
    looks_for="a `server` of an engine without `check`",
    why="without checks a server is never marked down: a dead engine keeps its share of the requests for ever",
    source=f"{MANUAL}, `check`; tried with 2.6.12: every second request to a pair with one dead server answered 503",
    example="""\
defaults
    mode http
    timeout connect 2s
backend engines
    server a 192.0.2.11:8000 maxconn 12
    server b 192.0.2.12:8000 maxconn 12
""",
)  # fmt: skip
def unchecked(config: Config, _: Assumed) -> Iterator[Seen]:
    for section, servers in config.used_backends:
        tries = 1 + retries(section)
        connect = connect_seconds(section)
        for server in servers:
            if server.checked:
                continue
            share = f"1 of {len(servers)} requests" if len(servers) > 1 else "every request"
            silent = f"up to {told(tries * connect)} ({tries} times timeout connect)" if connect else "for ever"
            outage = (
                f"when it is down, {share} is still sent to it; a box that is off the network makes each of "
                "them wait "
                f"{silent}, and this does not end until someone edits the file"
            )
            write = f"server NAME ADDRESS {GOOD_CHECK} …"
            yield Seen(server.place, section.title, "server … without check", outage, write)


@RULES.rule(
    "H02", Severity.ERROR, "checks that look at the port only",
    looks_for="`check` without `option httpchk`",
    why="a TCP check is answered by the kernel: an engine that hangs keeps its listening socket",
    source=f"{MANUAL}, `option httpchk`; an engine that accepts and never answers still passes a connect",
    example="""\
defaults
    mode http
    timeout connect 2s
    timeout server 10m
backend engines
    server a 192.0.2.11:8000 check maxconn 12
    server b 192.0.2.12:8000 check maxconn 12
""",
)  # fmt: skip
def port_only(config: Config, _: Assumed) -> Iterator[Seen]:
    for section, servers in config.used_backends:
        checked = [server for server in servers if server.checked and "track" not in server.params]
        if not checked or http_check(section) or section.all("http-check", "send"):
            continue
        limit = section.last("timeout", "server")
        wait = haproxy_seconds(limit.value(2)) if limit else None
        until = f"{told(wait)} (timeout server) and then gets 504" if wait else "for ever (there is no timeout server)"
        outage = f"an engine that accepts and never answers stays in; each request that it gets waits {until}"
        write = "option httpchk GET /health  +  http-check expect status 200"
        yield Seen(checked[0].place, section.title, "check without option httpchk", outage, write)


@RULES.rule(
    "H03", Severity.ERROR, "a check that no engine answers with 200",
    looks_for="`option httpchk` that names no path, without `http-check send`",
    why="the default is `OPTIONS /`; vLLM has no such route and answers 404, and only 2xx and 3xx pass",
    source=f"{MANUAL}, `option httpchk`; vLLM serves GET /health and has no route /",
    example="""\
defaults
    mode http
    timeout connect 2s
backend engines
    option httpchk
    server a 192.0.2.11:8000 check maxconn 12
""",
)  # fmt: skip
def options_check(config: Config, _: Assumed) -> Iterator[Seen]:
    for section, servers in config.used_backends:
        line = section.last("option", "httpchk")
        sends = [sent for sent in section.all("http-check", "send") if "uri" in sent.words or "uri-lf" in sent.words]
        named = line is not None and any(word.startswith("/") for word in line.words[2:])
        if line is None or named or sends or not any(server.checked for server in servers):
            continue
        outage = "every check of a healthy engine fails, so every server is down and clients get 503, outage or not"
        write = "option httpchk GET /health  +  http-check expect status 200"
        yield Seen(line.place, section.title, line.text, outage, write)


@RULES.rule(
    "H04", Severity.WARNING, "slow checks",
    looks_for=f"`inter`, `fall` and `rise` with which leaving or coming back takes more than {SLOW_S:g} s",
    why="between the failure and the last failed check requests still go there; after the return nothing does",
    source=f"{MANUAL}, `inter` (default 2 s), `fall` (3), `rise` (2), `timeout check`; tried with 2.6.12 and inter 1s "
    "fall 3 rise 2: out 2.2 to 3.0 s after a refusal and 5.2 to 5.9 s into silence, back after 1.9 to 2.0 s",
    example="""\
defaults
    mode http
    timeout connect 5s
backend engines
    option httpchk GET /health
    default-server check inter 10s fall 3 rise 3
    server a 192.0.2.11:8000 maxconn 12
    server b 192.0.2.12:8000 maxconn 12
""",
)  # fmt: skip
def slow_checks(config: Config, _: Assumed) -> Iterator[Seen]:
    for section, servers in config.used_backends:
        for server in servers:
            if not server.checked or "track" in server.params:
                continue
            cost = cadence(section, server)
            if max(cost.refused, cost.silent, cost.back) <= SLOW_S:
                continue
            hung = f"one that hangs for up to {told(cost.hung)}" if http_check(section) else "one that hangs for ever"
            outage = (
                f"a stopped engine stays in for up to {told(cost.refused)}, a box that vanished (silence, no refusal) "
                f"for up to {told(cost.silent)}, {hung}; an engine that is back gets nothing for up to "
                f"{told(cost.back)}"
            )
            write = f"default-server {GOOD_CHECK} observe layer4 error-limit 1 on-error mark-down"
            yield Seen(server.place, section.title, f"check with {cost.told}", outage, write)


@RULES.rule(
    "H05", Severity.WARNING, "running streams cut by a check",
    looks_for="`on-marked-down shutdown-sessions`",
    why="good for an engine that hangs or vanished: its streams end visibly at once, not after timeout server. "
    "Bad where a busy engine only answers checks late: then each lapse cuts every stream that was running well",
    source=f"{MANUAL}, `on-marked-down`",
    example="""\
defaults
    mode http
    timeout connect 2s
backend engines
    option httpchk GET /health
    default-server check inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
    server a 192.0.2.11:8000 maxconn 12
""",
)  # fmt: skip
def cut_streams(config: Config, _: Assumed) -> Iterator[Seen]:
    for section, servers in config.used_backends:
        for server in servers:
            if server.params.get("on-marked-down") != "shutdown-sessions":
                continue
            cost = cadence(section, server)
            patient = min(cost.refused, cost.silent) >= 5.0
            outage = f"every running stream on a server ends when it fails its checks for about {told(cost.silent)}"
            write = (
                "keep it: these checks are patient"
                if patient
                else "leave it out, or keep it with `timeout check 5s` and `fall 5`, so that a busy engine is not cut"
            )
            severity = Severity.NOTE if patient else Severity.WARNING
            yield Seen(server.place, section.title, "on-marked-down shutdown-sessions", outage, write, severity)


@RULES.rule(
    "H06", Severity.WARNING, "slow start",
    looks_for="`slowstart`",
    why="slowstart lets a server that came back take 1 request, then slowly up to maxconn; an engine is at full "
    "speed as soon as it is ready, and after an outage the queue is longest exactly then",
    source=f"{MANUAL}, `slowstart`: maxconn grows from 1 to 100 % over that time",
    example="""\
defaults
    mode http
    timeout connect 2s
backend engines
    option httpchk GET /health
    default-server check inter 1s fall 2 rise 1 slowstart 60s
    server a 192.0.2.11:8000 maxconn 12
""",
)  # fmt: skip
def slow_start(config: Config, _: Assumed) -> Iterator[Seen]:
    for section, servers in config.used_backends:
        for server in servers:
            seconds = haproxy_seconds(server.params.get("slowstart", ""))
            if not seconds:
                continue
            most = count(server.params.get("maxconn", ""))
            half = f", and half of its maxconn {most} only after {told(seconds / 2)}" if most and most > 1 else ""
            outage = f"an engine that is back works at a fraction for {told(seconds)}: one request at first{half}"
            severity = None if seconds > SLOW_S else Severity.NOTE
            yield Seen(server.place, section.title, f"slowstart {told(seconds)}", outage, "no slowstart", severity)


@RULES.rule(
    "H07", Severity.NOTE, "an engine that waits for the others to die",
    looks_for="a `backup` server that is an engine",
    why="a backup server gets traffic only while no other is up: a copy that could carry half of it stands idle",
    source=f"{MANUAL}, `backup`",
    example="""\
defaults
    mode http
    timeout connect 2s
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
    server b 192.0.2.12:8000 check inter 1s maxconn 12 backup
""",
)  # fmt: skip
def idle_backup(config: Config, _: Assumed) -> Iterator[Seen]:
    for section, servers in config.used_backends:
        for server in servers:
            if "backup" in server.params:
                outage = "all load stays on the other servers until every one of them is down"
                write = "without backup, with balance leastconn, unless the box is kept for something else"
                yield Seen(server.place, section.title, f"server {server.name} … backup", outage, write)
