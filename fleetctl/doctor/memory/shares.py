"""Share and reserve held against what engines and everything else really take."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.doctor.finding import Finding, Kind, Severity
from fleetctl.doctor.memory.told import Held, MemoryTold, held_by, strangers
from fleetctl.doctor.scene import Scene
from fleetctl.plan.others import PEAKS, left_for_others, taken_on, too_little
from fleetctl.render.release import Budget
from fleetctl.spec.units import gib

TOO_LOW = 0.9
"""A `memory:` below this part of what there is makes shares of something else than they are meant of."""
SMALL = 2**30

WRONG_MEMORY = Kind(
    "M01",
    Severity.WARNING,
    "memory: is not what the box has",
    "a `memory:` in fleet.yaml that is more than the box (or its only GPU) has, or a tenth less",
    "An engine takes its gpu_memory_utilization of what the driver finds, and not of what the file says. With too "
    "small a figure it takes more than was reckoned with, with too large a one the reserve is not there.",
    "write the size that the box has as `memory:`, then `fleetctl apply`",
    "vLLM's gpu_memory_utilization; /proc/meminfo and nvidia-smi",
)
MORE_THAN_SHARE = Kind(
    "M02",
    Severity.WARNING,
    "engines hold more than their part",
    "engines that hold more of a box now than `memory:` less `reserve:`, with a fortieth of the memory to spare",
    "The share of an engine is what it plans with, and no ceiling: what its processes take besides, CUDA graphs and "
    "the buffers of NCCL come on top. What is missing in the end is missing to the rest of the box.",
    "raise `reserve:` of the box by what they hold too much, then `fleetctl apply`",
    "an office's cutover on boxes with databases; /proc/PID/status and nvidia-smi",
)
OTHERS_SHORT = Kind(
    "M03",
    Severity.WARNING,
    "too little is left for the rest of the box",
    "services that took more at their worst than engines leave them, with a fortieth of the memory for peaks; by the "
    "guard's notes, or by a look now",
    "A box whose CPU and GPU share the memory freezes when it runs out, or the kernel ends what it likes least.",
    "raise `reserve:` of the box, then `fleetctl apply`",
    "an office's cutover on boxes with databases",
)
GPU_OF_OTHERS = Kind(
    "M04",
    Severity.WARNING,
    "something else holds memory of the GPU",
    "processes that are no engines of fleetctl and hold so much memory of a GPU that an engine would not start, or "
    "the rest of the box comes short",
    "An engine looks at what is free when it starts, and gives up when that is less than its share. The memory of the "
    "GPU is not in what the kernel charges to a service.",
    "stop them, or let `reserve:` have room for them",
    "nvidia-smi --query-compute-apps",
)
KINDS = (WRONG_MEMORY, MORE_THAN_SHARE, OTHERS_SHORT, GPU_OF_OTHERS)


def find(scene: Scene, box: str, told: MemoryTold) -> Iterator[Finding]:
    """Findings of one box."""
    wrong = list(_memory_in_file(scene, box, told))
    yield from wrong
    budget = next((budget for budget in scene.live.budgets if budget.box == box), None)
    if budget is None or not scene.live.ranks_on(box):
        return
    if not wrong:  # with a wrong size every part is wrong
        yield from _held(scene, budget, told)
    yield from _others(scene, budget, told)


def truth(scene: Scene, box: str, told: MemoryTold) -> tuple[int, str] | None:
    """Bytes that shares of a box are taken of, and who says so; None where several GPUs are, or it is not known."""
    gpus = told.gpu_list()
    if gpus and not told.unified:
        only = gpus[0] if len(gpus) == 1 else None
        return (only.total, f"nvidia-smi: {only.name}, memory.total") if only and only.total else None
    if box not in scene.observed:
        return None
    return scene.observed[box].memory["total"], "/proc/meminfo: MemTotal"


def _memory_in_file(scene: Scene, box: str, told: MemoryTold) -> Iterator[Finding]:
    known = truth(scene, box, told)
    if known is None or box not in scene.fleet.boxes:
        return
    size, source = known
    wrote = scene.fleet.boxes[box].memory
    seen = f"{source} {gib(size)} ({size} bytes)"
    fix = f"write memory: {size // 2**20}MiB under {box} in fleet.yaml, then `fleetctl apply`"
    if wrote > size:
        says = f"fleet.yaml says memory {gib(wrote)} for {box}, which has {gib(size)}"
        yield WRONG_MEMORY.found(box, "memory:", says, seen, fix=fix)
    elif told.gpu_list() and wrote < size * TOO_LOW:
        says = f"fleet.yaml says memory {gib(wrote)} for {box}, whose engines find {gib(size)} and take shares of that"
        yield WRONG_MEMORY.found(box, "memory:", says, seen, fix=fix)


def _held(scene: Scene, budget: Budget, told: MemoryTold) -> Iterator[Finding]:
    units = [rank.unit for _, rank in scene.live.ranks_on(budget.box)]
    holds = [held for unit in units if (held := held_by(told, unit)) is not None]
    part = budget.memory - budget.reserve
    # Where the GPU has its own memory, that alone is divided into shares.
    own = bool(told.gpu_list()) and not told.unified
    total = sum(held.gpu if own else held.total for held in holds)
    if total <= part + budget.memory // PEAKS:
        return
    wanted = -(-(budget.reserve + total - part) // SMALL)
    yield MORE_THAN_SHARE.found(
        budget.box,
        ", ".join(held.unit for held in holds),
        f"engines hold {gib(total)} and their part is {gib(part)}: {gib(total - part)} of the reserve is theirs",
        *(_line(held) for held in holds),
        *budget.lines[:1],
        fix=f"write reserve: {wanted}GiB under {budget.box} in fleet.yaml (it is {gib(budget.reserve)}), then "
        f"`fleetctl apply`; `fleetctl capacity calibrate {budget.box}` lets plans know what the engine takes",
    )


def _line(held: Held) -> str:
    gpu = f", {gib(held.gpu)} on the GPU (nvidia-smi)" if held.gpu else ""
    return f"{held.unit}: {gib(held.host)} in its processes (RssAnon, RssShmem){gpu}"


def _others(scene: Scene, budget: Budget, told: MemoryTold) -> Iterator[Finding]:
    facts = scene.observed[budget.box]
    left = left_for_others(scene.live, budget)
    others = facts.others
    taken = taken_on(scene.live, budget.box, facts.superseded, others) if others is not None else None
    short = too_little(taken, left, budget.memory) if taken is not None else None
    if short is not None and others is not None and taken is not None:
        how = f"by the guard's notes of {others.measured / 3600:.0f} h" if others.measured else "seen once"
        swap = told.meminfo.get("SwapTotal", 0)
        yield OTHERS_SHORT.found(
            budget.box,
            "reserve:",
            short.what,
            f"other services at their worst: {taken} ({how})",
            f"swap: {gib(swap)}" if swap else "there is no swap",
            fix=f"{short.write} under {budget.box} in fleet.yaml, then `fleetctl apply`",
        )
        return
    found = [(app, owner) for app, owner in strangers(told) if app.used]
    on_gpu = sum(app.used or 0 for app, _ in found)
    # On a box with one memory it comes on top of what services take; a GPU has what its engines leave.
    beside = taken.together if taken is not None and told.unified else 0
    if not on_gpu or beside + on_gpu + (budget.memory // PEAKS if told.unified else 0) <= left:
        return
    names = [f"{app.name or owner.comm} (pid {app.pid}, {owner.unit or 'no unit'})" for app, owner in found]
    stops = [f"systemctl stop {owner.unit}" for _, owner in found if owner.unit.endswith(".service")]
    yield GPU_OF_OTHERS.found(
        budget.box,
        names[0],
        f"{', '.join(names[:3])} hold{'s' if len(names) == 1 else ''} {gib(on_gpu)} of the GPU's memory, and engines "
        f"leave {gib(left)}" + (f", of which other services take {gib(beside)}" if beside else ""),
        *(f"{app.pid}, {app.name}, {gib(app.used or 0)} (nvidia-smi)" for app, _ in found[:5]),
        fix=f"{'; '.join(dict.fromkeys(stops)) or 'end them'} on {budget.box}; or, if they stay, write reserve: "
        f"{-(-(budget.reserve + on_gpu) // SMALL)}GiB under {budget.box} in fleet.yaml, then `fleetctl apply`",
    )
