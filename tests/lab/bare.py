"""Boxes that have nothing but sshd, sudo and python3, and a mirror of Debian packages that they can reach."""

from __future__ import annotations

import difflib
import functools
import http.server
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from moving import FLEETCTL, Ran, Running
from places import BASE, worker

from fleetctl.lab import rootfs
from fleetctl.lab.engines import bring_up
from fleetctl.lab.lab import Lab

OPERATOR = "operator"
"""The login user of the lab whose sudo asks for a password."""

PACKAGES = ("haproxy", "keepalived", "python3-venv", "ifupdown", "netplan.io", "network-manager")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
NEWER = f"deb [signed-by={KEYRING}] http://deb.debian.org/debian trixie main\n"
"""Where earlyoom comes from, for that of Debian 12 cannot be told to leave engines alone."""

MISSING = ("haproxy", "keepalived")  # of the usual base
BARE = tuple(name for name in rootfs.PACKAGES if name not in MISSING)
LINK = "link0"
"""The interface of the direct link, a cable between the boxes that the test puts in."""

# Everything of /etc and of the users' keys, and which packages there are. Of passwd and its kin useradd and userdel
# keep a copy, and ld.so has a cache: both change with every package.
_LISTING = r"""
find /etc /home /usr/local /root/.ssh -xdev \( -type f -o -type l -o -type d \) \
  ! -name 'passwd-' ! -name 'group-' ! -name 'shadow-' ! -name 'gshadow-' ! -name 'sub?id-' ! -name ld.so.cache \
  -printf '%p %y %m %u %g %l\n' | sort
find /etc /home /usr/local /root/.ssh -xdev -type f ! -name '*-' ! -name ld.so.cache -exec sha256sum {} + | sort
dpkg-query -W -f '${Package} ${db:Status-Status}\n' | sort
ip -brief address | awk '{$2=""; print}'
ls /var/lib/fleetctl /etc/fleetctl 2>&1
systemctl list-unit-files --no-legend --state=enabled | sort
"""


