"""The faults of copies, proxies and boxes that bench/doctor.py plants; `_faults.py` says what they are made of."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from _faults import ETC, Fault, copy, ends, rank, writes

# Model → boxes of its copies; the first is in both layouts, on one and the same port.
COPIES: dict[str, tuple[str, ...]] = {
    "chat": ("box1", "box2"),
    "looping": ("box1",),
    "limit": ("box2",),
    "notify": ("box1",),
    "slow": ("box2",),
    "name": ("box1",),
    "zombie": ("box2",),
    "short": ("box1",),
    "hung": ("box2",),
    "dead500": ("box1",),
    "dead503": ("box2",),
    "astext": ("box1",),
    "refused": ("box2",),
    "drafts": ("box1",),
    "rank64": ("box2",),
    "adapter": ("box1",),
    "loraoff": ("box2",),
    "offline": ("box1",),
    "gated": ("box2",),
    "aborts": ("box1",),
}
PORT = 8000
TOOLS = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}


def port_of(model: str) -> int:
    """Port of a model's copies."""
    return PORT + [*COPIES].index(model)


KERNEL = (
    "kernel: NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from "
    "_memdescAllocInternal(pMemDesc) @ mem_desc.c:1359"
)
# A GB10 with a process of somebody on its GPU, whose number is filled in.
SMI_OF_OTHERS = """#!/bin/sh
case "$1" in
--query-gpu=index,name*) echo "0, NVIDIA GB10, [N/A], [N/A], 580.95.05";;
--query-gpu=*) echo "0, Not Active, Not Active, Not Active";;
--query-compute-apps=*) echo "$(systemctl show -P MainPID notebook), python3, 19135";;
*) exit 1;;
esac
"""
JOURNALCTL = f"""#!/bin/sh
case "$*" in
*_TRANSPORT=kernel*) echo "$(date +%s).000000 $(hostname) {KERNEL}";;
esac
exec /usr/bin/journalctl "$@"
"""
CONTAINER = {
    "Id": "0f1e2d3c4b5a",
    "Name": "/old-vllm",
    "Config": {"Image": "vllm/vllm-openai:v0.11.0", "Entrypoint": ["vllm", "serve"], "Cmd": ["m", "--port", "9000"]},
    "HostConfig": {"NetworkMode": "host", "RestartPolicy": {"Name": "unless-stopped", "MaximumRetryCount": 0}},
    "State": {"Status": "exited"},
}
DOCKER = f"""#!/bin/sh
case "$1 $2" in
"ps --all") echo 0f1e2d3c4b5a;;
"inspect --type") echo {shlex.quote(json.dumps([CONTAINER]))};;
*) exit 1;;
esac
"""
NGINX = """\
events {}
http {
    upstream engines { server %s:8000; server %s:8000; }
    server { listen 8998; location / { proxy_pass http://engines; } }
}
"""
HAPROXY = """\
defaults
    mode http
    retries 3
    retry-on all-retryable-errors
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    default-server init-addr none
listen old
    bind :8999
    load-server-state-from-file local
    server-state-file-name servers
    server a %s:8000 check
    server b %s:8000 check
    server c engine-of-former-times:8000 check
"""
# What is wrong with it → the rule of `fleetctl proxy lint`.
OF_HAPROXY = {
    "retries go to the same dead server": "H10",
    "a generation may run twice": "H11",
    "long prompts are cut off after 60 s": "H20",
    "it does not start when a name does not resolve": "H40",
    "a file brings old addresses back": "H41",
}
CONFIG = "/etc/fleetctl/proxy/haproxy.cfg"
OLD_STATES = """\
import socket
with socket.socket(socket.AF_UNIX) as admin:
    admin.connect("/run/fleetctl-proxy/admin.sock")
    admin.sendall(b"show servers state\\n")
    states = admin.makefile().read()
with open("/var/lib/fleetctl/proxy-servers", "w") as kept:
    kept.write(states.replace("replicas-box2 %s ", "replicas-box2 192.0.2.99 "))
"""
# An API server that is killed alone; what it leaves is told by its environment, or by nothing.
ORPHAN = """\
set -m
env %s STANDIN_ORPHANS=true STANDIN_LOAD_SECONDS=0.2 setsid /opt/standin/bin/vllm serve lab/standin --port %d \
--max-model-len 8192 >/dev/null 2>&1 </dev/null &
for n in $(seq 100); do ss -ltn | grep -q ':%d ' && break; sleep 0.1; done
kill -9 $(ss -ltnp 'sport = :%d' | grep -o 'pid=[0-9]*' | head -1 | cut -d= -f2)
"""
GONE = "old/engine@0123456789ab"
LORA_OFF = """\
import urllib.error, urllib.request
url = "http://%s:%d/v1/load_lora_adapter"
asked = urllib.request.Request(url, b'{"lora_name": "sql", "lora_path": "/m"}', {"Content-Type": "application/json"})
try:
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=10)
except urllib.error.HTTPError as error:
    assert error.code == 404, error
"""


