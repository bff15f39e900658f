"""The fleet of bench/traffic.py: two lab boxes, its fleet.yaml, and fleetctl as an operator runs it."""

from __future__ import annotations

import copy
import json
import shlex
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import CHECKOUT, BenchError, environment, run, say
from _lab import boxes_of

from fleetctl.lab.lab import Lab
from fleetctl.lab.state import Bind

if TYPE_CHECKING:
    from fleetctl.lab.state import LabBox

MODEL = "standin"
LOAD_SECONDS = 2
SPEED = 6
PORT, NEXT_PORT, PROXY_PORT = 8000, 8100, 8080
UNIT = f"fleetctl-replicas-{MODEL}.service"
FITS_TWICE = 0.35
"""Share of a box's memory with which two engines fit it at the same time."""

Event = dict[str, Any]

_SERVERS = """
import socket
s = socket.socket(socket.AF_UNIX)
s.connect("/run/fleetctl-proxy/admin.sock")
s.sendall(b"show stat\\n")
print(b"".join(iter(lambda: s.recv(65536), b"")).decode())
"""


class Fleet:
    """Two boxes with stand-in engines. ``document`` is fleet.yaml as it is now; commands use it as it stands."""

    def __init__(self, lab: Lab, folder: Path, program: Path) -> None:
        self.lab, self.folder, self.program = lab, folder, program
        standin = Bind(CHECKOUT / "fleetctl/lab/standin", Path("/opt/standin"))
        self.boxes = lab.up(2, say, binds=[standin])
        self.document = fleet_document(self.boxes)
        self.url = f"http://{self.boxes[0].address}:{PROXY_PORT}"
        self.engines = [f"{box.address}:{PORT}" for box in self.boxes]
        self._commands = 0

    def fleetctl(self, *words: str) -> list[Event]:
        """Events of ``fleetctl WORDS`` with the document of now. Raises BenchError when it fails."""
        self._commands += 1
        path = self.folder / f"fleet-{self._commands}.yaml"
        path.write_text(json.dumps(self.document, indent=1))  # JSON is YAML
        argv = [str(self.program), *words, "-f", str(path), "--json"]
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment())
        events = [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode != 0:
            said = [f"{event['message']} {event.get('hint') or ''}" for event in events if event["type"] == "error"]
            raise BenchError(
                f"fleetctl {shlex.join(words)} ended with {done.returncode}: {said or done.stderr[-2000:]}"
            )
        return events

    def knows(self, key: str) -> bool:
        """This fleetctl has a key of that name in fleet.yaml."""
        return f'"{key}"' in run([str(self.program), "schema"], doing="fleetctl schema")

    def plan(self, *words: str) -> Event:
        """The plan that ``fleetctl plan WORDS`` prints."""
        return dict(next(event["plan"] for event in self.fleetctl("plan", *words) if event["type"] == "plan"))

    def be_in(self, layout: str) -> None:
        """Bring the fleet there, and both copies of `replicas` and `next` into the rotation."""
        self.fleetctl("cutover", "--to", layout, "--yes")
        if layout != "split":
            self.await_rotation(box.name for box in self.boxes)

    def changed(self, change: Callable[[Event], object]) -> None:
        """Change fleet.yaml; nothing of it reaches the boxes by that."""
        document = copy.deepcopy(self.document)
        change(document)
        self.document = document

    # The boxes

    def sh(self, box: str, command: str) -> str:
        """Standard output of a shell command as root on a box."""
        return self.lab.exec(box, ["sh", "-c", command]).stdout

    def kill(self, box: str) -> None:
        """``kill -9`` of every process of the copy on a box. Kills of earlier scenarios do not count as a loop."""
        self.sh(box, f"systemctl reset-failed {UNIT}; systemctl kill -s KILL {UNIT}")

    def restart(self, box: str) -> None:
        """What an operator does by hand: restart the unit, and wait until the engine's /health says 200."""
        self.sh(box, f"systemctl reset-failed {UNIT}; systemctl restart {UNIT}")
        self.await_engine(box)

    def pid(self, box: str) -> str:
        return self.sh(box, f"systemctl show -P MainPID {UNIT}").strip()

    def files(self, box: str) -> str:
        """Digest of what fleetctl put on a box and systemd and HAProxy use."""
        return self.sh(box, "cat /etc/systemd/system/fleetctl-* /etc/fleetctl/proxy/* 2>/dev/null | sha256sum")

    def holder(self, address: str) -> str | None:
        """The box that has a floating address; None: no box, or more than one."""
        having = [box.name for box in self.boxes if f" {address}/" in self.sh(box.name, "ip -brief address")]
        return having[0] if len(having) == 1 else None

    def rotation(self) -> set[str]:
        """Servers that get new requests, as the running proxy says."""
        told = self.lab.exec(self.boxes[0].name, ["python3", "-c", _SERVERS]).stdout
        rows = [line.split(",") for line in told.splitlines() if line.count(",") > 20]
        return {row[1] for row in rows if row[17].startswith("UP") and row[18] not in ("", "0")}

    def in_rotation(self, box: str) -> bool:
        return any(name.endswith(f"-{box}") for name in self.rotation())

    def await_rotation(self, boxes: Iterable[str]) -> None:
        """Wait until the copies on these boxes get requests. Raises BenchError after a minute."""
        for box in boxes:
            until(partial(self.in_rotation, box), f"the copy on {box} does not come into the rotation")

    def out_after(self, box: str, since: float) -> float:
        """Seconds from ``since`` (monotonic) until the copy on a box gets no requests any more."""
        until(lambda: not self.in_rotation(box), f"the copy on {box} stays in the rotation", pause=0.02)
        return time.monotonic() - since

    def await_engine(self, box: str) -> None:
        """Wait until the engine itself says 200."""
        address = self.lab.box(box).address
        until(lambda: healthy(f"http://{address}:{PORT}/health"), f"the engine on {box} is not ready")

    def cut(self, since: float) -> dict[str, int]:
        """Server → answers that it began and did not finish since then (epoch seconds), from the log of the proxy."""
        log = self.sh(self.boxes[0].name, f"journalctl -u fleetctl-proxy -o cat --since @{since:.0f}")
        lines = [json.loads(line) for line in log.splitlines() if line.startswith('{"client"')]
        return dict(Counter(line["server"] for line in lines if line["status"] == 200 and line["end"] == "SD"))


def healthy(url: str) -> bool:
    """A GET answers 200."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def until(condition: Callable[[], bool], complaint: str, *, limit: float = 60.0, pause: float = 0.1) -> None:
    """Wait for a condition. Raises BenchError with the complaint after ``limit`` seconds."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise BenchError(f"{complaint} ({limit:g} s)")
        time.sleep(pause)


def fleet_document(boxes: Sequence[LabBox]) -> Event:
    """fleet.yaml: a split that fills the boxes, and two layouts of copies that fit them at the same time."""
    names = [box.name for box in boxes]

    def copies(share: float) -> Event:
        return {name: {"gpu_memory_utilization": share} for name in names}

    return {
        "fleet": "bench",
        "boxes": boxes_of(boxes, "4GiB", "1GiB"),
        "models": {
            MODEL: {
                "weights": "lab/standin",
                "weights_size": "1GiB",
                "context": 8192,
                "launch": {"venv": "/opt/standin"},
                "environment": {
                    "STANDIN_LOAD_SECONDS": str(LOAD_SECONDS),
                    "STANDIN_SPEED": str(SPEED),
                    "STANDIN_ANSWER_TOKENS": "64",
                },
                "load_limit": "2m",
                "stop_limit": "20s",
            }
        },
        "layouts": {
            "split": {MODEL: {"split": copies(0.75), "concurrency": 24}},
            "replicas": {MODEL: {"copies": copies(FITS_TWICE), "concurrency": 12, "port": PORT}},
            "next": {MODEL: {"copies": copies(FITS_TWICE), "concurrency": 12, "port": NEXT_PORT}},
        },
        "proxy": {"box": names[0], "port": PROXY_PORT, "hold": "2m"},
    }
