"""What the shell completes: boxes, models, layouts and engines, as the fleet's file names them.

Completion runs at every press of the key, so the file is read as plain YAML and not checked; with no file, or one that
cannot be read, nothing is offered.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from fleetctl.cli.options import DEFAULT_FLEET


def _tree(context: typer.Context) -> dict[str, Any]:
    import yaml

    file = Path(context.params.get("fleet") or DEFAULT_FLEET)
    try:
        tree = yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _part(tree: Any, name: str) -> dict[str, Any]:
    part = tree.get(name) if isinstance(tree, dict) else None
    return {str(key): value for key, value in part.items()} if isinstance(part, dict) else {}


def _begun(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})


def boxes(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the boxes."""
    return _begun(_part(_tree(context), "boxes"), incomplete)


def models(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the models."""
    return _begun(_part(_tree(context), "models"), incomplete)


def builds(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the builds that an engine can be started from."""
    return _begun(_part(_tree(context), "builds"), incomplete)


def layouts(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the layouts."""
    return _begun(_part(_tree(context), "layouts"), incomplete)


def subjects(context: typer.Context, incomplete: str) -> list[str]:
    """What names an engine in a command: a model, a box, or LAYOUT/MODEL."""
    tree = _tree(context)
    layouts = _part(tree, "layouts")
    engines = (f"{layout}/{model}" for layout in layouts for model in _part(layouts, layout))
    return _begun([*_part(tree, "boxes"), *_part(tree, "models"), *engines], incomplete)


def codes(incomplete: str) -> list[str]:
    """Codes that ``fleetctl explain`` knows."""
    from fleetctl.doctor.explain import known

    return _begun(known(), incomplete)


def playbooks(incomplete: str) -> list[str]:
    """Names of the playbooks that come with fleetctl."""
    from fleetctl.plan.shipped import shipped

    return _begun(shipped(), incomplete)


def profiles(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the profiles and the ready entries: files are called as they are."""
    from fleetctl.errors import SpecError
    from fleetctl.profiles.folders import ENTRIES, SHIPPED, own_folders

    try:
        own = own_folders(context.params.get("profiles"), Path(context.params.get("fleet") or DEFAULT_FLEET))
    except SpecError:
        own = []
    return _begun((path.stem for folder in [*own, SHIPPED, ENTRIES] for path in folder.glob("*.yaml")), incomplete)
