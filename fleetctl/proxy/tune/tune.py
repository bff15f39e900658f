"""All settings, in the order of fleet.yaml; each rule gets what the ones before it advise."""

from __future__ import annotations

from fleetctl.proxy.tune import rules_checks, rules_waits
from fleetctl.proxy.tune.advice import Advice
from fleetctl.proxy.tune.figures import Measured
from fleetctl.spec.units import parse_duration


def tune(measured: Measured) -> list[Advice]:
    """One advice for each setting. What is advised together is accepted together in a fleet.yaml."""
    hold = rules_waits.hold(measured, _seconds(rules_waits.drain(measured)))
    drain = rules_waits.drain(measured, _seconds(hold))
    connect = rules_checks.timeout_connect(measured)
    fall = rules_checks.fall(measured, _seconds(connect))
    stream = rules_waits.stream_limit(measured)
    return [
        hold,
        drain,
        stream,
        rules_waits.silence_limit(measured, _seconds(stream)),
        rules_checks.check_interval(measured, int(fall.advised or fall.now), _seconds(connect)),
        fall,
        rules_checks.rise(measured),
        rules_checks.retries(measured),
        connect,
        rules_waits.timeout_queue(measured, _seconds(hold)),
        rules_waits.timeout_http_keep_alive(measured),
    ]


def _seconds(advice: Advice) -> float:
    return parse_duration(advice.advised or advice.now)
