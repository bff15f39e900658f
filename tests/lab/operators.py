"""Operators in the lab: they run fleetctl as a person would, and are killed or interrupted at a chosen moment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from fleetctl.lab.lab import Lab

Event = dict[str, Any]
EVERY_CUT = os.environ.get("FLEETCTL_TEST_EVERY_CUT") == "1"
"""Try every moment at which something can be cut, and not a choice of them."""
OTHER = {"split": "replicas", "replicas": "split"}
UNREACHABLE, LOCKED, STUCK, UNFINISHED, INTERRUPTED = 3, 4, 7, 8, 130
FLEETCTL = str(Path(sys.executable).parent / "fleetctl")


@dataclass
class Run:
    """One fleetctl command: its events as they come, and its exit status once it has ended."""

    process: subprocess.Popen[str]
    events: list[Event] = field(default_factory=list)

    def more(self) -> Iterator[Event]:
        """Further events, each once, until the command ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.events.append(event)
            yield event

    def until(self, wanted: Callable[[Event], bool]) -> Event | None:
        """Read on to the first event like this. None: the command ended without one."""
        return next((event for event in self.more() if wanted(event)), None)

    def kill(self) -> None:
        """SIGKILL: the client gets no chance to say or do anything more."""
        self.process.kill()
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        """A signal to the command's process group, as a terminal sends it."""
        os.killpg(self.process.pid, number)

    def end(self) -> int:
        """Let it run to its end. Returns the exit status."""
        for _ in self.more():
            pass
        return self.process.wait()

    def told(self, kind: str) -> list[Event]:
        """The events of one type so far."""
        return [event for event in self.events if event["type"] == kind]

    def begun(self, kind: str) -> None:
        """Read on until a step of this kind is begun."""
        assert self.until(lambda event: event.get("state") == "begin" and f".{kind}." in event["step"]), self.story()

    def said(self) -> str:
        """The error that it ended with."""
        (error,) = self.told("error")
        return f"{error['message']} {error['hint'] or ''}"

    def story(self) -> str:
        """All that happened, to be shown when a test fails."""
        lines = []
        for event in self.events:
            words = [str(event.get(key, "")) for key in ("type", "state", "step", "text", "message", "hint", "why")]
            if event.get("state") != "progress":
                lines.append(" ".join(word for word in words if word))
        return "\n".join(lines)


class Operators:
    """Starts commands on one lab."""

    def __init__(self, lab: Lab, file: Path) -> None:
        self.lab = lab
        self.file = file
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> Run:
        """Begin a command; it has a process group of its own."""
        process = subprocess.Popen(
            [FLEETCTL, *words, "-f", str(self.file), "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return Run(process)

    def run(self, *words: str) -> Run:
        """Run a command to its end."""
        run = self.start(*words)
        run.end()
        return run

    def move(self, *words: str) -> Run:
        """Start a move without a question."""
        return self.start(*words, "--yes")

    def do(self, *words: str) -> Run:
        """Carry out a move that has to succeed."""
        run = self.move(*words)
        assert run.end() == 0, run.story()
        return run

    def status(self) -> tuple[int, Event]:
        """Exit status of ``fleetctl status`` and what it told."""
        run = self.run("status")
        (told,) = run.told("status")
        return run.process.returncode, told

    def close(self) -> None:
        """End whatever is left."""
        for process in self._started:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


STATE = """
for unit in $(cd /etc/systemd/system && ls -d fleetctl-*.service 2>/dev/null); do
  echo "$unit $(systemctl is-enabled $unit) $(systemctl is-active $unit)"
done
systemctl list-units --no-legend --plain --state=active,activating,failed 'fleetctl-*' | cut -d' ' -f1 | sort
find /etc/fleetctl/proxy /etc/systemd/system -name '*fleetctl*' -o -path '*/fleetctl/proxy/*' -type f | sort
cat /etc/systemd/system/fleetctl-*.service /etc/fleetctl/proxy/* 2>/dev/null | sha256sum
"""


def state_of(lab: Lab) -> dict[str, str]:
    """Box → its units, enablement and live files as systemd and the disk have them, not as fleetctl says."""
    return {box.name: lab.exec(box.name, ["sh", "-c", STATE]).stdout for box in lab.boxes()}


def answers(lab: Lab) -> bool:
    """A completion through the proxy works."""
    told = httpx.post(
        f"http://{lab.boxes()[0].address}:8080/v1/chat/completions",
        json={"model": "standin", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]},
        timeout=60,
    )
    return told.status_code == 200


def journal_of(lab: Lab, box: str, move: str) -> list[Event]:
    """The records of a move, from the disk of the box."""
    text = lab.exec(box, ["cat", f"/var/lib/fleetctl/moves/{move}/journal.jsonl"]).stdout
    return [json.loads(line) for line in text.splitlines()]


def last_move(lab: Lab, box: str) -> str:
    """Name of the newest move that a box has the journal of."""
    return lab.exec(box, ["ls", "/var/lib/fleetctl/moves"]).stdout.split()[-1]
