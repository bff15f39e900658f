"""How long requests, engines and connections are waited for: drain, hold, the queue, silence, idle connections."""

from __future__ import annotations

from fleetctl.proxy.tune.advice import Advice, fitted, said, written
from fleetctl.proxy.tune.figures import EngineFigures, Measured
from fleetctl.spec.fleet_proxy import Proxy

ENOUGH = 200
"""Requests without which nothing is said of their durations: two of them are above the 99th percentile."""
LONG_RUN = 600.0
"""Seconds up to which every request is waited for before its engine stops; those that take longer are cut off."""
SHORTEST_DRAIN = 30.0
REBOOT = 180.0
"""Seconds that a box may need to boot, which is not measured: with one engine requests wait for it too."""
LONGEST_HOLD = 3600.0
FULL_CONTEXT = 3.0
"""A prompt of the whole context takes up to so many times longer than one in proportion to the longest seen."""
SHORTEST_SILENCE = 60.0
MANY = 1000
"""Requests from which on a longer limit than needed counts as wrong."""
SHORTEST_IDLE, LONGEST_IDLE = 15.0, 600.0


def few(requests: int, what: str = "requests") -> str | None:
    """What is missing when there are too few; None when there are enough."""
    return None if requests >= ENOUGH else f"{ENOUGH - requests} more {what} ({requests} of {ENOUGH})"


def drain(measured: Measured, hold_s: float = 0.0) -> Advice:
    """Longer than the longest request that was answered, up to LONG_RUN, so that a move cuts none; at most ``hold``."""
    now = measured.settings.drain
    longest, usual = measured.worst("run"), measured.worst("run", 0.99)
    count = sum(requests.run.count for requests in measured.log.backends.values())
    missing = few(count, "answers")
    outage = "an engine that is to stop is given this long to finish what runs on it; what is left then is cut off"
    if longest is None or usual is None or missing is not None:
        return Advice("drain", written(now), None, "", outage, count, missing or few(0, "answers"))
    need = min(longest.seconds, LONG_RUN)
    wanted = max(SHORTEST_DRAIN, 1.5 * need)
    least, most = max(SHORTEST_DRAIN, need), max(LONG_RUN, 10 * wanted)
    if hold_s:  # held requests outlast a drain
        least, most = min(least, hold_s), min(most, hold_s)
    told = f"of {count} answers 99 in 100 took at most {said(usual.seconds)}, the longest {said(longest.seconds)}"
    if longest.seconds > LONG_RUN:
        told += f"; those above {said(LONG_RUN)} are not waited for"
    return Advice("drain", written(now), written(fitted(now, least, wanted, most)), told, outage, count)


def hold(measured: Measured, drain_s: float) -> Advice:
    """Longer than an engine is away: the drain before it stops, its end, its start with half as much again."""
    now = measured.settings.hold
    loads = [(load, engine) for engine, several in measured.loads.items() for load in several]
    outage = "while no engine is up, requests wait this long and then get 503; who cannot wait leaves sooner"
    if not loads:
        missing = "a start of an engine by `fleetctl cutover`, `apply` or `restart`"
        return Advice("hold", written(now), None, "", outage, 0, missing)
    load, engine = max(loads)
    stop = max(measured.stops, default=0.0)
    single = 1 in measured.copies.values()
    need = drain_s + stop + 1.5 * load + (REBOOT if single else 0.0)
    value = fitted(now, need, 1.2 * need, max(LONGEST_HOLD, 4 * need))
    why = f"the longest of {len(loads)} starts took {said(load)} ({engine}), the longest stop {said(stop)}"
    why += f"; with a drain of {said(drain_s)}" + (f" and {said(REBOOT)} to boot" if single else "")
    why += f" it has to be {said(need)} or more"
    over = measured.log.counted("hold_over")
    why += f"; {over} requests ran out of it" if over else ""
    return Advice("hold", written(now), written(value), why, outage, len(loads))


def timeout_queue(measured: Measured, hold_s: float) -> Advice:
    """As long as ``hold``, or three times the longest wait that ended well: half the engines may be gone."""
    setting = measured.settings.timeout_queue
    now = measured.settings.hold if setting is None else setting
    shown = "hold" if setting is None else written(setting)
    outage = "when one engine of several is gone, the others fill up: requests wait this long for a place, then get 503"
    longest, count = measured.worst("queue"), measured.log.requests
    missing = few(count)
    if longest is None or missing is not None:
        return Advice("timeout_queue", shown, None, "", outage, count, missing or few(0))
    over, left = measured.log.ended("sQ"), measured.log.ended("CQ")
    room = sum(engine.concurrency for engine in measured.engines)
    why = f"the engines take {room} at once; the longest wait for a place was {said(longest.seconds)}"
    waited = max(measured.checks.qmax.values(), default=0) if measured.checks else 0
    why += f", and up to {waited} waited at the same time" if waited else ""
    if over:
        why += f"; {over} requests ran out of it: the engines are too few or take too few at once"
    if left and (patience := measured.worst("left_queue")):
        why += f"; {left} clients left before they had one, the last after {said(patience.seconds)}"
    least = max(30.0, 3 * longest.seconds)
    if setting is None or (now >= least and not over):
        return Advice("timeout_queue", shown, shown, why, outage, count)
    value = max(now, hold_s) if over else min(fitted(now, least, least, 4 * least), max(now, hold_s))
    return Advice("timeout_queue", shown, written(value), why, outage, count)


