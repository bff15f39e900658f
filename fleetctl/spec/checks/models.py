"""Checks of ``models``, and of arguments and environment wherever they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleetctl.spec.checks.flags import container_reason, flag, key_instead
from fleetctl.spec.checks.view import View
from fleetctl.spec.problems import Path, Problem, did_you_mean, holds_secret, looks_secret, shown

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_QUANTISATION = re.compile(r":[A-Za-z0-9][\w.-]*$")  # of a repository of .gguf files, as llama.cpp takes it
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def weights(view: View) -> Iterator[Problem]:
    """Weights are an absolute path on the boxes or a hub id; only a hub id has a revision, or a quantisation."""
    for model in view.mapping("models"):
        path: Path = ("models", model, "weights")
        value = view.text(*path)
        if value is None:
            continue
        named = _QUANTISATION.sub("", value) if view.text("models", model, "runtime") == "llama.cpp" else value
        if not value.startswith("/") and not _HUB_ID.fullmatch(named):
            hint = "; a path begins with /" if value[:1] in ("~", ".") else ""
            yield view.problem(
                path, f"{shown(value)} is neither a path on the boxes nor a hub id such as org/name{hint}"
            )
        elif _CONTROL.search(value):
            yield view.problem(path, "a path has no control characters")
        elif value.startswith("/") and view.text("models", model, "revision"):
            message = f"only a hub id has a revision, and weights is the folder {shown(value)}; take this out"
            yield view.problem(("models", model, "revision"), message)


def launches(view: View) -> Iterator[Problem]:
    """A venv or program is an absolute path; an image is one word; options that fleetctl sets are not given again."""
    paths: list[Path] = [("models", model, "launch") for model in view.mapping("models")]
    paths += [("builds", build) for build in view.mapping("builds")]
    for path in paths:
        venv, image, program = (view.text(*path, key) for key in ("venv", "image", "program"))
        if venv is not None and (not venv.startswith("/") or _CONTROL.search(venv)):
            message = f"{shown(venv)} is no absolute path; systemd starts what is in VENV/bin, and a path begins with /"
            yield view.problem((*path, "venv"), message)
        if program is not None and (not program.startswith("/") or _CONTROL.search(program)):
            message = f"{shown(program)} is no absolute path; systemd starts it, and a path begins with /"
            yield view.problem((*path, "program"), message)
        if image is not None and not re.fullmatch(r"[^\s-]\S*", image):
            yield view.problem((*path, "image"), f"{shown(image)} is no image reference such as name@sha256:…")
        for where, option in view.texts(*path, "options"):
            reason = container_reason(option)
            if reason:
                yield view.problem(where, f"fleetctl sets {option.partition('=')[0]}: {reason}; take it out")


def builds(view: View) -> Iterator[Problem]:
    """A build that a model is launched from stands under ``builds``."""
    known = view.mapping("builds")
    for model in view.mapping("models"):
        build = view.text("models", model, "launch", "build")
        if build is not None and build not in known:
            hint = did_you_mean(build, known) if known else "write builds: with an entry of that name"
            yield view.problem(("models", model, "launch", "build"), f"there is no build {shown(build)}; {hint}")


def served_names(view: View) -> Iterator[Problem]:
    """A name in ``served_as`` is one word and stands there once."""
    for model in view.mapping("models"):
        seen: set[str] = set()
        for where, name in view.texts("models", model, "served_as"):
            if not re.fullmatch(r"[\w./:@+-]{1,200}", name):
                yield view.problem(
                    where, f"{shown(name)} is no name for clients; use letters, digits and . / : @ + - _"
                )
            elif name in seen:
                yield view.problem(where, f"{shown(name)} is already in this list; keep one")
            seen.add(name)


def limits(view: View) -> Iterator[Problem]:
    """Time limits of a model are more than 0."""
    for model in view.mapping("models"):
        for key in ("load_limit", "stop_limit"):
            if view.duration("models", model, key) == 0:
                yield view.problem(("models", model, key), "a limit of 0 leaves the engine no time; write like 15m")


def weights_units(view: View) -> Iterator[Problem]:
    """``weights_size`` has a unit."""
    for model in view.mapping("models"):
        size, written = view.size("models", model, "weights_size"), view.get("models", model, "weights_size")
        if isinstance(written, int) and size is not None and size < 1024:
            hint = f"; did you mean {written}GiB?" if written else "; take it out to have it measured"
            yield view.problem(("models", model, "weights_size"), f"{written} is only {size} bytes{hint}")


def measured(view: View) -> Iterator[Problem]:
    """What was measured was measured on a box that exists."""
    boxes = view.mapping("boxes")
    for model in view.mapping("models"):
        for box in view.mapping("models", model, "measured"):
            if boxes and box not in boxes:
                message = f"there is no box {shown(box)}; {did_you_mean(box, boxes)}, or take it out"
                yield view.problem(("models", model, "measured", box), message, key=True)


def arguments(view: View) -> Iterator[Problem]:
    """Arguments are one word each, hold no secret, and do not set what a key of fleet.yaml sets."""
    for base, parallel in _engine_parts(view):
        runtime = view.text("models", str(base[1] if base[0] == "models" else base[2]), "runtime") or "vllm"
        for where, argument in view.texts(*base, "arguments"):
            name = flag(argument, runtime) or ""
            key = key_instead(argument, parallel, runtime)
            if key:
                yield view.problem(where, f"fleetctl sets {name} itself; write it as {key}")
            elif holds_secret(argument):
                yield view.problem(where, "a secret does not belong in this file; use environment: with {env: NAME}")
            elif re.match(r"--?[A-Za-z][\w-]*\s", argument):
                yield view.problem(where, f"{name} and its value are two arguments; write them as two items")


def environments(view: View) -> Iterator[Problem]:
    """Names of environment variables are letters, digits and _; secrets among them are references."""
    for base, _ in _engine_parts(view):
        for name, value in view.mapping(*base, "environment").items():
            path: Path = (*base, "environment", name)
            if not _VARIABLE.fullmatch(name):
                yield view.problem(path, "a variable's name is letters, digits and _, not a digit first", key=True)
            if not isinstance(value, str) or not value:
                continue
            if holds_secret(value) or looks_secret(name):
                where = "write {env: NAME}, {file: PATH} or {command: [argv]}"
                inside = "" if base[0] == "models" else f" in models.{base[2]}.environment"
                yield view.problem(path, f"a secret does not belong in this file: {where}{inside}")


_OF_LORAS = {
    "--enable-lora": "loras: of the model",
    "--no-enable-lora": "loras: of the model",
    "--max-loras": "max_loras: in loras: of the model",
    "--max-lora-rank": "max_lora_rank: in loras: of the model",
    "--max-cpu-loras": "max_cpu_loras: in loras: of the model",
    "--lora-modules": "`fleetctl lora push`, which brings an adapter to every copy",
}


def loras(view: View) -> Iterator[Problem]:
    """Where a model has ``loras:``, arguments do not say the same in another way."""
    for base, _ in _engine_parts(view):
        model = base[1] if base[0] == "models" else base[2]
        if view.get("models", model, "loras") is None:
            continue
        for where, argument in view.texts(*base, "arguments"):
            instead = _OF_LORAS.get(flag(argument) or "")
            if instead:
                yield view.problem(where, f"the model has loras:, so {flag(argument)} is to be written as {instead}")


def _engine_parts(view: View) -> Iterator[tuple[Path, str | None]]:
    """Paths of the parts that have arguments and environment; with each how the engine is split, if it is."""
    placed = list(view.placements())
    for model in view.mapping("models"):
        splits = [_parallel(entry.values) for entry in placed if entry.model == model and entry.kind == "split"]
        yield ("models", model), splits[0] if splits else None
    for entry in placed:
        parallel = _parallel(entry.values) if entry.kind == "split" else None
        yield entry.path, parallel
        for seat in entry.seats:
            yield seat.path, parallel


def _parallel(values: dict[str, object]) -> str:
    return "pipeline" if values.get("parallel") == "pipeline" else "tensor"


CHECKS = (weights, launches, builds, served_names, limits, weights_units, measured, arguments, environments, loras)