def in_replicas(addresses: Mapping[str, str]) -> tuple[Fault, ...]:
    """Faults of copies and of boxes with these addresses."""
    one, two = addresses["box1"], addresses["box2"]
    copied = f"cp $(ls -d /etc/fleetctl/generations/*/files{ETC}/%s | tail -1) {ETC}/"
    return (
        Fault(
            "units that all exclude each other are all enabled",
            "real",
            "box2",
            (("U01", rank("chat")),),
            run=f"{copied % rank('chat')}; systemctl enable -q {rank('chat')}",
        ),
        Fault(
            "an engine without a start limit that counts loops for ever",
            "real",
            "box1",
            (("U12", copy("looping")), ("U11", f"{ETC}/{copy('looping')}.d/loop.conf")),
            unit=copy("looping"),
            files={
                f"{ETC}/{copy('looping')}.d/loop.conf": "[Unit]\nStartLimitIntervalSec=0\n"
                "[Service]\nRestartSec=100ms\nExecStartPost=\n"
            },
            says={"looping": "sleep 2\nexit 1\n"},
            run="systemctl daemon-reload",
            restart=(copy("looping"),),
        ),
        Fault(
            "Start request repeated too quickly: start-limit-hit",
            "real",
            "box2",
            (("U13", copy("limit")),),
            says={"limit": "exit 1\n"},
            restart=(copy("limit"),),
        ),
        Fault(
            "a unit with Type=notify never becomes active",
            "real",
            "box1",
            (("U14", copy("notify")),),
            files={f"{ETC}/{copy('notify')}.d/type.conf": "[Service]\nType=notify\n"},
            run="systemctl daemon-reload",
            restart=(copy("notify"),),
        ),
        ends(
            "the engine gives up after 600 s of loading",
            "slow",
            "box2",
            "E07",
            "TimeoutError: Timed out waiting for engines to send initial message on input socket.",
        ),
        ends(
            "the name of a --rm container is still in use",
            "name",
            "box1",
            "U15",
            "docker: Error response from daemon: Conflict. The container name "
            f'"/{copy("name").removesuffix(".service")}" is already in use by container "0f1e2d3c4b5a".',
        ),
        ends(
            "the process of a container is a zombie",
            "zombie",
            "box2",
            "U15",
            "Error response from daemon: container PID is zombie and can not be killed.",
        ),
        Fault(
            "a container with restart: unless-stopped brings an old engine back",
            "recorded",
            "box1",
            (("U09", "container old-vllm"),),
            programs={"docker": DOCKER},
        ),
        ends(
            "too little free memory at the start, again and again",
            "short",
            "box1",
            "M07",
            "ValueError: Free memory on device cuda:0 (36.75/121.63 GiB) on startup is less than desired GPU memory "
            "utilization (0.85, 103.38 GiB).",
        ),
        Fault(
            "the driver got no memory (NV_ERR_NO_MEMORY), then the host froze",
            "recorded",
            "box2",
            (("M14", "kernel"),),
            programs={"journalctl": JOURNALCTL},
        ),
        Fault(
            "a process holds 19135 MiB while nvidia-smi says N/A of the rest",
            "recorded",
            "box1",
            (("M04", "python3"),),
            programs={"nvidia-smi": SMI_OF_OTHERS},
            run="systemd-run -q --unit=notebook sleep 7200",
        ),
        Fault(
            "SIGKILL of the API server leaves VLLM::EngineCore behind",
            "real",
            "box2",
            (("P01", GONE),),
            run=ORPHAN % (f"FLEETCTL_ENGINE={GONE}", 9100, 9100, 9100),
        ),
        Fault(
            "the same of an engine that fleetctl did not start",
            "real",
            "box1",
            (("P03", ""),),
            run=ORPHAN % ("", 9101, 9101, 9101),
        ),
        Fault(
            "GETs answer 200, requests wait, none runs, no token comes",
            "real",
            "box2",
            (("E08", copy("hung")),),
            control={"hung": {"starved": True}},
        ),
        Fault(
            "a dead engine whose /health answers 500",
            "real",
            "box1",
            (("X04", "fleetctl-proxy.service"),),
            evidence="dead500/replicas-box1",
            control={"dead500": {"dead_engine": 500}},
        ),
        Fault(
            "a dead engine whose /health answers 503",
            "real",
            "box2",
            (("X04", "fleetctl-proxy.service"),),
            evidence="dead503/replicas-box2",
            seen_on="box1",
            control={"dead503": {"dead_engine": 503}},
        ),
        Fault(
            "an old nginx with its default max_fails and fail_timeout",
            "real",
            "box1",
            (("X03", "nginx.service"),),
            files={
                f"{ETC}/nginx.service": "[Service]\nExecStart=/usr/sbin/nginx\n[Install]\nWantedBy=multi-user.target\n",
                "/etc/nginx/nginx.conf": NGINX % (one, two),
            },
            run="systemctl daemon-reload; systemctl enable -q nginx",
        ),
        *(
            Fault(
                f"an old HAProxy: {symptom}",
                "real",
                "box2",
                (("X03", "haproxy.service"),),
                evidence=rule,
                files={"/etc/haproxy/haproxy.cfg": HAPROXY % (one, two)},
                run="systemctl enable -q haproxy",
            )
            for symptom, rule in OF_HAPROXY.items()
        ),
        Fault(
            "the proxy's own file was edited: retries go to the same dead server",
            "real",
            "box1",
            (("X01", CONFIG),),
            evidence="H10",
            run=f"sed -i 's/option redispatch 1/no option redispatch/' {CONFIG}",
        ),
        Fault(
            "a server-state file brings an old address back",
            "real",
            "box1",
            (("X06", "/var/lib/fleetctl/proxy-servers"),),
            files={"/root/states.py": OLD_STATES % two},
            run="python3 /root/states.py",
        ),
        Fault(
            "tool calls arrive as text with status 200",
            "real",
            "box1",
            (("E09", copy("astext")),),
            control={"astext": {"tool_calls_as_text": True}},
        ),
        Fault("requests with tools are refused: no parser", "real", "box2", (("E09", copy("refused")),)),
        Fault(
            "speculative decoding that never hits",
            "real",
            "box1",
            (("E10", copy("drafts")),),
            control={"drafts": {"spec_acceptance": 0.0}},
        ),
        ends(
            "LoRA rank 64 is greater than max_lora_rank 16",
            "rank64",
            "box2",
            "E11",
            "ValueError: LoRA rank 64 is greater than max_lora_rank 16.",
        ),
        writes(
            "No adapter found for PATH",
            "adapter",
            "box1",
            "E11",
            "ERROR serving_models: Loading lora sql failed: No adapter found for /models/lora/sql",
        ),
        Fault(
            "the endpoint that loads adapters answers 404",
            "real",
            "box2",
            (("E11", copy("loraoff")),),
            files={"/root/load.py": LORA_OFF % (two, port_of("loraoff"))},
            run="python3 /root/load.py",
        ),
        ends(
            "OfflineModeIsEnabled in the unit, though it works in a shell",
            "offline",
            "box1",
            "E12",
            "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/models/lab/standin: "
            "offline mode is enabled.",
        ),
        ends(
            "Cannot access gated repo in the unit, though it works in a shell",
            "gated",
            "box2",
            "E12",
            "OSError: Cannot access gated repo for url https://huggingface.co/lab/standin/resolve/main/config.json.",
        ),
        writes(
            "SIGTERM aborts running requests: no --shutdown-timeout",
            "aborts",
            "box1",
            "E13",
            "(EngineCore_DP0 pid=3) INFO [shutdown] EngineCore: aborting in-flight requests count=2",
        ),
    )
