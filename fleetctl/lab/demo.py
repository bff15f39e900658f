"""What the demo does: real moves of a fleet under steady traffic, and what each of them cost its clients."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetctl.errors import FleetError, LockedError, UnfinishedError
from fleetctl.lab.traffic import Request, Traffic
from fleetctl.spec.load import load_fleet

Event = dict[str, Any]
Listener = Callable[[Event], None]

COMMAND = (sys.executable, "-c", "from fleetctl.cli.main import main; main()")
"""The fleetctl of this installation, whatever is on PATH."""

CALM = 3.0
"""Seconds of traffic before the first move, and after each."""

LOCK_PATIENCE = 40.0
"""Seconds; the lock of a command that was killed can be taken over after 15."""


@dataclass(frozen=True)
class Move:
    """A move that was run: the layout it went to, its exit status, and the events it printed."""

    to: str
    began: float
    exit_code: int
    events: tuple[Event, ...]

    @property
    def done(self) -> bool:
        return self.exit_code == 0

    def results(self, kind: str) -> list[Event]:
        """What the steps of a kind returned when they were done."""
        return [
            event["result"]
            for event in self.events
            if event["type"] == "step" and event["state"] == "done" and event["step"].split(".")[1] == kind
        ]

    @property
    def end(self) -> Event:
        """The move's own account of itself; empty when it was not carried out."""
        ends = (event for event in self.events if event["type"] == "move" and event["state"] == "done")
        return next(ends, {})

    def boxes_of(self, engine: str) -> set[str]:
        """The boxes of an engine that the move started."""
        plans = [event["plan"] for event in self.events if event["type"] == "plan"]
        engines = [one for plan in plans for one in plan["release"]["engines"] if one["id"] == engine]
        return {rank["box"] for one in engines for rank in one["ranks"]}

    @property
    def error(self) -> str | None:
        return next((str(event["message"]) for event in self.events if event["type"] == "error"), None)


@dataclass(frozen=True)
class Figures:
    """What a move cost the clients; times in seconds, None where the move did not get that far.

    - ``requests``: sent since the move before (the first: since the traffic began) until the next;
      ``failed``: those without a whole answer with status 200.
    - ``held``: sent before the first new engine was open and answered by it or later: they waited in the proxy.
    - ``gap_s``: the time in which no answer began: from the last first byte before the proxy held requests until the
      first one after a new engine was ready. It contains the wait for the next request to come, up to 1/rate.
    - ``engine_load_s``: of the engine that was ready first, from its start to its health check's 200.
    - ``engine_stop_s``: of the old process that took longest on the boxes of that engine.
    - ``overhead_s``: ``gap_s`` less what the engines needed to stop and to load.
    - ``recovery_s``: from that engine being ready until the first byte of the first answer.
    """

    to: str
    requests: int
    failed: int
    held: int
    gap_s: float | None
    engine_stop_s: float | None
    engine_load_s: float | None
    overhead_s: float | None
    recovery_s: float | None

    def record(self) -> dict[str, Any]:
        """The figures as the report gives them."""
        keys = ("to", "requests", "failed", "held", "gap_s", "engine_load_s", "overhead_s", "recovery_s")
        return {key: getattr(self, key) for key in keys}


