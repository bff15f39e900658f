"""Swap: engines that are in it, how full it is, and how eager the kernel is to use it."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.doctor.finding import Finding, Kind, Severity
from fleetctl.doctor.memory.told import MemoryTold
from fleetctl.doctor.scene import Scene
from fleetctl.spec.units import gib

NEGLIGIBLE = 64 * 2**20
EAGER = 60
"""The kernel's own default."""
FULL = 10
"""A guard takes less than a tenth of the swap that is left as a sign of a shortage."""

ENGINE_IN_SWAP = Kind(
    "M10",
    Severity.WARNING,
    "an engine is in swap",
    "processes of an engine of which more than 64 MiB are in swap",
    "What an engine has, it needs for every token: with a part of it on a disk it seems to hang.",
    "see that `MemorySwapMax=0` is in force for its unit, and restart it",
    "/proc/PID/status: VmSwap",
)
SWAP_FULL = Kind(
    "M11",
    Severity.WARNING,
    "swap is nearly used up",
    "less than a tenth of the swap that is left",
    "What others had in swap has nowhere to go any more: the next peak is the kernel's to settle. A guard acts on it.",
    "see who is in swap, and raise `reserve:`",
    "/proc/meminfo: SwapTotal, SwapFree",
)
EAGER_SWAP = Kind(
    "M12",
    Severity.NOTE,
    "the kernel is eager to swap",
    "vm.swappiness above 60 on a box whose swap is on a disk",
    "The kernel would rather write memory of processes to a disk than give back the page cache, of which an engine "
    "leaves much behind when it loads.",
    "vm.swappiness = 10 in a file under /etc/sysctl.d",
    "Linux documentation, admin-guide/sysctl/vm",
)
KINDS = (ENGINE_IN_SWAP, SWAP_FULL, EAGER_SWAP)


def find(scene: Scene, box: str, told: MemoryTold) -> Iterator[Finding]:
    """Findings of one box. Of a container's kernel only what belongs to its own processes is told."""
    swapped: dict[str, int] = {}
    for process in told.processes:
        unit = process.unit or f"pid {process.pid}"
        swapped[unit] = swapped.get(unit, 0) + process.swap
    for unit, size in swapped.items():
        if size > NEGLIGIBLE:
            yield ENGINE_IN_SWAP.found(
                box,
                unit,
                f"{gib(size)} of {unit} are in swap",
                *(
                    f"/proc/{process.pid}/status ({process.comm}): VmSwap {process.swap // 1024} kB"
                    for process in told.processes
                    if (process.unit or f"pid {process.pid}") == unit and process.swap
                ),
                fix=f"on {box}: systemctl show -p MemorySwapMax {unit} (it must say 0; `fleetctl apply` writes it); "
                f"then `fleetctl restart {box}`",
            )
    if told.container:
        return
    total, free = told.meminfo.get("SwapTotal", 0), told.meminfo.get("SwapFree", 0)
    if total and free * FULL < total:
        yield SWAP_FULL.found(
            box,
            "/proc/meminfo",
            f"{gib(free)} of {gib(total)} of swap are left",
            f"SwapTotal {total // 1024} kB, SwapFree {free // 1024} kB",
            fix=f"on {box}: grep VmSwap /proc/[0-9]*/status | sort -k2 -n | tail, says who is in it; write a larger "
            f"reserve: under {box} in fleet.yaml (it is {gib(scene.fleet.boxes[box].reserve)}), then `fleetctl apply`",
        )
    devices = [line.split()[0] for line in told.swaps.splitlines()[1:] if line.split()]
    disks = [device for device in devices if not device.startswith("/dev/zram")]
    if told.swappiness is not None and told.swappiness > EAGER and disks:
        yield EAGER_SWAP.found(
            box,
            "vm.swappiness",
            f"vm.swappiness is {told.swappiness}, and swap is on {', '.join(disks[:3])}",
            f"/proc/sys/vm/swappiness: {told.swappiness}",
            fix=f"on {box}: echo 'vm.swappiness = 10' > /etc/sysctl.d/90-fleetctl-swappiness.conf; sysctl --system",
        )
