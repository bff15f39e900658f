"""Checks of ``gates``."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.spec.checks.view import View
from fleetctl.spec.problems import Path, Problem, did_you_mean, shown


def gate_times(view: View) -> Iterator[Problem]:
    """A gate has time to answer, and a prompt to answer."""
    kinds = {"completion": "2m", "tools": "15m", "long_context": "15m", "same_answers": "2m"}
    places: dict[Path, str] = {("gates", name, "within"): like for name, like in kinds.items()}
    places.update((("gates", "evaluations", at, "within"), "15m") for at in _evaluations(view))
    for path, like in places.items():
        if view.duration(*path) == 0:
            yield view.problem(path, f"0 leaves the engine no time to answer; write like {like}")
    prompt = view.text("gates", "completion", "prompt")
    if prompt is not None and not prompt.strip():
        yield view.problem(("gates", "completion", "prompt"), "an empty prompt asks nothing; write a short question")


def tested_models(view: View) -> Iterator[Problem]:
    """The models that a gate tests exist, and answer questions."""
    known = view.mapping("models")
    for place in [("gates", "tools"), *(("gates", "evaluations", at) for at in _evaluations(view))]:
        for path, name in view.texts(*place, "models"):
            if name not in known:
                yield view.problem(path, f"there is no model {shown(name)}; {did_you_mean(name, known)}")
            elif (task := view.text("models", name, "task")) not in (None, "generate"):
                yield view.problem(path, f"{name} has task: {task} and answers no question; leave it out")


def evaluated_once(view: View) -> Iterator[Problem]:
    """A file of tasks is asked of a model once."""
    seen: dict[str, list[set[str]]] = {}
    for at in _evaluations(view):
        path: Path = ("gates", "evaluations", at)
        file = view.text(*path, "file")
        if file is None:
            continue
        models = {name for _, name in view.texts(*path, "models")}
        before = seen.setdefault(file, [])
        if any(not models or not others or models & others for others in before):
            yield view.problem((*path, "file"), f"{shown(file)} is there twice for the same model; keep one")
        before.append(models)


def _evaluations(view: View) -> range:
    return range(len(view.items("gates", "evaluations")))


CHECKS = (gate_times, tested_models, evaluated_once)
