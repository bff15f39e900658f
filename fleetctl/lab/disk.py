"""The disk of one box: a writable layer over the shared base, or a plain copy where overlays are refused."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from fleetctl.errors import LabError
from fleetctl.lab.command import run
from fleetctl.lab.mounts import mounts_under, unmount_under
from fleetctl.lab.requirements import Say


@dataclass(frozen=True)
class Disk:
    """Folders of one box: ``folder``/upper and /work hold its changes, /rootfs is what it boots from."""

    folder: Path

    @property
    def rootfs(self) -> Path:
        return self.folder / "rootfs"

    @property
    def _complete_copy(self) -> Path:
        return self.folder / "copied"

    def ready(self, base: Path, say: Say) -> None:
        """Make ``rootfs`` usable; safe to repeat, also after the machine was restarted."""
        self.rootfs.mkdir(parents=True, exist_ok=True)
        if mounts_under(self.rootfs) or self._complete_copy.exists():
            return
        upper, work, lower_file = self.folder / "upper", self.folder / "work", self.folder / "base"
        # An upper layer belongs to the base it was written over: a newer base is for boxes that start afresh.
        lower = Path(lower_file.read_text()) if lower_file.exists() else base
        if not lower.is_dir():
            raise LabError(
                f"the base system {lower} of the box in {self.folder} is gone",
                hint="Start the box afresh: fleetctl lab reset",
            )
        upper.mkdir(exist_ok=True)
        work.mkdir(exist_ok=True)
        lower_file.write_text(str(lower))
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        mount = subprocess.run(
            ["mount", "-t", "overlay", "fleetctl-lab", "-o", options, str(self.rootfs)],
            capture_output=True,
            text=True,
            check=False,
        )
        if mount.returncode == 0:
            return
        say(f"overlay mount refused ({mount.stderr.strip()}): copying the base to {self.rootfs} instead")
        shutil.rmtree(self.rootfs)
        run(["cp", "-a", "--reflink=auto", str(base), str(self.rootfs)], doing=f"copying {base}")
        self._complete_copy.touch()

    def unmount(self) -> None:
        unmount_under(self.rootfs)

    def discard(self) -> None:
        """Throw away everything the box has written; keys beside it stay."""
        self.unmount()
        if mounts_under(self.folder):
            raise LabError(f"something is still mounted under {self.folder}: nothing was removed")
        self._complete_copy.unlink(missing_ok=True)
        (self.folder / "base").unlink(missing_ok=True)
        for part in ("rootfs", "upper", "work"):
            if (self.folder / part).exists():
                shutil.rmtree(self.folder / part)
