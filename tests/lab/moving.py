"""A fleet of lab boxes as an operator sees it: the command, the proxy, and what is on the boxes."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from fleetctl.lab.lab import Lab

FLEETCTL = str(Path(sys.executable).parent / "fleetctl")
PATIENCE = 120.0  # seconds; only ever spent by a test that fails
SPLIT, COPY = "fleetctl-split-standin.service", "fleetctl-replicas-standin.service"
PROXY = "fleetctl-proxy.service"
BOXES = ("box1", "box2")
CONTROL = "/etc/standin.json"

# What a failed move must leave as it was. Times and process ids are not in it.
_PICTURE = r"""
folders='/etc/systemd/system /etc/fleetctl/bin /etc/fleetctl/proxy /etc/fleetctl/secrets'
find /etc/systemd/system -printf '%p %y %m %l\n' | sort
find $folders -type f -printf '%p %m\n' -exec sha256sum {} + 2>/dev/null | sort
ls /etc/fleetctl/generations 2>/dev/null
readlink /etc/fleetctl/current
grep -hv '^{}$' /var/lib/fleetctl/superseded.json 2>/dev/null && echo
systemctl list-units --all --plain --no-legend 'fleetctl-*' 'old-*' | awk '$2 != "not-found" {print $1, $2, $3}'
"""


@dataclass
class Ran:
    """A command that ended: its exit status and its events."""

    rc: int
    events: list[dict[str, Any]]
    err: str

    @property
    def said(self) -> str:
        """The message and hint of the error it ended with."""
        errors = [f"{e['message']}\n{e['hint'] or ''}" for e in self.events if e["type"] == "error"]
        return errors[-1] if errors else ""

    @property
    def plan(self) -> dict[str, Any]:
        """The plan it showed."""
        return dict(next(e["plan"] for e in self.events if e["type"] == "plan"))

    @property
    def nothing(self) -> bool:
        """There was nothing to do."""
        return any(e["type"] == "move" and e["state"] == "nothing" for e in self.events)

    def steps(self, state: str = "done") -> list[str]:
        """Ids of the steps that reached a state, in order."""
        return [e["step"] for e in self.events if e["type"] == "step" and e["state"] == state]

    def __str__(self) -> str:
        told = [e for e in self.events if e["type"] != "plan" and e.get("state") in (None, "failed", "undo-failed")]
        return f"status {self.rc}\n{json.dumps(told, indent=1)}\n{self.err}"


class Running:
    """A command under way."""

    def __init__(self, argv: list[str], env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(env)
        )
        self.events: list[dict[str, Any]] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._err: list[str] = []
        for target in (self._read_out, self._read_err):
            threading.Thread(target=target, daemon=True).start()

    def _read_out(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_err(self) -> None:
        assert self.process.stderr
        self._err.append(self.process.stderr.read())

    def _next(self) -> dict[str, Any] | None:
        line = self._lines.get(timeout=PATIENCE)
        if line is None:
            return None
        self.events.append(json.loads(line))
        return self.events[-1]

    def until_event(self, kind: str) -> dict[str, Any]:
        """Wait for the first event of a type."""
        while (event := self._next()) is not None:
            if event["type"] == kind:
                return event
        self.process.wait(PATIENCE)
        raise AssertionError(f"it ended before {kind} came: {self.events} {''.join(self._err)}")

    def until(self, step: str, state: str = "begin") -> dict[str, Any]:
        """Wait until a step whose id begins so reaches a state."""
        while (event := self._next()) is not None:
            if event["type"] == "step" and event["step"].startswith(step) and event["state"] == state:
                return event
        raise AssertionError(f"it ended before {step} was {state}: {self.finish()}")

    def finish(self) -> Ran:
        while self._next() is not None:
            pass
        self.process.wait(PATIENCE)
        return Ran(self.process.returncode, self.events, "".join(self._err))


@dataclass
class Answers:
    """What a steady client saw: statuses of requests, and the seconds each took."""

    statuses: list[int | str] = field(default_factory=list)
    took: list[float] = field(default_factory=list)

    @property
    def failed(self) -> list[int | str]:
        return [status for status in self.statuses if status != 200]


class Moving:
    """The fleet of the lab, its fleet.yaml and the commands on it."""

    def __init__(self, lab: Lab, folder: Path, text: str) -> None:
        self.lab = lab
        self.folder = folder
        self.text = text
        self._files = 0
        self._client = httpx.Client(trust_env=False, verify=False, limits=httpx.Limits(max_keepalive_connections=0))

    # The file

    def changed(self, change: Callable[[dict[str, Any]], object]) -> str:
        """The text of fleet.yaml after a change to the document."""
        document = yaml.safe_load(self.text)
        change(document)
        return yaml.safe_dump(document, sort_keys=False)

    def with_environment(self, **values: str) -> str:
        """fleet.yaml with more variables for the engine."""
        return self.changed(lambda d: d["models"]["standin"]["environment"].update(values))

    def file(self, text: str | None = None) -> Path:
        self._files += 1
        path = self.folder / f"fleet-{self._files}.yaml"
        path.write_text(self.text if text is None else text)
        return path

    # The command

    def start(self, *words: str, text: str | None = None, env: Mapping[str, str] | None = None) -> Running:
        """Begin ``fleetctl WORDS --json`` on this fleet."""
        argv = [FLEETCTL, *words, "-f", str(self.file(text)), "--json"]
        return Running(argv, {**os.environ, **(env or {})})

    def run(self, *words: str, text: str | None = None, env: Mapping[str, str] | None = None) -> Ran:
        return self.start(*words, text=text, env=env).finish()

    def run_bare(self, *words: str) -> Ran:
        """``fleetctl WORDS --json``, for what needs no fleet.yaml."""
        return Running([FLEETCTL, *words, "--json"], os.environ).finish()

    def cutover(self, to: str, text: str | None = None, env: Mapping[str, str] | None = None) -> Ran:
        """A cutover that has to succeed."""
        ran = self.run("cutover", "--to", to, "--yes", text=text, env=env)
        assert ran.rc == 0, ran
        return ran

    def rollback(self, *words: str) -> Ran:
        """A rollback that has to succeed."""
        ran = self.run("rollback", "--yes", *words)
        assert ran.rc == 0, ran
        return ran

    def status(self, text: str | None = None) -> dict[str, Any]:
        ran = self.run("status", text=text)
        return next((e for e in ran.events if e["type"] == "status"), {}) | {"exit": ran.rc, "said": ran.said}

    def be_in(self, layout: str) -> None:
        """Bring the fleet there with the plain file, if it is not."""
        self.cutover(layout)

    # Traffic

    @property
    def proxy(self) -> str:
        return f"http://{self.lab.box('box1').address}:8080"

    def complete(self, timeout: float = PATIENCE, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """One chat completion through the proxy."""
        asked = {"model": "standin", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        url = f"{self.proxy}/v1/chat/completions"
        return self._client.post(url, json=asked, timeout=timeout, headers=dict(headers or {}))

    def answers(self) -> bool:
        answer = self.complete()
        return answer.status_code == 200 and bool(answer.json()["choices"][0]["message"]["content"])

    @contextmanager
    def steady_traffic(self, clients: int = 2) -> Iterator[Answers]:
        """Clients that ask again and again, until the end of the block and for the answer that is then due."""
        told, stop = Answers(), threading.Event()

        def client() -> None:
            while not stop.is_set():
                begin = time.monotonic()
                status: int | str
                try:
                    status = self.complete().status_code
                except httpx.HTTPError as error:
                    status = repr(error)
                told.statuses.append(status)
                told.took.append(time.monotonic() - begin)
                stop.wait(0.05)

        threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield told
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE)

    # The boxes

    def sh(self, box: str, command: str, text: str | None = None) -> str:
        """Standard output of a shell command as root on a box."""
        return self.lab.exec(box, ["sh", "-c", command], input=text).stdout

    def put(self, box: str, path: str, text: str, mode: str = "644") -> None:
        self.sh(box, f"mkdir -p $(dirname {path}); cat > {path}; chmod {mode} {path}", text)

    def control(self, box: str, **settings: Any) -> None:
        """Settings and faults of the engines on a box, from now on."""
        self.put(box, CONTROL, json.dumps(settings))

    def unit(self, box: str, unit: str) -> tuple[str, str]:
        """Activity and enablement of a unit, in systemd's words."""
        told = self.sh(box, f"systemctl show -P ActiveState -P UnitFileState {unit}").split("\n")
        return told[0], told[1]

    def files(self, box: str, folder: str) -> list[str]:
        return self.sh(box, f"cd {folder} 2>/dev/null && find . -type f | sort").split()

    def our_units(self, box: str) -> list[str]:
        return self.sh(box, "cd /etc/systemd/system; ls -d fleetctl-* 2>/dev/null").split()

    def processes(self, box: str) -> set[str]:
        """Values of FLEETCTL_ENGINE among the running processes."""
        return set(self.sh(box, "grep -zhs '^FLEETCTL_ENGINE=' /proc/[0-9]*/environ | tr '\\0' '\\n'").split())

    def pid(self, box: str, unit: str) -> str:
        return self.sh(box, f"systemctl show -P MainPID {unit}").strip()

    def tell_proxy(self, command: str) -> str:
        """The answer of the running proxy to a command of its runtime API."""
        ask = (
            "import socket; s=socket.socket(socket.AF_UNIX); s.connect('/run/fleetctl-proxy/admin.sock');"
            f"s.sendall(b'{command}\\n'); print(b''.join(iter(lambda: s.recv(65536), b'')).decode())"
        )
        return self.sh("box1", f'python3 -c "{ask}"')

    def servers(self) -> dict[str, str]:
        """BACKEND/SERVER → status, as the running proxy says."""
        rows = [line.split(",") for line in self.tell_proxy("show stat").splitlines() if line.count(",") > 20]
        return {
            f"{r[0]}/{r[1]}": r[17].split()[0]
            for r in rows
            if r[1].startswith(("split-", "replicas-", "pairs-", "pool-"))
        }

    def picture(self) -> dict[str, str]:
        """All that a failed move must leave as it was."""
        return {box: self.sh(box, _PICTURE) for box in BOXES}

    def same_as(self, before: Mapping[str, str]) -> bool:
        """Assert that the boxes are as they were, line by line."""
        after = self.picture()
        for box, text in before.items():
            was, now = set(text.splitlines()), set(after[box].splitlines())
            assert was == now, f"{box}: gone {sorted(was - now)}, new {sorted(now - was)}"
        return True

    def unscathed(self, before: Mapping[str, str], layout: str | None) -> None:
        """The strong invariant after a move that failed: everything as before, and the fleet serves."""
        assert self.same_as(before)
        seen = self.status()
        assert (seen["problems"], seen["layout"], seen["unfinished"], seen["lock"]) == ([], layout, None, None), seen
        assert seen["exit"] == 0, seen
        assert self.answers()
        assert self.sh("box1", "ls /var/lib/fleetctl/lock.json 2>/dev/null") == ""

    def moves(self) -> list[str]:
        """Names of the moves whose journal the lead box has."""
        return self.sh("box1", "ls /var/lib/fleetctl/moves 2>/dev/null").split()

    def journal(self) -> str:
        """All journals and the plans in them, as one text."""
        return self.sh("box1", "cat /var/lib/fleetctl/moves/*/*.json*")


def eventually(condition: Callable[[], bool], why: Callable[[], object] = lambda: "") -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if condition():
                return
        assert time.monotonic() < deadline, why()
        time.sleep(0.1)
