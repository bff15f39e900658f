"""Changing values in the text of a fleet.yaml, and nothing else in it: comments, order and form stay.

The text is edited where the YAML parser says that a value stands. Afterwards it is read again: an edit that changes
anything but what was asked for (a value that others share through an ``*alias``, say) is refused and not returned.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from fleetctl.errors import SpecError
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.fleet_model import Measured
from fleetctl.spec.fleet_proxy import Proxy
from fleetctl.spec.load import parse_fleet
from fleetctl.spec.problems import listed
from fleetctl.spec.syntax import compose

Pair = tuple[yaml.Node, yaml.Node]


def with_proxy_settings(text: str, settings: Mapping[str, str], source: str = "fleet.yaml") -> str:
    """The text with keys of ``proxy`` set to values as they are written in the file.

    Raises SpecError when the file is not one that is understood, or cannot be edited without changing something else.
    """
    before = parse_fleet(text, source)
    edited = text
    for key, written in settings.items():
        edited = _with_setting(edited, key, written)
    wanted = _changed(before, settings)
    try:
        after = parse_fleet(edited, source)
    except SpecError as error:
        raise by_hand(settings, source) from error
    if after != wanted:
        raise by_hand(settings, source)
    return edited


def with_measured(text: str, model: str, box: str, figures: Mapping[str, str], source: str = "fleet.yaml") -> str:
    """The text with what was measured of a model on a box; ``figures`` are values as they are written in the file.

    Raises SpecError when the file is not one that is understood, or cannot be edited without changing something else.
    """
    before = parse_fleet(text, source)
    entry = f"{{{', '.join(f'{key}: {value}' for key, value in figures.items())}}}"
    name = f"models: {model}: measured"
    measured = {**before.models[model].measured, box: Measured.model_validate(yaml.safe_load(entry))}
    wanted = before.models[model].model_copy(update={"measured": measured})
    try:
        edited = _with_entry(text, model, box, entry)
        after = parse_fleet(edited, source)
    except SpecError as error:
        raise by_hand({box: entry}, source, name) from error
    if after != before.model_copy(update={"models": {**before.models, model: wanted}}):
        raise by_hand({box: entry}, source, name)
    return edited


def with_concurrency(
    text: str, layout: str, model: str, concurrency: int, boxes: Collection[str] = (), source: str = "fleet.yaml"
) -> str:
    """The text with the concurrency of a model in a layout, and of those of its ``boxes`` that have one of their own.

    Raises SpecError when the file is not one that is understood, or cannot be edited without changing something else.
    """
    before = parse_fleet(text, source)
    placement = before.layouts[layout][model]
    own = [box for box in boxes if placement.boxes[box].concurrency is not None]
    kind = placement.kind
    places = [[layout, model, kind, box] for box in own]
    if set(placement.boxes) - set(own) or not own:
        places.append([layout, model])
    changed = {
        box: part.model_copy(update={"concurrency": concurrency}) if box in own else part
        for box, part in placement.boxes.items()
    }
    update: dict[str, Any] = {kind: changed}
    if [layout, model] in places:
        update["concurrency"] = concurrency
    wanted = {**before.layouts[layout], model: placement.model_copy(update=update)}
    name = f"layouts: {layout}: {model}"
    settings = {"concurrency": str(concurrency)}
    try:
        edited = text
        for place in places:
            here = mapping_in(compose(edited, "fleet.yaml"), "layouts")
            for key in place:
                here = mapping_in(here, key)
            edited = with_key(edited, here, "concurrency", str(concurrency))
    except SpecError as error:
        raise by_hand(settings, source, name) from error
    after = parse_fleet(edited, source)  # what the file has no room for is said of the value itself
    if after != before.model_copy(update={"layouts": {**before.layouts, layout: wanted}}):
        raise by_hand(settings, source, name)
    return edited


def _with_entry(text: str, model: str, box: str, entry: str) -> str:
    here = mapping_in(mapping_in(compose(text, "fleet.yaml"), "models"), model)
    for name, value in here.value:
        if name.value == "measured":
            if not isinstance(value, yaml.MappingNode) or not value.value:
                return replaced(text, name, value, f"{{{box}: {entry}}}")
            for there, old in value.value:
                if there.value == box:
                    return replaced(text, there, old, entry)
            return _inserted(text, value, f"{box}: {entry}")
    return _inserted(text, here, f"measured: {{{box}: {entry}}}")


def mapping_in(node: yaml.Node | None, key: str) -> yaml.MappingNode:
    """The mapping under a key. Raises SpecError where it is not written out there."""
    pairs: list[Pair] = node.value if isinstance(node, yaml.MappingNode) else []
    for name, value in pairs:
        if name.value == key and isinstance(value, yaml.MappingNode):
            return value
    raise SpecError(f"{key}: is not written out in fleet.yaml")


def _changed(fleet: Fleet, settings: Mapping[str, str]) -> Fleet:
    """The fleet that the edited text has to describe. Raises SpecError for a value that does not fit its key."""
    values: dict[str, Any] = {key: yaml.safe_load(written) for key, written in settings.items()}
    try:
        parsed = Proxy.model_validate({"box": fleet.proxy.lead, **values})
    except ValueError as error:
        raise SpecError(f"these are no settings of a proxy: {listed(settings)}") from error
    proxy = fleet.proxy.model_copy(update={key: getattr(parsed, key) for key in settings})
    return fleet.model_copy(update={"proxy": proxy})


def by_hand(settings: Mapping[str, str], source: str, under: str = "proxy") -> SpecError:
    """That the file cannot be edited, with what to write into it."""
    lines = "\n".join(f"  {key}: {written}" for key, written in settings.items())
    return SpecError(
        f"{source} cannot be edited without changing something else in it (an &anchor is used in several places?)",
        hint=f"write this under {under}: yourself\n{lines}",
    )


def _with_setting(text: str, key: str, written: str) -> str:
    return with_key(text, _proxy_of(text), key, written)


def with_key(text: str, mapping: yaml.MappingNode, key: str, written: str) -> str:
    """The text with a key of a mapping set, as it is written in the file; one that is not there is put in."""
    for name, value in mapping.value:
        if isinstance(name, yaml.ScalarNode) and name.value == key:
            return replaced(text, name, value, written)
    return _inserted(text, mapping, f"{key}: {written}")


def _proxy_of(text: str) -> yaml.MappingNode:
    """The mapping under ``proxy``, where it stands: an alias leads to its anchor."""
    root = compose(text, "fleet.yaml")
    pairs: list[Pair] = root.value if isinstance(root, yaml.MappingNode) else []
    for name, value in pairs:
        if name.value == "proxy" and isinstance(value, yaml.MappingNode):
            return value
    raise SpecError("proxy: is not written out at the top of fleet.yaml", hint="write it there; it cannot come by <<")


def replaced(text: str, name: yaml.Node, value: yaml.Node, written: str) -> str:
    """The text with the value of a key replaced."""
    colon = text.index(":", name.end_mark.index)
    begin, end = value.start_mark.index, value.end_mark.index
    after = colon + 1 + len(text[colon + 1 :]) - len(text[colon + 1 :].lstrip(" \t"))
    if text[after : after + 1] == "*":  # the value's own marks are those of its anchor
        name_end = after + 1
        while text[name_end : name_end + 1].strip(",]} \t\r\n"):
            name_end += 1
        return text[:after] + written + text[name_end:]
    if end <= colon or begin == end:  # `key:` with nothing behind it
        return f"{text[: colon + 1]} {written}{text[colon + 1 :]}"
    old = text[begin:end]
    kept = ""
    while old.startswith(("&", "!")):  # an anchor stays for those who use it
        word = old.split(None, 1)
        kept += word[0] + " "
        old = word[1] if len(word) > 1 else ""
    quote = old[:1] if old[:1] in ("'", '"') else ""
    tail = "\n" if old.endswith("\n") else ""
    return text[:begin] + kept + quote + written + quote + tail + text[end:]


def _inserted(text: str, proxy: yaml.MappingNode, line: str) -> str:
    first: yaml.Node = proxy.value[0][0]
    if proxy.flow_style:
        last = _last_plain(text, proxy, block=False)
        if last is None:
            return f"{text[: first.start_mark.index]}{line}, {text[first.start_mark.index :]}"
        return f"{text[: last.end_mark.index]}, {line}{text[last.end_mark.index :]}"
    last = _last_plain(text, proxy, block=True)
    indent = " " * first.start_mark.column
    if last is None:
        place = first.start_mark.index
        return f"{text[:place]}{line}{_line_end(text, place)}{indent}{text[place:]}"
    place = last.end_mark.index
    ending = _line_end(text, place)
    found = text.find(ending, place)
    if found < 0:  # the last line of a file that does not end with a line break
        return f"{text}{ending}{indent}{line}{ending}"
    return f"{text[: found + len(ending)]}{indent}{line}{ending}{text[found + len(ending) :]}"


def _last_plain(text: str, proxy: yaml.MappingNode, *, block: bool) -> yaml.Node | None:
    """The last value that stands on the line of its key as one word: behind it is a good place for another key."""
    for name, value in reversed(proxy.value):
        here = name.end_mark.index < value.start_mark.index < value.end_mark.index
        on_the_line = name.start_mark.line == value.end_mark.line or not block
        if here and on_the_line and isinstance(value, yaml.ScalarNode):
            between = text[name.end_mark.index : value.start_mark.index].strip()
            if between == ":":
                return value
    return None


def _line_end(text: str, place: int) -> str:
    """The line break that the file uses at a place."""
    found = text.find("\n", place)
    found = text.find("\n") if found < 0 else found
    return "\r\n" if found > 0 and text[found - 1] == "\r" else "\n"


def refuse_unwritable(path: Path) -> None:
    """Raises SpecError where `save` could not put anything there: better before hours of work than after them."""
    folder = path.resolve().parent
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}."):
            pass
    except OSError as error:
        raise SpecError(
            f"{path} is to be changed, and {folder} cannot be written: {error.strerror}; nothing was changed",
            hint="name a copy of it with --fleet, in a folder that is yours",
        ) from error


def save(path: Path, before: str, after: str) -> None:
    """Replace the text of a file, in one move; its mode, a link to it and a byte order mark stay.

    Raises SpecError when it is no longer what was read, or cannot be written.
    """
    real = path.resolve()
    temporary = None
    try:
        raw = real.read_bytes()
        if raw.decode("utf-8-sig") != before:
            raise SpecError(f"{path} was changed meanwhile; nothing was written", hint="run the command again")
        mark = b"\xef\xbb\xbf" if raw.startswith(b"\xef\xbb\xbf") else b""
        with tempfile.NamedTemporaryFile(dir=real.parent, prefix=f".{real.name}.", delete=False) as new:
            temporary = Path(new.name)
            new.write(mark + after.encode())
            new.flush()
            os.fsync(new.fileno())
        temporary.chmod(real.stat().st_mode & 0o7777)
        temporary.replace(real)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 any more"
        raise SpecError(f"{path} cannot be written: {reason}", hint="nothing was changed") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
