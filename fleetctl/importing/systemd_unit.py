"""A systemd unit that starts an engine (systemd.service(5), systemd.exec(5))."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from fleetctl.importing.command import engine_of
from fleetctl.importing.found import Found, Setting, Word, is_secret, set_environment, without_secrets
from fleetctl.importing.found import FoundModel as Model
from fleetctl.importing.upstreams import duration
from fleetctl.importing.words import shell_words
from fleetctl.proxy.lint.findings import Place

_LINE = re.compile(r"([A-Za-z][A-Za-z0-9]*)\s*=\s*(.*)", re.DOTALL)
_CAT = re.compile(r"# (/\S+\.service)\n")  # how `systemctl cat` begins
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]+\.service")
# What units of fleetctl have of their own, or what says nothing about the engine.
_OURS = {
    "Description", "Documentation", "After", "Wants", "WantedBy", "Type", "Restart", "RestartSec", "LimitNOFILE",
    "LimitMEMLOCK", "ExecStop", "StandardOutput", "StandardError", "SyslogIdentifier", "KillMode", "KillSignal",
    "Slice", "OOMScoreAdjust", "StartLimitIntervalSec", "StartLimitBurst", "StartLimitInterval", "TasksMax",
    "ExecReload", "MemoryMax", "MemoryHigh", "MemorySwapMax", "RemainAfterExit", "SendSIGKILL", "Alias", "Before",
}  # fmt: skip
_LEFT_OUT = {
    "EnvironmentFile": "the file was not read, for it may have secrets: write its variables in environment:",
    "User": "engines of fleetctl run as root, each in a unit that may do little",
    "Group": "engines of fleetctl run as root, each in a unit that may do little",
    "Conflicts": "superseded: has the units that must not run beside an engine",
    "Requires": "an engine starts without it",
    "BindsTo": "an engine starts without it",
    "PartOf": "an engine starts without it",
    "ExecStartPre": "what has to be done before a start is not part of fleet.yaml",
    "ExecStartPost": "gates: prove an engine instead",
    "ExecStopPost": "what is done after a stop is not part of fleet.yaml",
    "WatchdogSec": "the guard sees an engine that hangs",
}
_UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "hr": 3600.0, "ms": 0.001}
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_TIMES = {"TimeoutStartSec": "load_limit", "TimeoutStopSec": "stop_limit"}


@dataclass(frozen=True)
class Directive:
    """``Name=value`` of a section; continued lines are one."""

    section: str
    name: str
    value: str
    place: Place


def directives(file: str, text: str) -> list[Directive]:
    """The directives of a unit. An empty value takes back those of the same name before it."""
    found: list[Directive] = []
    section = ""
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        line, place = lines[number].strip(), Place(file, number + 1)
        number += 1
        if not line or line[0] in "#;":
            continue
        if line.startswith("["):
            section = line.strip("[]")
            continue
        whole = line
        while whole.endswith("\\") and number < len(lines):
            more = lines[number]
            number += 1
            if more.strip()[:1] not in ("#", ";"):
                whole += "\n" + more.rstrip()
        match = _LINE.fullmatch(whole)
        if match is None:
            continue
        if not match[2].strip():
            found = [one for one in found if one.name != match[1]]
        else:
            found.append(Directive(section, match[1], match[2], place))
    return found


def looks_like(text: str) -> bool:
    """It has a section ``[Service]`` with an ``ExecStart=``."""
    return bool(re.search(r"^\[Service\]", text, re.MULTILINE) and re.search(r"^\s*ExecStart\s*=", text, re.MULTILINE))


def read(file: str, text: str) -> Found:
    """The engine that it starts, and the unit itself as one that must not run beside it."""
    found = Found("systemd")
    told = directives(file, text)
    environment = Model(Place(file, 1), "")
    plain: dict[str, str] = {}
    for one in (one for one in told if one.name == "Environment"):
        for word in shell_words(file, one.value, one.place.line):
            name, equals, value = word.text.partition("=")
            if equals:
                set_environment(found, environment, name, value, one.place)
                if not is_secret(name, value):
                    plain[name] = value
    for one in (one for one in told if one.name == "ExecStart"):
        model = _engine(found, one, plain, environment)
        if model is not None:
            found.add(model)
    if not found.models:
        place = next((one.place for one in told if one.name == "ExecStart"), Place(file, 1))
        found.note(place, "ExecStart= starts no engine that is read here; one in a script has to be read there")
        return found
    _rest(found, told, found.models[0])
    cat = _CAT.match(text)
    unit = PurePosixPath(cat[1] if cat else file).name
    if _UNIT.fullmatch(unit) and not unit.startswith("fleetctl-"):
        found.superseded.append(unit)
    else:
        found.note(Place(file, 1), "the name of the unit is not known: write it in superseded:, so that it stays away")
    return found


def _engine(found: Found, one: Directive, plain: dict[str, str], before: Model) -> Model | None:
    value = one.value.lstrip("@-:+!")
    words = [word for word in shell_words(one.place.file, value, one.place.line) if word.text != "\n"]
    words = [Word(_replaced(word.text, plain), word.place) for word in words]
    for word in words:
        if re.search(r"%[A-Za-z]", word.text):
            found.note(
                word.place, f"{without_secrets([word])}: systemd puts something in place of the %; write what it is"
            )
    return engine_of(found, words, environment=before.environment) if words else None


def _replaced(text: str, plain: dict[str, str]) -> str:
    """With the variables that the unit sets itself; $$ is a dollar, %% a per cent."""
    filled = re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda name: plain.get(name[1] or name[2], name[0]), text)
    return filled.replace("$$", "$").replace("%%", "%")


def _rest(found: Found, told: list[Directive], model: Model) -> None:
    for one in told:
        if one.name in _TIMES:
            _limit(found, one, model)
        elif one.name == "WorkingDirectory":
            weights = model.settings["weights"]
            if weights.assumed and weights.remark.startswith("."):
                where = PurePosixPath(one.value.strip(), weights.remark.split(" ")[0])
                model.settings["weights"] = Setting(str(where))
            else:
                found.note(one.place, "WorkingDirectory= is left out: paths are whole ones")
        elif one.name in _LEFT_OUT:
            found.note(one.place, f"{one.name}= is left out: {_LEFT_OUT[one.name]}")
        elif one.name not in _OURS | {"Environment", "ExecStart"}:
            found.note(one.place, f"{one.name}= is left out: units of fleetctl have settings of their own")


def _limit(found: Found, one: Directive, model: Model) -> None:
    parts = re.findall(r"([^a-z\s]+)\s*([a-z]*)", one.value)
    known = all(_NUMBER.fullmatch(number) and unit in _UNITS for number, unit in parts)
    if one.value.strip() in ("infinity", "0") or not parts or not known:
        found.note(one.place, f"{one.name}={one.value.strip()} is left out: fleetctl needs a limit")
        return
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    model.settings[_TIMES[one.name]] = Setting(duration(total))
