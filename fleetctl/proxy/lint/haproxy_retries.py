"""HAProxy: what happens to a request whose server fails, and which requests are run twice."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.proxy.lint.findings import Assumed, Rules, Seen, Severity
from fleetctl.proxy.lint.haproxy_health import MANUAL, connect_seconds, retries
from fleetctl.proxy.lint.haproxy_reader import Config, Section
from fleetctl.proxy.lint.quantities import count, haproxy_seconds, told

RULES: Rules[Config] = Rules()
# What retries a request that an engine may have begun to work on.
_AGAIN = {"all-retryable-errors", "response-timeout", "empty-response", "junk-response"}


def redispatches(section: Section) -> bool:
    """Whether a retry may go to another server."""
    line = section.last("option", "redispatch")
    return line is not None and line.value(2) != "0"


@RULES.rule(
    "H10", Severity.ERROR, "retries that go to the same dead server",
    looks_for="several servers without `option redispatch`, or `retries 0`",
    why="a retry stays on the server that was chosen unless redispatch is on, with 1 s between two tries: clients see "
    "a 503 that no engine sent while another copy is idle",
    source=f"{MANUAL}, `retries`, `option redispatch`; tried with 2.6.12 and `retries 3`: 503 after 3.0 s for "
    "every second "
    "request; with `option redispatch` 200 at once",
    example="""\
defaults
    mode http
    retries 3
    timeout connect 2s
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
    server b 192.0.2.12:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def same_server(config: Config, _: Assumed) -> Iterator[Seen]:
    for section, servers in config.used_backends:
        copies = sum(server.copies for server in servers)
        tries = retries(section)
        if copies < 2 or (redispatches(section) and tries > 0):
            continue
        place = (section.last("retries") or section.lines[0]).place
        connect = connect_seconds(section)
        pause = min(connect, 1.0) if connect is not None else 1.0
        silent = f"up to {told((tries + 1) * connect)}" if connect is not None else "for ever"
        shown = f"retries {tries} without option redispatch" if tries else "retries 0"
        outage = (
            "until a server that died is marked down, each request for it fails with 503: after "
            f"{told(tries * pause)} when the port refuses, after {silent} when the box is silent"
        )
        yield Seen(place, section.title, shown, outage, "retries 3  +  option redispatch 1  +  retry-on conn-failure")


@RULES.rule(
    "H11", Severity.ERROR, "a generation may run twice",
    looks_for="`retry-on` with more than `conn-failure`",
    why="those failures are seen after the request was sent: the first engine may still be generating, and a request "
    "that crashes an engine is handed to the next one",
    source=f"{MANUAL}, `retry-on`; tried with 2.6.12: all-retryable-errors, retries 3 and timeout server 1s ran "
    "one request "
    "4 times and answered 504 after 4.0 s",
    example="""\
defaults
    mode http
    retries 3
    option redispatch
    retry-on all-retryable-errors
    timeout connect 2s
    timeout server 60s
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
    server b 192.0.2.12:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def twice(config: Config, _: Assumed) -> Iterator[Seen]:
    for section, _servers in config.used_backends:
        line = section.last("retry-on")
        again = [] if line is None else [word for word in line.words[1:] if word in _AGAIN or word.isdigit()]
        tries = retries(section)
        if line is None or not again or tries == 0 or section.mode != "http" or _retries_disabled(section):
            continue
        timeout = section.last("timeout", "server")
        limit = haproxy_seconds(timeout.value(2)) if timeout else None
        slow = {"all-retryable-errors", "response-timeout"} & set(again)
        if slow and limit:
            outage = (
                f"a prompt without a first token after {told(limit)} (timeout server) is sent again, up to "
                f"{tries} times: "
                f"{tries + 1} engines' worth of work, and a 504 after {told((tries + 1) * limit)}"
            )
        else:
            outage = f"a request on which an engine dies is run again up to {tries} times, on the other engines too"
        severity = None if slow else Severity.WARNING
        yield Seen(line.place, section.title, line.text, outage, "retry-on conn-failure", severity)


def _retries_disabled(section: Section) -> bool:
    """Whether requests that cost something are left out of these retries."""
    return any("disable-l7-retry" in line.words for line in section.all("http-request"))


@RULES.rule(
    "H12", Severity.NOTE, "long prompts are never retried",
    looks_for="`retry-on` with more than `conn-failure` and `tune.bufsize` at or near its default",
    why="a request is kept for such a retry only when it fits into one buffer",
    source=f"{MANUAL}, `retry-on`: requests not fitting in a single buffer will never be retried; "
    "`tune.bufsize` 16384",
    example="""\
defaults
    mode http
    retries 3
    option redispatch
    retry-on conn-failure empty-response
    timeout connect 2s
backend engines
    option httpchk GET /health
    server a 192.0.2.11:8000 check inter 1s maxconn 12
    server b 192.0.2.12:8000 check inter 1s maxconn 12
""",
)  # fmt: skip
def too_long(config: Config, _: Assumed) -> Iterator[Seen]:
    sizes = config.globally("tune.bufsize")
    size = (count(sizes[-1].value(1)) if sizes else None) or 16384
    for section, _servers in config.used_backends:
        line = section.last("retry-on")
        beyond = line is not None and any(word in _AGAIN or word.isdigit() for word in line.words[1:])
        if line is None or not beyond or size >= 262_144 or _retries_disabled(section):
            continue
        outage = f"requests over {size:,} bytes (about {size // 4:,} tokens) are not retried: the others are"
        write = "retry-on conn-failure, which needs no buffer; or say in your runbook which requests are retried"
        yield Seen(line.place, section.title, f"tune.bufsize {size}", outage, write)
