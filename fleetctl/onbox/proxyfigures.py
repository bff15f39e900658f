"""What there is to measure about the proxy of this box and its engines, in one round trip. Nothing is changed."""

import http.client
import re
import time
import urllib.request
from typing import Any, Dict, List, Optional

from fleetctl.onbox import haproxy, journal, kept
from fleetctl.onbox.journalctl import read_back
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.proxylog import Log, Times

LOOKS, BETWEEN = 8, 0.2  # looks at the health checks, and seconds between two: HAProxy tells the last check only
MOST_LINES = 5_000_000
MOST_METRICS = 4 << 20  # bytes of an engine's /metrics
HISTOGRAMS = ("time_to_first_token_seconds", "request_prompt_tokens")
_BUCKET = re.compile(r'vllm:([a-z_]+)_bucket\{[^}]*\ble="([^"]{1,30})"[^}]*\} ([0-9.e+]{1,30})')


@op("proxy_figures")
def proxy_figures(call: Call, box: str, since: float, limit: float = 120) -> Dict[str, Any]:
    """Figures of the live layout as far as this box, ``box`` in fleet.yaml, has them.

    ``proxy`` (None: another box has it) has the log since a time (seconds ago, read for ``limit`` seconds at most) and
    the checks; ``engines`` have the histograms of those whose head this box is; ``moves`` what those measured that are
    kept here.
    """
    now = kept.current_facts()
    release = now["release"] or {}
    proxy = release.get("proxy") or {}
    mine = box in proxy.get("boxes", [proxy.get("box")])  # one box in a release of an earlier version
    return {
        "layout": release.get("layout"),
        "generation": now["generation"],
        "layout_engines": [
            {key: engine[key] for key in ("id", "backend", "context", "concurrency")}
            for engine in release.get("engines", [])
        ],
        "settings": {key: value for key, value in proxy.items() if value is None or type(value) in (int, float)},
        "proxy": _proxy(call, proxy, since, limit) if mine else None,
        "engines": {
            engine["id"]: _engine(engine["address"], engine["port"])
            for engine in release.get("engines", [])
            if engine["ranks"][0]["box"] == box
        },
        "moves": [_measured(move) for move in journal.moves() if move["end"] is not None],
    }


def _measured(move: Dict[str, Any]) -> Dict[str, Any]:
    end = move["end"]
    return {key: end.get(key) for key in ("gap", "loads", "stops")}


def _proxy(call: Call, proxy: Dict[str, Any], since: float, limit: float) -> Dict[str, Any]:
    backends = {
        backend["name"]: [server["name"] for server in backend["servers"]] for backend in proxy.get("backends", [])
    }
    log = Log(backends)
    read = read_back(call, proxy["unit"], time.time() - since, log.add, MOST_LINES, limit)
    return {"log": {**log.told(), **read}, "checks": _checks(call, proxy["admin_socket"], backends)}


def _checks(call: Call, path: str, backends: Dict[str, List[str]]) -> Optional[Dict[str, Any]]:
    """Health checks of the servers that are up, as HAProxy tells of them for a moment; None when it does not run.

    ``checked`` is how many servers are checked, ``took`` the durations seen; ``failed`` counts the checks that failed
    and ``qmax`` has the longest queue of each backend, both since the last reload.
    """
    took = Times()
    try:
        for look in range(LOOKS):
            if look and call.cancelled.wait(BETWEEN):
                call.check()
            told = haproxy.rows(path)
            rows = [row for row in told if row["svname"] in backends.get(row["pxname"], ())]
            for row in rows:
                if "L7OK" in row["check_status"] and row["check_duration"].isdecimal():
                    took.add(int(row["check_duration"]))
    except OpError:
        return None
    checked = [row for row in rows if row["check_status"] and not row["status"].startswith("MAINT")]
    return {
        "took": took.told(),
        "checked": len(checked),
        "qmax": {row["pxname"]: int(row["qmax"] or 0) for row in told if row["svname"] == "BACKEND"},
        "failed": sum(int(row["chkfail"] or 0) for row in rows),
    }


def _engine(address: str, port: int) -> Optional[Dict[str, Any]]:
    """Histograms of an engine since it started: upper end (None: no end) and count, in order; None: it does not say."""
    host = "[%s]" % address if ":" in address else address
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open("http://%s:%d/metrics" % (host, port), timeout=5) as answer:
            text = answer.read(MOST_METRICS).decode("utf-8", "replace")
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return histograms(text)


def histograms(text: str) -> Dict[str, List[List[Optional[float]]]]:
    """The histograms of interest in Prometheus text, those of all its models together, without empty buckets."""
    upto: Dict[str, Dict[float, float]] = {name: {} for name in HISTOGRAMS}
    for name, bound, count in _BUCKET.findall(text):
        if name in upto:
            try:
                end, many = float(bound), float(count)
            except ValueError:
                continue
            upto[name][end] = upto[name].get(end, 0.0) + many
    found: Dict[str, List[List[Optional[float]]]] = {}
    for name, buckets in upto.items():
        before = 0.0
        found[name] = []
        for end, many in sorted(buckets.items()):
            if many > before:
                found[name].append([None if end == float("inf") else end, many - before])
            before = max(before, many)
    return found