def stream_limit(measured: Measured) -> Advice:
    """Twice the longest silence of an engine, the estimate for a prompt of the whole context, the longest answer."""
    now = measured.settings.stream_limit
    outage = "an engine that hangs keeps its requests this long; after a reload the old process is ended after as long"
    longest, silence, count = measured.worst("run"), measured.worst("first_byte"), measured.log.requests
    missing = few(count)
    if longest is None or silence is None or missing is not None:
        return Advice("stream_limit", written(now), None, "", outage, count, missing or few(0))
    first, engine = _slowest(measured.engines)
    quiet = max(silence.seconds, first)
    full, of = _full_context(measured.engines)
    need = max(2 * quiet, 1.2 * longest.seconds, full, SHORTEST_SILENCE)
    wanted = max(LONG_RUN, 3 * quiet, 1.5 * longest.seconds, 1.5 * full)
    sure = of is not None and count >= MANY
    most = 3 * wanted if sure else max(6 * wanted, float(Proxy.model_fields["stream_limit"].default))
    value = fitted(now, need, wanted, most)
    why = f"the longest answer took {said(longest.seconds)}, {said(silence.seconds)} of silence came before one"
    why += f"; first tokens took up to {said(first)} ({engine})" if engine else ""
    why += f"; a prompt of the whole context may take {said(full)} ({of})" if of else ""
    cut = measured.log.ended("sH", "sD")
    why += f"; {cut} requests were given up at the limit" if cut else ""
    return Advice("stream_limit", written(now), written(value), why, outage, count)


def silence_limit(measured: Measured, stream_s: float) -> Advice:
    """Twice the longest silence before an answer: no engine that reads a prompt is taken for hung, chunked or not.

    At most half of ``stream_limit``, so that another engine has time for the requests of one that is hung.
    """
    now = measured.settings.silence_limit
    outage = "an engine whose core has stopped keeps its requests this long; then another engine answers them"
    silence, count = measured.worst("first_byte"), measured.log.requests
    missing = few(count)
    if silence is None or missing is not None:
        return Advice("silence_limit", written(now), None, "", outage, count, missing or few(0))
    first, engine = _slowest(measured.engines)
    quiet = max(silence.seconds, first)
    default, most = float(Proxy.model_fields["silence_limit"].default), stream_s / 2
    least = min(max(SHORTEST_SILENCE, 1.2 * quiet), most)
    value = fitted(now, least, min(2 * quiet, most), min(max(default, 4 * quiet), most))
    why = f"{said(silence.seconds)} of silence came before an answer"
    why += f"; first tokens took up to {said(first)} ({engine})" if engine else ""
    return Advice("silence_limit", written(now), written(value), why, outage, count)


def _slowest(engines: tuple[EngineFigures, ...]) -> tuple[float, str]:
    """Seconds to the slowest first token that an engine has measured, and which engine it was."""
    return max(((one.first_token[0], one.id) for one in engines if one.first_token), default=(0.0, ""))


def _full_context(engines: tuple[EngineFigures, ...]) -> tuple[float, str | None]:
    """Seconds that a prompt of the whole context may take: in proportion to the longest seen, times FULL_CONTEXT."""
    found = [
        (one.first_token[0] * FULL_CONTEXT * one.context / one.prompt, one.id)
        for one in engines
        if one.first_token and one.prompt and one.prompt >= one.context / 100
    ]
    return max(found, default=(0.0, None))


def timeout_http_keep_alive(measured: Measured) -> Advice:
    """Longer than clients leave their connections idle: one that sends into a closing connection has to ask again."""
    now = measured.settings.timeout_http_keep_alive
    outage = "after a reload the old process stays this long for clients that are idle; nothing waits for it"
    count = measured.log.requests
    longest = measured.worst("idle")
    missing = few(count)
    if longest is None or missing is not None:
        return Advice("timeout_http_keep_alive", written(now), None, "", outage, count, missing or few(0))
    near = sum(requests.idle.above(0.8 * now) for requests in measured.log.backends.values())
    least = min(2 * longest.seconds, LONGEST_IDLE) if near else SHORTEST_IDLE
    why = f"the longest pause after which a connection was used again was {said(longest.seconds)}"
    why += f"; {near} were nearly as long as the limit, so clients keep connections for longer" if near else ""
    value = fitted(now, least, max(60.0, min(2 * longest.seconds, LONGEST_IDLE)), LONGEST_IDLE)
    return Advice("timeout_http_keep_alive", written(now), written(value), why, outage, count)
