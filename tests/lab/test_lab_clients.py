"""Who talks to engines directly and who reads metrics through the proxy is found; traffic as it should be is not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from moving import BOXES, PROXY, Moving, eventually

JOB = """\
import json, time, urllib.request
asked = {"model": "standin", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 400, "ignore_eos": True}
body = json.dumps(asked)
url = "http://%s:8000/v1/chat/completions"
while True:
    urllib.request.urlopen(urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})).read()
"""
WATCHDOG = """\
import contextlib, time, urllib.request
while True:
    with contextlib.suppress(OSError):
        urllib.request.urlopen("http://%s:8000/health").read()
    time.sleep(0.1)
"""
OLD = """\
defaults
    mode http
    retries 3
    timeout connect 5s
    timeout client 60s
    timeout server 60s
listen old
    bind :8999
    server a %s:8000 check
    server b %s:8000 check
"""


# Somebody lowers a limit in the running proxy, and leaves a state of former times for its next start.
PLANT = """\
import socket
def ask(command):
    with socket.socket(socket.AF_UNIX) as admin:
        admin.connect("/run/fleetctl-proxy/admin.sock")
        admin.sendall(command.encode() + b"\\n")
        return admin.makefile().read()
ask("set maxconn server standin/replicas-box2 3")
with open("/var/lib/fleetctl/proxy-servers", "w") as states:
    states.write(ask("show servers state").replace("replicas-box2 %s ", "replicas-box2 192.0.2.99 "))
