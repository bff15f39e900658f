"""New entries in the text of a fleet.yaml, and nothing else in it: comments, order and form stay.

They go behind the last entry of their section. Afterwards the text is read again: one that says anything else of what
was there before is refused and not returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml

from fleetctl.errors import SpecError
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.load import parse_fleet
from fleetctl.spec.syntax import compose

Sections = Mapping[str, Mapping[str, Sequence[str]]]
"""Section (``boxes``, ``models``, ``layouts``) → name → the lines of its entry, without indentation."""


def with_entries(text: str, sections: Sections, superseded: Sequence[str] = (), source: str = "fleet.yaml") -> str:
    """The text with new entries, and with units that must not run beside fleetctl's.

    Raises SpecError when the file is not one that is understood, when the entries do not fit it, or when it cannot be
    edited without changing something else.
    """
    before = parse_fleet(text, source)
    edited = text
    for section, entries in sections.items():
        for name, lines in entries.items():
            edited = _with_entry(edited, section, name, lines)
    for unit in superseded:
        edited = _with_unit(edited, unit)
    after = parse_fleet(edited, f"{source} with what is imported")
    if _without(after, sections, superseded) != before:
        raise SpecError(
            f"{source} cannot be edited without changing something else in it (an &anchor is used in several places?)",
            hint="import without --into, and put what it prints into the file yourself",
        )
    return edited


def _without(after: Fleet, sections: Sections, superseded: Sequence[str]) -> Fleet:
    kept = {
        section: {name: value for name, value in getattr(after, section).items() if name not in entries}
        for section, entries in sections.items()
    }
    rest = after.superseded[: len(after.superseded) - len(superseded)]
    return after.model_copy(update={**kept, "superseded": rest})


def _with_entry(text: str, section: str, name: str, lines: Sequence[str]) -> str:
    node = _section(text, section)
    if node is None:
        return _with_section(text, [f"{section}:", f"  {name}:", *(f"    {line}" for line in lines)])
    if not isinstance(node, yaml.MappingNode) or not node.value:
        raise SpecError(f"{section}: is not written out in fleet.yaml")
    first = node.value[0][0]
    if node.flow_style:
        return _in_flow(text, node, "\n".join([f"{name}:", *(f"  {line}" for line in lines)]))
    indent = " " * first.start_mark.column
    return _inserted(text, node, [f"{indent}{name}:", *(f"{indent}  {line}" for line in lines)])


def _with_unit(text: str, unit: str) -> str:
    node = _section(text, "superseded")
    if node is None:
        return _with_section(text, ["superseded:", f"  - {unit}"])
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise SpecError("superseded: is not written out in fleet.yaml")
    if node.flow_style:
        place = node.value[-1].end_mark.index
        return f"{text[:place]}, {unit}{text[place:]}"
    return _inserted(text, node, [f"{' ' * node.start_mark.column}- {unit}"])


def _section(text: str, key: str) -> yaml.Node | None:
    root = compose(text, "fleet.yaml")
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    return next((value for name, value in pairs if name.value == key), None)


def _last_line(node: yaml.Node) -> int:
    """The line on which the last thing of a node stands, from 0."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        name, value = node.value[-1]
        return max(int(name.end_mark.line), _last_line(value))
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return _last_line(node.value[-1])
    block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    return int(node.end_mark.line) - (1 if block and node.end_mark.column == 0 else 0)


def _inserted(text: str, node: yaml.Node, new: list[str]) -> str:
    """New lines behind the last one of a section, and behind comments that still belong to it."""
    ending = "\r\n" if "\r\n" in text else "\n"
    lines = text.split(ending)
    at = _last_line(node) + 1
    column = len(new[0]) - len(new[0].lstrip())
    while at < len(lines) and lines[at].lstrip().startswith("#"):
        if len(lines[at]) - len(lines[at].lstrip()) < max(1, column):
            break
        at += 1
    return ending.join([*lines[:at], *new, *lines[at:]])


def _in_flow(text: str, node: yaml.MappingNode, entry: str) -> str:
    """A mapping in braces with one more entry, which loses its comments there."""
    flow = yaml.safe_dump(yaml.safe_load(entry), default_flow_style=True, width=10**9, sort_keys=False).strip()
    place = node.value[-1][1].end_mark.index
    return f"{text[:place]}, {flow[1:-1]}{text[place:]}"


def _with_section(text: str, new: list[str]) -> str:
    """A section that was not there, at the end."""
    root = compose(text, "fleet.yaml")
    if isinstance(root, yaml.MappingNode) and root.flow_style:
        return _in_flow(text, root, "\n".join(new))
    ending = "\r\n" if "\r\n" in text else "\n"
    gap = "" if text.endswith(ending) else ending
    return text + gap + ending + ending.join(new) + ending