@dataclass
class Bare:
    """Two bare boxes, and the fleet.yaml with which an operator comes to them."""

    lab: Lab
    folder: Path
    fleet: Path
    url: str = ""

    def renew(self) -> None:
        """Boxes as they were when the lab came up."""
        self.lab.reset()
        for box in self.lab.boxes():
            prepare(self, box.name)
        cable(self)

    def run(self, *words: str, ok: bool = True, fleet: Path | None = None, **env: str) -> Ran:
        """A command to its end."""
        ran = self.start(*words, fleet=fleet, **env).finish()
        assert ran.rc == 0 or not ok, str(ran)
        return ran

    def start(self, *words: str, fleet: Path | None = None, **env: str) -> Running:
        """Begin a command."""
        argv = [FLEETCTL, *words, "-f", str(fleet or self.fleet), "--json"]
        return Running(argv, {**os.environ, "LAB_PASSWORD": rootfs.OPERATOR_PASSWORD, **env})

    def on(self, box: str, script: str) -> str:
        """What a shell says on a box, without SSH. It has to succeed."""
        done = self.lab.exec(box, ["sh", "-c", script])
        assert done.returncode == 0, f"{script}: {done.stdout}{done.stderr}"
        return done.stdout

    def listing(self, box: str) -> str:
        """The box as far as setup could have changed it."""
        return self.on(box, _LISTING)

    def changed(self, before: Mapping[str, str]) -> list[str]:
        """Lines in which boxes differ from what they were."""
        found = []
        for box, told in before.items():
            lines = difflib.unified_diff(told.splitlines(), self.listing(box).splitlines(), lineterm="", n=0)
            found += [f"{box}: {line}" for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
        return found

    def write(self, name: str, change: Any = None) -> Path:
        """A fleet.yaml like the usual one, changed by a function."""
        told = yaml.safe_load(self.fleet.read_text())
        if change is not None:
            change(told)
        path = self.folder / name
        path.write_text(json.dumps(told))
        return path


def cable(bare: Bare) -> None:
    """A second network between the boxes, as the direct link is: an interface on each, without an address."""
    ends = [str(bare.lab._runner(box).running_leader()) for box in bare.lab.boxes()]
    words = [
        "ip",
        "link",
        "add",
        "name",
        LINK,
        "netns",
        ends[0],
        "type",
        "veth",
        "peer",
        "name",
        LINK,
        "netns",
        ends[1],
    ]
    subprocess.run(words, check=True)


def with_link(second: str = "192.168.100.2") -> Callable[[dict[str, Any]], None]:
    """A change of fleet.yaml: both boxes have an end of the link."""

    def change(told: dict[str, Any]) -> None:
        for box, address in zip(told["boxes"].values(), ("192.168.100.1", second), strict=True):
            box |= {"interface": LINK, "link": address}

    return change


def mirror_folder() -> Path:
    """Packages that the boxes lack, with what they need, fetched from Debian once."""
    folder = BASE.with_name("debs")
    if (folder / "Packages").exists():
        return folder
    (folder / "partial").mkdir(parents=True, exist_ok=True)
    base = rootfs.ensure(BASE.with_name("bare"), print, BARE)
    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    options = {
        "Dir::State::status": base / "var/lib/dpkg/status",
        "Dir::State::lists": lists,
        "Dir::Etc::sourcelist": base / "etc/apt/sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Cache::archives": folder,
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "Debug::NoLocking": "1",
    }
    apt = ["apt-get", "-q", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
    subprocess.run([*apt, "update"], check=True)
    for name in PACKAGES:
        subprocess.run([*apt, "install", "-y", "--download-only", "--no-install-recommends", name], check=True)
    subprocess.run([*apt, "download", "python3", "python3-minimal"], cwd=folder, check=True)
    (folder / "newer.list").write_text(NEWER)
    newer = [*apt, "-o", f"Dir::Etc::sourcelist={folder}/newer.list"]
    subprocess.run([*newer, "update"], check=True)
    subprocess.run([*newer, "download", "earlyoom"], cwd=folder, check=True)
    index = subprocess.run(["dpkg-scanpackages", "."], cwd=folder, check=True, capture_output=True, text=True)
    (folder / "Packages").write_text(index.stdout)
    return folder


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing: the test's output is the test's."""


@contextmanager
def served(folder: Path, address: str) -> Iterator[str]:
    """A folder over HTTP; its URL."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer((address, 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{address}:{server.server_port}"
        server.shutdown()


@contextmanager
def bare_boxes(folder: Path) -> Iterator[Bare]:
    """Two boxes as somebody has just installed them, whose apt knows the mirror."""
    net = 50 + worker()
    lab = Lab(
        Path(f"/var/lib/fleetctl-test-bare{worker()}"),
        bridge=f"fleetbare{worker()}",
        subnet=f"10.79.{net}.0/24",
        link_subnet=f"10.80.{net}.0/24",
        base=BASE.with_name("bare"),
        packages=BARE,
    )
    try:
        bring_up(lab, 2, "standin", lambda line: None, speed=20)
        with served(mirror_folder(), str(lab.bridge.host_address)) as url:
            bare = Bare(lab, folder, folder / "fleet.yaml", url)
            bare.fleet.write_text(_fleet_text(lab))
            for box in lab.boxes():
                prepare(bare, box.name)
            cable(bare)
            yield bare
    finally:
        lab.down()


def prepare(bare: Bare, box: str) -> None:
    """What a box has when an operator comes: a mirror for apt, and no key of his in the file of his login user."""
    bare.on(box, "rm -f /etc/apt/sources.list /etc/apt/sources.list.d/* /etc/sudoers.d/fleetctl-lab")
    bare.on(box, f"echo 'deb [trusted=yes] {bare.url} ./' > /etc/apt/sources.list")
    bare.on(box, f"echo '{OPERATOR} ALL=(ALL:ALL) ALL' > /etc/sudoers.d/people; chmod 440 /etc/sudoers.d/people")


def _fleet_text(lab: Lab) -> str:
    """The lab's file, for the user whose sudo asks; the password is a reference."""
    told = yaml.safe_load(lab.fleet_file.read_text())
    for box in told["boxes"].values():
        box["ssh"] |= {"user": OPERATOR, "sudo_password": {"env": "LAB_PASSWORD"}}
        for key in ("link", "interface"):
            del box[key]
    told["models"]["standin"]["environment"]["STANDIN_LOAD_SECONDS"] = "0.5"
    return json.dumps(told)