"""


@pytest.fixture
def replicas(moving: Moving) -> Moving:
    """Copies of an engine on both boxes."""
    moving.be_in("replicas")
    return moving


def found(moving: Moving, text: str | None = None) -> list[dict[str, Any]]:
    """What doctor finds about clients and the proxy, but for the note that engines answer everybody."""
    ran = moving.run("doctor", text=text)
    assert ran.rc in (0, 9), ran
    events = [event for event in ran.events if event["type"] == "finding"]
    return [event for event in events if event["code"][0] in "CX" and event["code"] != "C03"]


def told(findings: list[dict[str, Any]]) -> str:
    return "\n".join(f"{f['code']} {f['says']}\n{f['evidence']}\n{f['fix']}" for f in findings)


@contextmanager
def direct_traffic(moving: Moving, box: str) -> Iterator[None]:
    """A client on this machine, which is no box, that has an engine's own address."""
    url, stop = f"http://{moving.lab.box(box).address}:8000/v1/chat/completions", threading.Event()
    asked = {"model": "standin", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 400}
    asked["ignore_eos"] = True  # half a second

    def client() -> None:
        with httpx.Client(trust_env=False, timeout=60) as http:
            while not stop.is_set():
                http.post(url, json=asked)

    thread = threading.Thread(target=client, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


@contextmanager
def job_on(moving: Moving, box: str, engine: str, text: str = JOB) -> Iterator[None]:
    """A batch job on a box, in a unit of its own."""
    moving.put(box, "/opt/batch/job.py", text % moving.lab.box(engine).address)
    moving.sh(box, "systemd-run --unit=batch-job /usr/bin/python3 /opt/batch/job.py")
    try:
        yield
    finally:
        moving.sh(box, "systemctl stop batch-job; rm -r /opt/batch")


def test_traffic_through_the_proxy_health_checks_and_gates_are_no_findings(replicas: Moving) -> None:
    moving = replicas
    for box in BOXES:  # engines' logs of earlier tests are no matter of this one
        moving.sh(box, "journalctl --rotate --vacuum-time=1s")
    metrics = f"http://{moving.lab.box('box2').address}:8000/metrics"
    # Somebody's own health check, on another box, and a monitor.
    with moving.steady_traffic(4) as answers, job_on(moving, "box1", "box2", WATCHDOG):
        watch = moving.start("clients", "--watch", "15")
        assert moving.run("restart", "box2", "--yes").rc == 0  # gates ask the engine directly, through SSH
        for _ in range(3):
            assert "vllm:" in httpx.get(metrics, trust_env=False).text
        findings = found(moving)
        watched = watch.finish()
    assert findings == [], told(findings)
    assert (watched.rc, [e for e in watched.events if e["type"] == "client" and e["direct"]]) == (0, []), watched
    assert answers.failed == []


def test_clients_that_go_round_the_proxy_are_named_with_address_and_process(replicas: Moving) -> None:
    moving = replicas
    here = str(moving.lab.bridge.host_address)
    with moving.steady_traffic(2), direct_traffic(moving, "box2"), job_on(moving, "box1", "box2"):
        watched = moving.run("clients", "--watch", "4")
        findings = found(moving)
        searched = moving.run("clients", "--search", "box1:/opt/batch")
    clients = {c["address"]: c for c in watched.events[-1]["clients"]}
    assert (watched.rc, set(clients)) == (9, {here, moving.lab.box("box1").address}), watched
    job, stranger = clients[moving.lab.box("box1").address], clients[here]
    assert (job["box"], job["process"]["unit"], job["process"]["command"]) == (
        "box1",
        "batch-job.service",
        "python3 /opt/batch/job.py",
    )
    assert (stranger["box"], stranger["process"], stranger["engines"]) == (None, None, ["replicas/standin@box2"])
    assert stranger["connections"] and stranger["up"], "bytes are told of a connection that is open"
    assert sorted((f["code"], f["where"]) for f in findings) == [("C01", here), ("C01", "batch-job.service")], told(
        findings
    )
    assert f"http://{moving.lab.box('box1').address}:8080/v1" in told(findings)
    assert [(e["path"], e["line"]) for e in searched.events if e["type"] == "setting"] == [("/opt/batch/job.py", 4)]


def test_a_scrape_through_the_proxy_is_found(replicas: Moving) -> None:
    moving = replicas
    for _ in range(3):
        refused = httpx.get(f"{moving.proxy}/metrics", trust_env=False)
        assert (refused.status_code, "fleetctl exporter" in refused.text) == (404, True)
    findings = [finding for finding in found(moving) if finding["code"] != "C01"]  # of the test before
    assert [(f["code"], f["where"]) for f in findings] == [("X09", str(moving.lab.bridge.host_address))], told(findings)
    assert f"http://{moving.lab.box('box2').address}:8000/metrics" in findings[0]["fix"]


def test_a_copy_with_all_the_traffic_an_old_proxy_and_a_running_one_that_was_changed_are_found(
    replicas: Moving,
) -> None:
    moving = replicas
    config = "/etc/fleetctl/proxy/haproxy.cfg"
    boxes = [moving.lab.box(box).address for box in ("box1", "box2")]
    moving.put("box2", "/etc/haproxy/haproxy.cfg", OLD % (boxes[0], boxes[1]))
    moving.sh("box2", "systemctl enable haproxy")
    moving.sh("box1", f"cp -a {config} /root/kept.cfg")
    moving.sh("box1", f"sed -i 's/^    balance leastconn/    balance first/' {config} && systemctl reload {PROXY}")
    eventually(lambda: "first" in moving.sh("box1", f"grep balance {config}"))
    moving.put("box1", "/root/plant.py", PLANT % boxes[1])
    moving.sh("box1", "cp -a /var/lib/fleetctl/proxy-servers /root/kept-states; python3 /root/plant.py")
    threading.Event().wait(4)  # a server that has only just come up owes nobody a share
    for _ in range(32):
        assert moving.answers()
    findings = [finding for finding in found(moving) if finding["code"] not in ("C01", "X09")]
    moving.sh("box2", "systemctl disable haproxy")
    moving.sh("box1", "mv /root/kept-states /var/lib/fleetctl/proxy-servers; rm /root/plant.py")
    moving.sh("box1", f"mv /root/kept.cfg {config} && systemctl reload {PROXY}")
    codes = {finding["code"]: finding for finding in findings}
    assert sorted(codes) == ["X01", "X03", "X04", "X06", "X08"], told(findings)
    assert codes["X04"]["evidence"] == ["standin/replicas-box2 takes 3 requests at once instead of 12"]
    assert "192.0.2.99:8000" in codes["X06"]["evidence"][0]
    assert "got all of" in codes["X08"]["says"] and config in codes["X08"]["fix"]
    assert codes["X03"]["where"] == "haproxy.service" and "would start at boot" in codes["X03"]["says"]
    evidence = "\n".join(codes["X03"]["evidence"])
    assert "H20" in evidence and "timeout server 60s" in evidence and "H10" in evidence
    assert f"systemctl reload {PROXY}" in codes["X08"]["fix"]
    assert not {"X01", "X03", "X04", "X06", "X08"} & {finding["code"] for finding in found(moving)}