def figures(move: Move, mine: Sequence[Request], every: Sequence[Request]) -> Figures:
    """Figures of a move from the requests that are counted for it (``mine``) and all there were."""
    end = move.end
    ready: dict[str, float] = end.get("ready") or {}
    first = min(ready, key=lambda engine: ready[engine], default=None)
    failed = sum(request.failed for request in mine)
    if first is None or end["held_from"] is None:
        return Figures(move.to, len(mine), failed, 0, None, None, end.get("loads", {}).get(first), None, None)
    ready_at, held_from = ready[first], end["held_from"]
    opened = [result["open_at"] for result in move.results("open") if "open_at" in result]
    open_at = min(opened, default=ready_at)
    bytes_at = sorted(request.first_byte for request in every if request.first_byte is not None and not request.failed)
    before = [at for at in bytes_at if at <= held_from]
    after = [at for at in bytes_at if at >= ready_at]
    boxes = move.boxes_of(first)
    stop = max((took for unit, took in end["stops"].items() if unit.split("/")[0] in boxes), default=0.0)
    load = end["loads"].get(first)
    gap = after[0] - max(before, default=held_from) if after else None
    return Figures(
        to=move.to,
        requests=len(mine),
        failed=failed,
        held=sum(request.start < open_at and ready_at <= (request.first_byte or 0.0) for request in mine),
        gap_s=_rounded(gap),
        engine_stop_s=_rounded(stop),
        engine_load_s=_rounded(load),
        overhead_s=None if gap is None or load is None else _rounded(gap - stop - load),
        recovery_s=_rounded(after[0] - ready_at) if after else None,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def timeline(move: Move, first_answer: float | None = None) -> list[tuple[float, str]]:
    """When each thing of the gap happened, in seconds since the proxy began to hold, in order."""
    held_from = move.end.get("held_from")
    if held_from is None:
        return []
    shown = ("drain", "supersede", "stop_engine", "await_free", "install_files", "start_engine", "await_ready")
    moments = [(0.0, "new requests are held")]
    for event in move.events:
        if event["type"] == "step" and event["state"] == "done":
            kind = event["step"].split(".")[1]
            if kind in (*shown, "gate", "open"):
                moments.append((event["at"] - held_from, f"done: {event['summary']}"))
    moments += [(at - held_from, f"{engine} is ready") for engine, at in (move.end.get("ready") or {}).items()]
    if first_answer is not None:
        moments.append((first_answer - held_from, "the first answer reaches a client"))
    return sorted(moments)


def run_move(arguments: Sequence[str], to: str, listen: Listener) -> Move:
    """Run ``fleetctl ARGUMENTS --yes --json`` and hand on its events as they come.

    Ctrl-C reaches the command as its own Ctrl-C would, so that it undoes what it began; then it is raised here.
    """
    events: list[Event] = []
    interrupted = False
    began = time.time()
    with (
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(
            [*COMMAND, *arguments, "--yes", "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdout is not None
        while True:
            try:
                line = process.stdout.readline()
                if not line:
                    break
                events.append(_event(line))
                listen(events[-1])
            except KeyboardInterrupt:
                interrupted = True
                process.send_signal(signal.SIGINT)
        code = process.wait()
        complaints.seek(0)
        said = complaints.read().strip()
    if interrupted:
        raise KeyboardInterrupt
    if code != 0 and not any(event["type"] == "error" for event in events):
        events.append({"type": "error", "message": said or f"fleetctl {arguments[0]} ended with {code}"})
    return Move(to, began, code, tuple(events))


def _event(line: str) -> Event:
    """A line of the command's output; what is no event is passed on as a note, for a person to read."""
    try:
        return dict(json.loads(line))
    except ValueError:
        return {"type": "note", "text": line.strip()}


def to_split(fleet_file: Path, say: Callable[[str], None], listen: Listener) -> Move:
    """Bring the fleet into the split layout from whatever state it is in, a move that was cut off included."""
    fleet = ["--take-over", "--fleet", str(fleet_file)]
    arguments = ["cutover", "--to", "split", *fleet]
    patience = time.monotonic() + LOCK_PATIENCE
    move = run_move(arguments, "split", listen)
    while move.exit_code == LockedError.exit_code and time.monotonic() < patience:
        say("another command has the fleet's lock: trying again until it is done, or known to be gone")
        time.sleep(3.0)
        move = run_move(arguments, "split", listen)
    if move.exit_code != UnfinishedError.exit_code:
        return move
    say("an earlier move was cut off here: undoing it first")
    back = run_move(["rollback", *fleet], "what was there before", listen)
    return run_move(arguments, "split", listen) if back.done else back


@dataclass(frozen=True)
class Report:
    """Both moves with their figures, all requests, and whether everything went well."""

    moves: tuple[Move, ...]
    figures: tuple[Figures, ...]
    requests: tuple[Request, ...]

    @property
    def failed(self) -> list[Request]:
        return [request for request in self.requests if request.failed]

    def first_answer(self, move: Move) -> float | None:
        """When the first answer of the move's new engines began."""
        ready = min((move.end.get("ready") or {}).values(), default=None)
        times = [r.first_byte for r in self.requests if ready is not None and r.first_byte and r.first_byte >= ready]
        return min(times, default=None)

    @property
    def exit_code(self) -> int:
        """0 when both moves were done and every request was answered; else that of the move, or 9."""
        broken = next((move.exit_code for move in self.moves if not move.done), 0)
        return broken or (9 if self.failed or len(self.moves) < 2 else 0)

    def json(self) -> str:
        """The last line of the demo."""
        return json.dumps({"moves": [figure.record() for figure in self.figures]})


def client_address(fleet_file: Path) -> tuple[str, str]:
    """Base URL of the fleet's proxy and a model's name, as clients use them."""
    fleet = load_fleet(fleet_file).fleet
    proxy = fleet.proxy
    name, model = next(iter(fleet.models.items()))
    return f"http://{fleet.proxy_address}:{proxy.port}", (model.served_as or (name,))[0]


@contextmanager
def steady_traffic(fleet_file: Path, rate: float) -> Iterator[Traffic]:
    """Traffic to the fleet's proxy. Raises FleetError when its first requests are not answered."""
    url, model = client_address(fleet_file)
    with Traffic(url, model, rate=rate) as traffic:
        time.sleep(CALM)
        if not traffic.counts().answered:
            seen = next((request.error for request in traffic.requests() if request.failed), "no answer yet")
            raise FleetError(f"{url} does not answer before anything was moved: {seen}", hint="fleetctl status")
        yield traffic


def under_traffic(fleet_file: Path, traffic: Traffic, heading: Callable[[str], None], listen: Listener) -> list[Move]:
    """To replicas and back while the traffic flows; the second move only when the first was done."""
    moves: list[Move] = []
    fleet = ["--fleet", str(fleet_file)]
    for to, arguments in (("replicas", ["cutover", "--to", "replicas", *fleet]), ("split", ["rollback", *fleet])):
        heading(f"fleetctl {' '.join(arguments)}")
        moves.append(run_move(arguments, to, listen))
        time.sleep(CALM)
        if not moves[-1].done:
            break
    return moves


def report(moves: Sequence[Move], requests: Sequence[Request]) -> Report:
    """Figures for moves that ran one after the other under this traffic; each request counts for one of them."""
    borders = [float("-inf"), *(move.began for move in moves[1:]), float("inf")]
    told = [
        figures(move, [r for r in requests if borders[n] <= r.start < borders[n + 1]], requests)
        for n, move in enumerate(moves)
    ]
    return Report(tuple(moves), tuple(told), tuple(requests))
