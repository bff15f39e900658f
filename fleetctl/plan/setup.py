"""From what a box is like and what it shall be to the parts of its setup. Nothing here knows whether a part is so."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from fleetctl.facts.setup import SetupFacts
from fleetctl.plan.setup_link import link_drafts
from fleetctl.plan.setup_wish import Draft, Remark, Wish
from fleetctl.spec.units import gib

SUDOERS = "/etc/sudoers.d/fleetctl"
SUDOERS_HEAD = "# Made by fleetctl setup: what it allows, and what that is worth, is in fleetctl's docs/security.md."
EARLYOOM = "/etc/systemd/system/earlyoom.service.d/fleetctl.conf"
VENV_NEED = 14 << 30
"""Bytes that an environment with vLLM and its CUDA libraries takes, with what pip unpacks beside it."""

IMAGE_LIMIT = 3600.0  # seconds; an image has 10 GB and more
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\$?")


def drafts(box: str, wish: Wish, facts: SetupFacts) -> list[Draft | Remark]:
    """The parts of a box in the order in which they are made."""
    found: list[Draft | Remark] = []
    for family in (_key, _packages, _sudo, link_drafts, _earlyoom, _engine, _guard):
        found += family(box, wish, facts)
    return found


def _key(box: str, wish: Wish, facts: SetupFacts) -> Iterator[Draft | Remark]:
    if wish.key is None:
        return
    if facts.keys_trouble is not None:
        yield Remark(box, "key", facts.keys_trouble)
        return
    words = wish.key.split()
    part = {"part": f"key of {facts.user}", "kind": "key", "user": facts.user, "line": wish.key}
    shown = f"{words[0]} …{words[1][-12:]} {' '.join(words[2:])}".rstrip()
    yield Draft(box, "key", part, (f"{facts.user} accepts your key", f"~{facts.user}/.ssh/authorized_keys: {shown}"))


def _packages(box: str, wish: Wish, facts: SetupFacts) -> Iterator[Draft | Remark]:
    wanted = [name for name in wish.packages() if name != "earlyoom"]
    makes = any(not facts.venvs[path].there and package in wish.versions for path, (package, _) in wish.venvs.items())
    if "python3-venv" in wanted and (facts.venv_module or not makes):
        wanted.remove("python3-venv")
    if not wanted:
        return
    if facts.manager != "apt":
        there = {"nftables": True, **facts.programs}
        missing = [name for name in wanted if not there.get(name)]
        if missing:
            how = f"{facts.manager} {' '.join(missing)}" if facts.manager else f"install {' '.join(missing)}"
            yield Remark(box, "packages", f"{facts.system} has no apt: on {box}, as root: {how}")
        return
    off = [f"{name}.service" for name in ("haproxy", "keepalived", "nats-server") if name in wanted]
    part = {"part": "packages", "kind": "things", "packages": wanted, "off": off}
    yield Draft(box, "packages", part, (f"installed: {' '.join(wanted)}", *_offers(wanted, facts), *_off(off, facts)))


def _offers(names: list[str], facts: SetupFacts) -> list[str]:
    """What apt says that it would do."""
    lines = []
    for name in names:
        offer = facts.offers.get(name)
        if offer is not None and offer.unknown:
            lines.append(f"apt-get update, then apt-get install --no-install-recommends {name}")
        elif offer is not None:
            lines.append(f"apt-get install --no-install-recommends {name}: brings {' '.join(offer.new)}. {offer.size}")
    return lines


def _off(units: list[str], facts: SetupFacts) -> list[str]:
    new = [unit for unit in units if facts.packages.get(unit.removesuffix(".service")) is None]
    return [f"systemctl disable --now {' '.join(new)}: fleetctl brings units of its own"] if new else []


def _sudo(box: str, wish: Wish, facts: SetupFacts) -> Iterator[Draft | Remark]:
    user = facts.user
    if user == "root":
        yield Remark(box, "sudo", f"you log in as root on {box}: there is nothing to limit")
        return
    why = None
    if facts.sudo is None:
        why = "there is no sudo"
    elif not facts.includes:
        why = "/etc/sudoers does not include /etc/sudoers.d"
    elif facts.rules is not None and not facts.rules.startswith(SUDOERS_HEAD):
        why = f"{SUDOERS} is there and is not fleetctl's"
    elif _USER.fullmatch(user) is None:
        why = f"the name {user} cannot be written in sudoers"
    if why is not None:
        yield Remark(box, "sudo", f"{why}: nothing was written")
        return
    text = sudoers(user, wish.program, wish.program_sha256, facts.rules, digests="sudo-rs" not in (facts.sudo or ""))
    program = {"path": wish.program, "mode": 0o755, "sha256": wish.program_sha256}
    rule = {"path": SUDOERS, "mode": 0o440, "content": text, "verify": ["visudo", "-cqf"]}
    lines = [f"{user} runs fleetctl's program without a password, and nothing else by this rule"]
    lines += [f"{wish.program}: the program, owned by root, the same bytes as in this fleetctl"]
    lines += [f"{SUDOERS}: {line}" for line in text.splitlines() if not line.startswith("#")]
    lines += ["an account that may deploy engines can become root by way of one: docs/security.md"]
    sweep = {"pattern": f"{wish.program.rpartition('-')[0]}-*", "named_in": SUDOERS}
    part = {"part": "sudo", "kind": "things", "files": [program, rule], "sweep": sweep}
    yield Draft(box, "sudo", part, tuple(lines))


def sudoers(user: str, program: str, sha256: str, before: str | None, *, digests: bool) -> str:
    """The text of the rules: this user's for this program, and those of others as they are.

    ``digests``: sudo checks the program's SHA-256 before it runs it; sudo-rs cannot.
    """
    others = [line for line in (before or "").splitlines() if line and not line.startswith(("#", f"{user} "))]
    digest = f"sha256:{sha256} " if digests else ""
    lines = [SUDOERS_HEAD, *others, f"{user} ALL=(root) NOPASSWD: {digest}{program}"]
    return "\n".join(lines) + "\n"


def _earlyoom(box: str, wish: Wish, facts: SetupFacts) -> Iterator[Draft | Remark]:
    if wish.guard:
        yield Remark(box, "earlyoom", "left out: the guard that fleet.yaml wants does this, and two would act at once")
        return
    if facts.packages.get("earlyoom") is not None and "earlyoom" not in facts.record:
        yield Remark(box, "earlyoom", "it is there already, as somebody configured it: it is left alone")
        return
    if facts.manager != "apt":
        return
    found = re.match(r"(?:\d+:)?(\d+)\.(\d+)", facts.earlyoom or "")
    if found is None:
        yield Remark(box, "earlyoom", "left out: apt there does not know it; after `apt-get update` it may")
        return
    if (int(found[1]), int(found[2])) < EARLYOOM_IGNORES:
        text = f"left out: {facts.earlyoom} would end engines first, and only 1.8 can be told not to; `guard: {{}}` in"
        yield Remark(box, "earlyoom", f"{text} fleet.yaml brings a guard, which does that work (docs/guard.md)")
        return
    part = {
        "part": "earlyoom",
        "kind": "things",
        "packages": ["earlyoom"],
        "files": [{"path": EARLYOOM, "mode": 0o644, "content": EARLYOOM_TEXT}],
        "after": [
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable", "earlyoom.service"],
            ["systemctl", "restart", "earlyoom.service"],
        ],
        "back": [["systemctl", "daemon-reload"]],
    }
    lines = ("earlyoom ends other programs before memory runs out", *_offers(["earlyoom"], facts))
    yield Draft(box, "earlyoom", part, (*lines, f"{EARLYOOM}: it leaves engines, SSH and the proxy alone"))


EARLYOOM_IGNORES = (1, 8)
"""First version with --ignore. With --avoid alone an engine, which has the most memory and OOMScoreAdjust=500, still
is the first to be ended."""

EARLYOOM_TEXT = """# Made by fleetctl setup; `fleetctl teardown` takes it away.
# An engine is the largest program of its box and would be the first to go. Its unit has a ceiling of its own
# (MemoryMax=); what is ended here is what else has grown.
[Service]
ExecStart=
ExecStart=/usr/bin/earlyoom -r 3600 -m 3 -s 100 --ignore "^(vllm|VLLM::.*|sshd|haproxy|keepalived|systemd.*)$"
"""


def _engine(box: str, wish: Wish, facts: SetupFacts) -> Iterator[Draft | Remark]:
    for path in wish.venvs:
        if facts.venvs[path].version is None and facts.venvs[path].program:
            continue  # an engine that pip does not know of: built there, or bound in from elsewhere
        yield _venv(box, wish, facts, path)
    for engine, image in wish.images:
        if not facts.programs.get(engine) and not facts.images.get(image):
            yield Remark(box, "engine", f"{engine} is not installed, so {image} cannot be pulled")
            continue
        part = {"part": f"image {image}", "kind": "image", "engine": engine, "image": image, "limit": IMAGE_LIMIT}
        pinned = (
            () if "@sha256:" in image else ("it is not pinned: write image: NAME@sha256:… to have the same always",)
        )
        yield Draft(box, "engine", part, (f"image {image}", f"{engine} pull {image}", *pinned))


def _venv(box: str, wish: Wish, facts: SetupFacts, path: str) -> Draft | Remark:
    package, program = wish.venvs[path]
    seen, version = facts.venvs[path], wish.versions.get(package)
    if seen.there and seen.version is not None and version not in (None, seen.version):
        text = f"{path} has {package} {seen.version}: another version belongs into a path of its own"
        return Remark(box, "engine", text)
    mine = path in {one.get("made") for one in facts.record.values()}
    if seen.there and seen.version is None and not mine:
        return Remark(box, "engine", f"{path} is there and has no {package} in it: it is left alone")
    if seen.version is None and version is None:
        return Remark(
            box, "engine", f"{path} is not there yet: --engine {package}==VERSION makes it, with exactly that"
        )
    if seen.version is None and seen.free < VENV_NEED:
        text = f"{path} needs about {gib(VENV_NEED)}, and {gib(seen.free)} are free there: nothing was done"
        return Remark(box, "engine", text)
    part = {
        "part": f"environment {path}",
        "kind": "venv",
        "path": path,
        "package": package,
        "program": program,
        "version": version or seen.version,
        "need": VENV_NEED,
    }
    lines = [f"{path} has {package} {part['version']}", f"python3 -m venv {path}"]
    lines += [f"{path}/bin/python -m pip install {package}=={part['version']}"]
    lines += [f"about {gib(VENV_NEED)} of the {gib(seen.free)} that are free there"]
    return Draft(box, "engine", part, tuple(lines))


def _guard(box: str, wish: Wish, facts: SetupFacts) -> Iterator[Remark]:
    if wish.guard:
        yield Remark(box, "guard", "comes with the next cutover; where a layout is live: fleetctl guard install")


def digest_of(program: bytes) -> str:
    """SHA-256 of the program in hex, as sudoers names it."""
    return hashlib.sha256(program).hexdigest()
