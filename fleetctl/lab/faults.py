"""Things that go wrong with real boxes, done on purpose to lab boxes."""

from __future__ import annotations

from fleetctl.errors import LabError
from fleetctl.lab.box import Runner
from fleetctl.lab.bridge import set_carrier

# The content is kept on both ways, so that what is limited is the space and not what the box knows.
_LIMIT = """set -e
mkdir -p -- "$1"
spare=$(mktemp -d /run/fleetctl-lab-disk.XXXXXX)
mount -t tmpfs -o "size=$2,mode=$(stat -c %a -- "$1")" fleetctl-lab-disk "$spare"
if ! cp -a -- "$1/." "$spare/"; then umount "$spare"; rmdir "$spare"; exit 1; fi
mount --make-private "$spare"
mount --bind "$spare" "$1"
umount "$spare"
rmdir "$spare"
"""
_UNLIMIT = """set -e
spare=$(mktemp -d /run/fleetctl-lab-disk.XXXXXX)
mount --bind "$1" "$spare"
umount --lazy "$1"
find "$1" -mindepth 1 -maxdepth 1 -exec rm -rf -- {} +
cp -a -- "$spare/." "$1/"
umount "$spare"
rmdir "$spare"
"""


def unplug(runner: Runner) -> None:
    set_carrier(_cable(runner), "down")


def plug_in(runner: Runner) -> None:
    set_carrier(_cable(runner), "up")


def limit_disk(runner: Runner, path: str, size_bytes: int) -> None:
    _inside(runner, _LIMIT, f"limiting {path} to {size_bytes} bytes", path, str(size_bytes))


def unlimit_disk(runner: Runner, path: str) -> None:
    mounted = runner.exec(["findmnt", "--noheadings", "--output=SOURCE", "--mountpoint", path])
    if "fleetctl-lab-disk" not in mounted.stdout:
        raise LabError(f"{runner.box.name}: {path} has no limit")
    _inside(runner, _UNLIMIT, f"removing the limit of {path}", path)


def _cable(runner: Runner) -> str:
    cable = runner.cable(runner.running_leader())
    if cable is None:
        raise LabError(f"{runner.box.name}: its network cable cannot be found")
    return cable


def _inside(runner: Runner, script: str, doing: str, *arguments: str) -> None:
    result = runner.exec(["sh", "-c", script, "sh", *arguments])
    if result.returncode != 0:
        raise LabError(f"{runner.box.name}: {doing}: {result.stderr.strip()}")
