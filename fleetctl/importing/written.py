"""Entries as the text of fleet.yaml, with comments on what is assumed and where secrets were."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import yaml

from fleetctl.engine.runtimes.flags import split_flags
from fleetctl.importing.entries import Entries, Placing, Seat
from fleetctl.importing.found import FoundBox, FoundModel, Setting

MEMORY, RESERVE = "128GB", "16GB"
_ORDER = (
    "weights", "revision", "served_as", "context", "kv_cache_dtype", "speculative", "task", "launch", "load_limit",
    "stop_limit",
)  # fmt: skip
_LONG = 80  # columns of a list on one line


class _OneLine(yaml.SafeDumper):
    """Text with line breaks in it is written with escapes, so that it stays on its line."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    breaks = any(mark in text for mark in "\n\r\x85\u2028\u2029")
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if breaks else None)


_OneLine.add_representer(str, _text)


def document(made: Entries, source: str) -> str:
    """All entries as one text, to be put into a fleet.yaml by hand."""
    lines = [f"# {_comment(f'Entries for fleet.yaml, from {source} ({made.kind}).')}"]
    for section, found in sections(made).items():
        lines += ["", f"{section}:"]
        for name, entry in found.items():
            lines += [f"  {name}:", *(f"    {line}" for line in entry)]
    if made.placings and not made.placed:
        lines += ["", "# On which boxes it runs is not known; for example:", "# layouts:", f"#   {made.layout}:"]
        for placing in made.placings:
            lines += [f"#     {placing.model}:", *(f"#       {line}" for line in _placing(_sketch(placing)))]
    if made.superseded:
        lines += ["", "superseded:", *(f"  - {line}" for line in superseded(made))]
    if made.proxy:
        lines += ["", "# The proxy that was there had these; fleetctl's own defaults are made for engines:", "# proxy:"]
        lines += [
            f"#   {key}: {_value(setting.value)}  # {_comment(setting.remark)}" for key, setting in made.proxy.items()
        ]
    return "\n".join(lines) + "\n"


def sections(made: Entries) -> dict[str, dict[str, list[str]]]:
    """Section → name → the lines of its entry."""
    found = {
        "boxes": {name: _box(box) for name, box in made.boxes.items()},
        "models": {name: _model(model) for name, model in made.models.items()},
        "layouts": {},
    }
    if made.placed:
        lines = []
        for placing in made.placings:
            lines += [f"{placing.model}:", *(f"  {line}" for line in _placing(placing))]
        found["layouts"] = {made.layout: lines}
    return {section: entries for section, entries in found.items() if entries}


def superseded(made: Entries) -> list[str]:
    """The units that must not run beside fleetctl's."""
    return list(made.superseded)


def _box(box: FoundBox) -> list[str]:
    where = _comment(f"from {box.place}")
    return [
        f"address: {_value(box.address)}  # {where}",
        f"memory: {MEMORY}  # assumed: `free -b` on the box says it",
        f"reserve: {RESERVE}  # assumed: what everything but the engine needs",
    ]


def _model(model: FoundModel) -> list[str]:
    lines = [f"# {_comment(f'from {model.place}')}"]
    lines += [f"runtime: {model.runtime}"] if model.runtime != "vllm" else []
    for key in _ORDER:
        if key in model.settings:
            lines.append(_line(key, model.settings[key]))
    lines += _arguments(model.arguments)
    if model.environment:
        lines.append("environment:")
        lines += [f"  {_line(name, setting)}" for name, setting in model.environment.items()]
    return lines


def _line(key: str, setting: Setting) -> str:
    remark = f"assumed: {setting.remark}" if setting.assumed else setting.remark
    return f"{key}: {_value(setting.value)}" + (f"  # {_comment(remark)}" if remark else "")


def _comment(text: str) -> str:
    """A text as a comment: a line break in it would end the comment."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text)


def _arguments(words: list[str]) -> list[str]:
    """The arguments, each flag with its values on a line of its own where they are many."""
    if not words:
        return []
    short = f"arguments: {_value(words)}"
    if len(short) <= _LONG:
        return [short]
    groups = [", ".join(_value(word, inside=True) for word in group) for group in split_flags(words)]
    return ["arguments: [", *(f"  {group}," for group in groups[:-1]), f"  {groups[-1]}]"]


def _sketch(placing: Placing) -> Placing:
    count = placing.ranks if placing.split else 2
    seats = [Seat(f"BOX{number + 1}", placing.share, placing.cache) for number in range(count)]
    return replace(placing, seats=placing.seats or seats)


def _placing(placing: Placing) -> list[str]:
    key = "split" if placing.split else "copies"
    own = {seat.box: _seat(seat) for seat in placing.seats}
    if any(own.values()):
        lines = [f"{key}:", *(f"  {box}: {_value(settings)}" for box, settings in own.items())]
    else:
        lines = [f"{key}: {_value(list(own))}"]
    if placing.pipeline:
        lines.append("parallel: pipeline")
    for name in ("concurrency", "port", "master_port"):
        if getattr(placing, name) is not None:
            lines.append(f"{name}: {getattr(placing, name)}")
    return lines


def _seat(seat: Seat) -> dict[str, Any]:
    told = {
        "concurrency": seat.concurrency,
        "gpu_memory_utilization": seat.share,
        "kv_cache_memory": seat.cache,
    }
    return {key: value for key, value in told.items() if value is not None}


def _value(value: object, *, inside: bool = False) -> str:
    """A value on one line; ``inside`` a list, where commas and brackets are marks."""
    text = yaml.dump(
        [value] if inside else value,
        Dumper=_OneLine,
        default_flow_style=True,
        width=10**9,
        sort_keys=False,
        allow_unicode=True,
    )
    text = text.removesuffix("...\n").strip()
    return text[1:-1] if inside else text
