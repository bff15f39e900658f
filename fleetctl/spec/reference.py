"""docs/fleet-yaml.md, written from the models and the checks.

``python -m fleetctl.spec.reference > docs/fleet-yaml.md`` brings the file up to date; a test compares the two.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fleetctl.spec.checks import CHECKS
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.part import Name, Rule
from fleetctl.spec.secret import Secret
from fleetctl.spec.units import parse_duration, parse_size
from fleetctl.spec.wants import SECRET_FORMS, described, peeled

_INTRODUCTION = """\
# fleet.yaml

One file describes the fleet: its boxes, the models it can serve, the layouts it can be in, and the proxy that clients
use. This page is written from fleetctl's own models (`python -m fleetctl.spec.reference`); `fleetctl schema` prints the
same as JSON Schema for editors, and [templates/example.yaml](../templates/example.yaml) shows every key.

- **Names** of the fleet, boxes, models, layouts and API keys: {name_rule}.
- **Sizes** are whole bytes, or a number with a unit: `71GiB`, `128GB`. `GiB` is 1024³ bytes, `GB` is 1000³.
- **Durations** are seconds, or a number with a unit: `250ms`, `90s`, `15m`, `1h`.
- **Secrets** are never in the file. It says where a secret is, and fleetctl reads it on the operator's machine:
  `{{env: NAME}}`, `{{file: PATH}}` or `{{command: [argv]}}`.
- Text that YAML would read as something else needs quotes: `"no"`, `"on"`, `"123"`, `"0777"`, `"22:30"`.
- Anchors, aliases and `<<` work. A key that is there twice is an error, and so is a key that fleetctl does not know.
- Every problem of a file is told in one pass, as `FILE:LINE:COLUMN: KEY: what is wrong; what to write`, with
  exit status 2.
"""

_HEADINGS = {"": "## The file", "a secret": "## A secret"}
_ENTRIES = {"boxes": "BOX", "models": "MODEL", "layouts": "LAYOUT", "LAYOUT": "MODEL", "copies": "BOX", "pool": "BOX"}


def reference() -> str:
    """The reference of fleet.yaml as Markdown."""
    rule = next(str(rule) for rule in peeled(Name)[1] if isinstance(rule, Rule))
    lines = [_INTRODUCTION.format(name_rule=rule.removeprefix("a name is "))]
    for path, part in _parts(Fleet, ""):
        lines += [_HEADINGS.get(path, f"## `{path}`"), "", inspect.cleandoc(part.__doc__ or ""), ""]
        lines += ["| key | write | default | meaning |", "| --- | --- | --- | --- |"]
        lines += [_row(name, field) for name, field in part.model_fields.items()]
        if part.model_config.get("extra") == "allow":
            lines.append("| … | anything | | further keys are handed on as they are |")
        lines.append("")
    lines += [
        "## Rules between parts",
        "",
        "These are checked too, each at the place in the file where it is broken.",
        "",
    ]
    lines += [f"- {(inspect.getdoc(check) or '').splitlines()[0]}" for check in CHECKS]
    return "\n".join(lines).replace("``", "`") + "\n"


def _parts(part: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every part with the path under which it first stands in the file, outermost first."""
    seen: set[type[BaseModel]] = set()
    waiting = [(path, part)]
    while waiting:
        path, part = waiting.pop(0)
        if part in seen:
            continue
        seen.add(part)
        yield path, part
        below = [
            found
            for name, field in part.model_fields.items()
            for found in _below(field.annotation, f"{path}.{name}" if path else name)
        ]
        waiting = below + waiting


def _below(want: Any, path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    want, _ = peeled(want)
    if isinstance(want, type) and issubclass(want, BaseModel):
        yield ("a secret" if want is Secret else path), want
    elif get_origin(want) is dict:
        yield from _below(get_args(want)[1], f"{path}.{_ENTRIES.get(path.rpartition('.')[2], 'NAME')}")
    elif get_origin(want) in (tuple, list):
        yield from _below(get_args(want)[0], f"{path}[]")
    else:
        for option in get_args(want):
            if option is not NoneType and not isinstance(option, str):
                yield from _below(option, path)


def _row(name: str, field: FieldInfo) -> str:
    want = _cell(_wanted(field))
    return f"| `{name}` | {want} | {_default(field)} | {_cell(field.description or '')} |"


def _wanted(field: FieldInfo) -> str:
    text = described(Annotated[field.annotation, *field.metadata, field])
    return text.replace(f"a secret by reference: {SECRET_FORMS}", "[a secret](#a-secret)")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.default
    if value is None or value == () or value == {} or isinstance(value, BaseModel):
        return ""
    if any(getattr(rule, "func", None) is parse_duration for rule in field.metadata):
        unit, seconds = next(((unit, length) for unit, length in (("h", 3600), ("m", 60)) if value >= length), ("s", 1))
        value = f"{value / seconds:g}{unit}"
    elif any(getattr(rule, "func", None) is parse_size for rule in field.metadata):
        value = f"{value / 2**30:g}GiB" if value >= 2**30 else f"{value / 2**20:g}MiB"
    elif isinstance(value, bool):
        value = str(value).lower()
    return f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")
