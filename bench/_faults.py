"""The faults that bench/doctor.py plants: what operators of such boxes have reported. Here: those of splits.

A fault is real where it can be had on such a box. ``how`` says what it is made of:

- ``real``: the thing itself: a unit, a file, a process, an engine in that state.
- ``words``: the engine's own unit writes the line, from a program that runs before the stand-in (or in its place).
- ``recorded``: a program of that name answers with what the real one printed elsewhere.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

ETC = "/etc/systemd/system"
SAYS = "/etc/bench-doctor"
"""Folder of what an engine says before it starts, a file of shell commands for each model."""
UNIT_DOWN = frozenset({"U04", "U12", "U13"})
"""What doctor says besides of a unit that does not run because of a fault: that it is down."""


@dataclass(frozen=True)
class Fault:
    """``found`` are the findings that it has to bring, as (code, place), with ``evidence`` in what they tell.

    They are of its box, or of ``seen_on`` (None: of the fleet). ``unit`` may be told to be down because of it, on every
    box that has a rank of the engine.

    ``says`` are shell commands that a model's engine runs before it starts from now on, ``control`` settings of its
    stand-in. Commands in ``run`` come last, as root on the box; the units of ``restart`` are then started again.
    """

    symptom: str
    how: str
    box: str
    found: tuple[tuple[str, str], ...]
    evidence: str = ""
    seen_on: str | None = ""
    unit: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    says: Mapping[str, str] = field(default_factory=dict)
    control: Mapping[str, object] = field(default_factory=dict)
    run: str = ""
    restart: tuple[str, ...] = ()


def copy(model: str) -> str:
    """The unit of a copy."""
    return f"fleetctl-replicas-{model}.service"


def rank(model: str) -> str:
    """The unit of a rank of a split."""
    return f"fleetctl-split-{model}.service"


def line(*words: str) -> str:
    """Shell commands that write lines."""
    return "\n".join(f"echo {shlex.quote(word)} >&2" for word in words) + "\n"


def ends(symptom: str, model: str, box: str, code: str, *words: str, of: str = "replicas") -> Fault:
    """An engine that writes these words and ends, at every start."""
    unit = f"fleetctl-{of}-{model}.service"
    says = {model: line(*words) + "exit 1\n"}
    return Fault(symptom, "words", box, ((code, unit),), unit=unit, says=says, restart=(unit,))


def writes(symptom: str, model: str, box: str, code: str, *words: str, of: str = "replicas") -> Fault:
    """An engine that has written these words and runs."""
    unit = f"fleetctl-{of}-{model}.service"
    return Fault(symptom, "words", box, ((code, unit),), says={model: line(*words)}, restart=(unit,))


SPLITS = ("chat", "alone", "worker", "head", "ray", "skew", "port", "link")
MASTER_PORT = 29500
BEGUN = "init_process_group: Init torch distributed begin."
BLOCKED = (
    "No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are "
    "hanging or doing some time-consuming work."
)


SKEWED = "/opt/bench/skew/lib/python3.11/site-packages/vllm-0.12.0.dist-info"


def master_port(model: str) -> int:
    """Where the ranks of a split meet."""
    return MASTER_PORT + 10 * SPLITS.index(model)


def in_split(link: str) -> tuple[Fault, ...]:
    """Faults of splits, on boxes of which the first has this link address."""
    port = master_port("port")
    return (
        Fault(
            "the head's process is up, the follower is gone",
            "real",
            "box1",
            (("E01", rank("alone")),),
            unit=rank("alone"),
            restart=(rank("alone"),),
        ),
        Fault(
            "the same: the follower does not run",
            "real",
            "box2",
            (("U04", rank("alone")),),
            run=f"systemctl stop {rank('alone')}",
        ),
        writes(
            "a follower died",
            "worker",
            "box1",
            "E02",
            "ERROR ray_executor: RayWorkerProc rank=[2] died unexpectedly, shutting down executor.",
            of="split",
        ),
        writes(
            "the head died, and the headless rank loops",
            "head",
            "box2",
            "E03",
            *["RuntimeError: Failed to recv, got 0 bytes. Connection was likely closed."] * 3,
            of="split",
        ),
        ends(
            "the ranks have different versions of Ray",
            "ray",
            "box1",
            "E05",
            "RuntimeError: Version mismatch: The cluster was started with: Ray: 2.43.0 Python: 3.12.3. This process "
            "was started with: Ray: 2.44.1 Python: 3.12.3.",
            of="split",
        ),
        Fault(
            "one box has another build of the engine",
            "real",
            "box2",
            (("B08", "vllm"),),
            seen_on=None,
            run=f"mv {SKEWED} {SKEWED.replace('0.12.0', '0.11.0')}",
        ),
        Fault(
            "the rendezvous port is taken (EADDRINUSE)",
            "real",
            "box1",
            (("P04", f"port {port}"),),
            unit=rank("port"),
            run=f"systemctl stop {rank('port')}; systemd-run -q --unit=squatter python3 -m http.server {port}; sleep 1",
            restart=(rank("port"),),
        ),
        Fault(
            "no shared memory broadcast block for hours, both boxes busy",
            "words",
            "box1",
            (("E04", rank("link")),),
            says={"link": line(BEGUN, *[BLOCKED] * 25) + "exec sleep 3600\n"},
            restart=(rank("link"),),
        ),
    )
