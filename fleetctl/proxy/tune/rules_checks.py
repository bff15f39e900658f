"""How soon an engine that is gone is out, and what becomes of the requests that meet it meanwhile."""

from __future__ import annotations

from fleetctl.proxy.tune.advice import STEPS, Advice, fitted, rounded_up, said, written
from fleetctl.proxy.tune.figures import Measured
from fleetctl.proxy.tune.rules_waits import few

OUT_WITHIN = 3.0
"""Seconds within which a box that fell silent gets no more requests."""
SHORTEST_INTERVAL = 0.1
USUAL_INTERVAL = 0.5
PER_SECOND = 100
"""Checks a second that the proxy makes at most: it has one thread, which is there for requests."""
ALARMS = 3
"""So many times an engine was out that was well: more than chance."""
MOST_RETRIES = 5


def out_after(interval: float, fall: int, connect: float) -> float:
    """Seconds until a box that fell silent is out, at most: HAProxy waits for the next check, for the connection of
    each of ``fall`` checks (as long as the shorter of both), and half the interval between one failure and the next.
    """
    return interval + fall * min(interval, connect) + (fall - 1) * interval / 2


def longest_interval(fall: int, connect: float) -> float:
    """The interval with which a silent box is out within OUT_WITHIN."""
    alike = OUT_WITHIN / (1 + fall + (fall - 1) / 2)
    return alike if alike <= connect else (OUT_WITHIN - fall * connect) / (1 + (fall - 1) / 2)


def fall(measured: Measured, connect: float) -> Advice:
    """Two, or three where checks that were only late took engines out that were well."""
    now, log = measured.settings.fall, measured.log
    outage = f"a box that falls silent is out after {now} checks without an answer; a refused connection needs none"
    missing = None if log.lines else "the proxy's log"
    if missing is not None:
        return Advice("fall", str(now), None, "", outage, 0, missing)
    alarms = log.changes.false_alarms
    if alarms < ALARMS:
        interval = measured.settings.check_interval
        fits = [tries for tries in range(2, 11) if out_after(interval, tries, connect) <= OUT_WITHIN]
        value = 2 if now < 2 else min(now, max(fits, default=2))
        why = f"{_times(alarms)} was an engine out that was only late with a check"
        failed = measured.checks.failed if measured.checks else 0
        why += f"; {failed} checks have failed since the last reload" if failed else ""
        why += "; with 1 a single lost packet takes an engine out" if now < 2 else ""
        why += f"; more would take longer than {said(OUT_WITHIN)}" if value < now else ""
    else:
        value = max(now, 3)
        why = f"{_times(alarms)} an engine was out, and back within 30 s, that was only late with a check"
        why += "; if this goes on with 3, see what keeps the engine from answering /health" if now >= 3 else ""
    return Advice("fall", str(now), str(value), why, outage, sum(log.changes.downs.values()))


def rise(measured: Measured) -> Advice:
    """One, for fleetctl proves an engine before it opens it; two where engines came back only to go again."""
    now, log = measured.settings.rise, measured.log
    outage = f"an engine that came back gets requests after {now} good {'check' if now == 1 else 'checks'}"
    if not log.lines:
        return Advice("rise", str(now), None, "", outage, 0, "the proxy's log")
    relapses = log.changes.relapses
    if relapses >= ALARMS:
        value, why = max(now, 2), f"{_times(relapses)} an engine came back and was out again within 10 s"
    else:
        value, why = (1 if now > 3 else now), f"{_times(relapses)} an engine came back only to go again within 10 s"
    return Advice("rise", str(now), str(value), why, outage, sum(log.changes.downs.values()))


def check_interval(measured: Measured, fall_: int, connect: float) -> Advice:
    """Short enough for a silent box to be out within 3 s, long enough for the checks to be answered."""
    now, checks = measured.settings.check_interval, measured.checks
    count = checks.took.count if checks else 0
    longest = longest_interval(fall_, connect)
    if checks is None or not count:
        missing = "a check that an engine answered" if checks else "the running proxy"
        outage = f"a box that falls silent is out after {said(out_after(now, fall_, connect))}"
        return Advice("check_interval", written(now), None, "", outage, count, missing)
    took = max(checks.took.longest_s, measured.log.changes.checks.quantile(0.99))
    least = max(SHORTEST_INTERVAL, 2 * took, checks.checked / PER_SECOND)
    most = max(step for step, _ in STEPS if step <= longest)
    value = now if min(least, most) <= now <= longest else fitted(now, min(least, most), USUAL_INTERVAL, most)
    out = out_after(value, fall_, connect)
    outage = f"a box that falls silent is out after {said(out)} at most, in {fall_} checks"
    why = f"{checks.checked} engines are checked, and answer within {said(took)}"
    if least > most:
        why += f"; that is slow, but a longer interval would leave a silent box in for over {said(OUT_WITHIN)}"
    elif now > longest:
        why += f"; now a silent box stays in for {said(out_after(now, fall_, connect))}"
    elif now < least:
        why += "; checks this often get in the way of requests"
    return Advice("check_interval", written(now), written(value), why, outage, count)


def retries(measured: Measured) -> Advice:
    """As many as there are copies: when all are lost at once, the last try leads to the wait for the next engine."""
    now, count = measured.settings.retries, measured.log.requests
    copies = max(measured.copies.values(), default=0)
    outage = f"a request that kills its engine meets at most {now + 1} of them"
    if not copies:
        return Advice("retries", str(now), None, "", outage, 0, "an engine in the live layout")
    lost = measured.log.counted("lost_after_retries")
    least, most = max(1, min(copies, 3)), min(max(copies, 3), MOST_RETRIES)
    if lost and now < copies:
        least = min(copies, MOST_RETRIES)
    value = min(max(now, least), most)
    outage = f"a request that kills its engine meets at most {value + 1} of them"
    again = sum(sum(requests.tries.values()) for requests in measured.log.backends.values())
    why = f"there {'are' if copies > 1 else 'is'} {copies} {'copies' if copies > 1 else 'engine'}"
    why += f"; {again} of {count} requests were tried again, and {lost} failed all the same"
    return Advice("retries", str(now), str(value), why, outage, again)


def timeout_connect(measured: Measured) -> Advice:
    """Ten times what connects take, and longer than any did. It is also how long HAProxy waits, up to 1 s, before it
    tries again after a refused connection.
    """
    now = measured.settings.timeout_connect
    longest, usual = measured.worst("connect"), measured.worst("connect", 0.99)
    count = sum(requests.connect.count for requests in measured.log.backends.values())
    missing = few(count, "connections")
    outage = "a request to a silent box waits this long, and one that was refused up to 1 s, before another gets it"
    if longest is None or usual is None or missing is not None:
        return Advice("timeout_connect", written(now), None, "", outage, count, missing or few(0, "connections"))
    single = 1 in measured.copies.values()
    slow = max(10 * usual.seconds, 1.5 * longest.seconds)
    if single:  # a lost packet is sent again after 1 s; that must not take the only engine out
        least, target, most = max(1.2, slow), max(2.0, slow), 3.0
        also = "; a packet that is lost is sent again after 1 s, and there is one engine only"
    else:
        least, target, most = max(0.25, slow), max(0.5, slow), 1.0
        also = "; another copy has it sooner with a shorter limit"
    most = max(most, min(rounded_up(target), 3.0))
    value = fitted(now, min(least, most), target, most)
    told = f"of {count} connections 99 in 100 took at most {said(usual.seconds)}, the slowest {said(longest.seconds)}"
    why = told + (also if value != now else "")
    return Advice("timeout_connect", written(now), written(value), why, outage, count)


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
