"""Files of a model that are not the same on the boxes that serve it, or not whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fleetctl.doctor.box.told import BoxTold, Files
from fleetctl.doctor.box.versions import Together, together
from fleetctl.doctor.finding import Finding, Kind, Severity
from fleetctl.doctor.scene import Scene

DIFFER = Kind(
    "B10",
    Severity.WARNING,
    "model files differ between boxes",
    "files of a model that one box has and another has not, with another size, another header (safetensors) or other "
    "words (config.json, tokenizer, chat template); with --checksums every byte is compared; an error for a split "
    "that is live",
    "Copies answer differently, and nobody knows why. The ranks of a split load parts of different models, or one of "
    "them does not start.",
    "`fleetctl weights push MODEL --from BOX` sends what differs from the box that is right",
    "the files' own sizes, headers and words",
)
BROKEN = Kind(
    "B11",
    Severity.ERROR,
    "weights are not whole",
    "safetensors files that are shorter than their header says, and files that the folder's index names and that are "
    "not there",
    "The engine that loads them does not start, or starts with noise in it.",
    "`fleetctl weights push MODEL` sends what is missing from a box that has it",
    "safetensors; model.safetensors.index.json",
)
KINDS = (DIFFER, BROKEN)
SHOWN = 4
_WORDS = (".json", ".jinja", ".txt", ".py", ".model", ".tiktoken", ".vocab")


def find(scene: Scene, seen: Mapping[str, BoxTold]) -> Iterator[Finding]:
    """Findings of all boxes."""
    for box, told in seen.items():
        for folder, files in told.models.items():
            if files is not None and files.broken:
                whole = [one for one in seen if (same := seen[one].models.get(folder)) and not same.broken]
                yield BROKEN.found(
                    box,
                    folder,
                    f"the weights in {folder} are not whole: {files.broken[0]}",
                    *files.broken[:5],
                    fix=_again(model_of(scene, folder), folder, box, whole),
                )
    compared: set[tuple[str, frozenset[str]]] = set()
    for group in together(scene):
        folder = group.engine.weights
        there = {box: files for box in group.boxes if box in seen and (files := seen[box].models.get(folder))}
        key = (folder, frozenset(there))
        if len(there) > 1 and key not in compared:
            compared.add(key)
            yield from _compared(scene, group, folder, there)


def _compared(scene: Scene, group: Together, folder: str, there: Mapping[str, Files]) -> Iterator[Finding]:
    """Each box against the first of the group."""
    base, *others = there
    for box in others:
        told = differences(base, there[base].files, box, there[box].files)
        commits = [there[base].commit[:12], there[box].commit[:12]]
        if told and commits[0] != commits[1]:
            told.insert(0, f"commit {commits[0]} is on {base} and {commits[1]} on {box}")
        if told:
            yield differ(scene, group, folder, (base, box), told)


def differ(scene: Scene, group: Together, folder: str, two: tuple[str, str], told: list[str]) -> Finding:
    """The finding for a folder of two boxes; the second is the one that it is about."""
    base, box = two
    more = f", and {len(told) - 1} more" if len(told) > 1 else ""
    return DIFFER.found(
        box,
        folder,
        f"{folder} is not the same on {box} as on {base}: {told[0]}{more}",
        *told[:SHOWN],
        *([f"and {len(told) - SHOWN} more"] if len(told) > SHOWN else []),
        fix=_way_out(scene, group, folder, two),
        severity=Severity.ERROR if group.split and group.live else None,
    )


def model_of(scene: Scene, folder: str) -> str:
    """The model of fleet.yaml that has these weights."""
    engines = [engine for release in (scene.live, *scene.releases) for engine in release.engines]
    return next((engine.model for engine in engines if engine.weights == folder), "MODEL")


def _again(model: str, folder: str, box: str, whole: list[str]) -> str:
    """How a box gets weights again that are not whole."""
    if whole:
        return f"`fleetctl weights push {model} --from {whole[0]} --to {box}` sends what is missing"
    if folder.startswith("/"):
        return f"`fleetctl weights pull {model} --on {box} --from ORIGIN` (a folder of your machine, or a hub id)"
    return f"`fleetctl weights pull {model} --on {box}` fetches what is missing"


def _way_out(scene: Scene, group: Together, folder: str, two: tuple[str, str]) -> str:
    base, box = two
    if not folder.startswith("/"):
        return (
            f"write revision: COMMIT, the one that is right, for model {group.engine.model} in fleet.yaml; then "
            "`fleetctl apply` fetches it"
        )
    model = group.engine.model
    return (
        f"find out which of them is right (`fleetctl weights verify {model} --full`); `fleetctl weights push {model} "
        f"--from {base} --to {box}` sends what differs, the other way round where {box} is right; then `fleetctl "
        f"restart` of the box that got it"
    )


def differences(
    base: str, one: Mapping[str, tuple[int, str]], box: str, other: Mapping[str, tuple[int, str]]
) -> list[str]:
    """What differs between the files of two boxes, a sentence each; what an answer depends on first."""
    told = []
    for name in sorted({*one, *other}, key=lambda name: (not name.endswith(_WORDS), name)):
        if name not in other:
            told.append(f"{name} is not on {box}")
        elif name not in one:
            told.append(f"{name} is on {box} alone")
        elif one[name][0] != other[name][0]:
            told.append(f"{name} has {one[name][0]:,} bytes on {base} and {other[name][0]:,} on {box}")
        elif one[name][1] != other[name][1]:
            what = "other words" if name.endswith(_WORDS) else "another header"
            told.append(f"{name} has the same size and {what} on {box}")
    return told
