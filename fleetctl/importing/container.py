"""``docker run`` and ``podman run``: the image, what becomes of the options, and where weights lie on the box."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fleetctl.importing.dialect import Dialect
from fleetctl.importing.found import Found, FoundModel, Setting, Word, set_environment
from fleetctl.importing.secrecy import holds_secret
from fleetctl.proxy.lint.findings import Place

# Options of `run` that are followed by a value.
_VALUED = {
    "-e", "--env", "--env-file", "-v", "--volume", "--mount", "-p", "--publish", "--name", "--network", "--net",
    "--ipc", "--gpus", "--runtime", "--shm-size", "--ulimit", "--restart", "--entrypoint", "-u", "--user", "-w",
    "--workdir", "--device", "--cap-add", "--cap-drop", "--security-opt", "-m", "--memory", "--memory-swap",
    "--cpus", "-h", "--hostname", "-l", "--label", "--log-driver", "--log-opt", "--pull", "--platform",
    "--add-host", "--dns", "--group-add", "--tmpfs", "--stop-timeout", "--stop-signal", "--health-cmd",
    "--health-interval", "--health-retries", "--health-timeout", "--health-start-period", "--cgroupns", "--pid",
    "--userns", "--cpuset-cpus", "--oom-score-adj", "--pids-limit", "--cidfile", "--annotation", "--expose",
}  # fmt: skip
# What fleetctl gives every container itself, or does in another way.
_OURS = {
    "--rm", "-d", "--detach", "-i", "-t", "-it", "-ti", "--interactive", "--tty", "--init", "--name", "--network",
    "--net", "--ipc", "--restart", "--pull", "-m", "--memory", "--memory-swap", "--shm-size", "--stop-timeout",
    "--hostname", "-h", "--replace", "--cgroups", "--log-driver", "--log-opt", "--health-cmd", "--health-interval",
    "--health-retries", "--health-timeout", "--health-start-period", "--expose", "-l", "--label", "--cidfile",
}  # fmt: skip
_GPU = re.compile(r"--(gpus|device|runtime)(=|$)")


@dataclass
class Run:
    """A container as it is started. ``binds`` are pairs of a path on the box and one in the container."""

    engine: str
    image: Word | None = None
    options: list[str] = field(default_factory=list)
    binds: list[tuple[str, str]] = field(default_factory=list)
    published: list[tuple[int, int, Place]] = field(default_factory=list)
    """Ports: on the box, in the container, and where that stands."""
    entrypoint: str | None = None


def read_run(found: Found, model: FoundModel, engine: str, words: list[Word]) -> tuple[Run, list[Word]]:
    """The container, and the words behind its image."""
    run = Run(engine)
    at = 0
    while at < len(words) and words[at].text.startswith("-"):
        word = words[at]
        name, equals, value = word.text.partition("=")
        at += 1
        glued = re.fullmatch(r"(-[evpuwm])([^=].*)", word.text, re.DOTALL)
        if glued:  # -eNAME=value
            _option(found, model, run, glued[1], glued[2], word.place)
            continue
        if name in _VALUED and not equals and at < len(words):
            value = words[at].text
            at += 1
        _option(found, model, run, name, value, word.place)
    if at < len(words):
        run.image = words[at]
        at += 1
    return run, words[at:]


def _option(found: Found, model: FoundModel, run: Run, name: str, value: str, place: Place) -> None:
    if name in ("-e", "--env"):
        variable, equals, said = value.partition("=")
        set_environment(found, model, variable, said if equals else None, place)
    elif name == "--env-file":
        found.note(
            place, f"{name}: the file was not read, for it may have secrets: write its variables in environment:"
        )
    elif name in ("-v", "--volume"):
        bind(found, run, value, place)
    elif name == "--mount":
        parts = dict(part.partition("=")[::2] for part in value.split(","))
        source = parts.get("source") or parts.get("src") or ""
        target = parts.get("target") or parts.get("destination") or parts.get("dst") or ""
        bind(found, run, f"{source}:{target}", place)
    elif name in ("-p", "--publish"):
        publish(found, run, value, place)
    elif name == "--entrypoint":
        run.entrypoint = value
    elif name not in _OURS and holds_secret(value):
        found.note(place, f"{name} is left out: a secret does not belong in a command line, nor in fleet.yaml")
    elif name not in _OURS:
        run.options.append(f"{name}={value}" if value else name)


def bind(found: Found, run: Run, told: str, place: Place) -> None:
    """A folder of the box that the container sees. What is not written as a whole path cannot be kept."""
    source, _, rest = told.partition(":")
    target = rest.partition(":")[0]
    if not target:
        found.note(place, f"the volume {told} has no folder on the box, and was left out")
    elif not source.startswith("/"):
        what = "is a volume of the container engine" if source[:1] not in (".", "~", "$") else "is no whole path"
        found.note(place, f"{source} {what}, and was left out: write it as an option, --volume=/WHOLE/PATH:{target}")
    else:
        run.binds.append((source.rstrip("/"), target.rstrip("/")))


def publish(found: Found, run: Run, told: str, place: Place) -> None:
    """A port of the box that leads to one in the container."""
    parts = told.rsplit("/", 1)[0].split(":")
    try:
        inner = int(parts[-1])
        outer = int(parts[-2]) if len(parts) > 1 else inner
    except ValueError:
        inner = outer = 0
    if not (0 < inner < 65536 and 0 < outer < 65536):
        found.note(place, f"{told} is no pair of ports")
        return
    run.published.append((outer, inner, place))


def settle(found: Found, model: FoundModel, run: Run, dialect: Dialect) -> None:
    """Put the container into the entry, once its engine's flags were read: weights and port as the box has them."""
    place = run.image.place if run.image is not None else model.place
    weights = model.settings.get("weights")
    if weights is not None and isinstance(weights.value, str) and weights.value.startswith("/"):
        inside = weights.value
        pairs = sorted(run.binds, key=lambda pair: -len(pair[1]))
        source = next((pair for pair in pairs if inside == pair[1] or inside.startswith(pair[1] + "/")), None)
        if source is None:
            found.note(place, f"{inside} is a path in the image: weights: is one on the boxes, or a hub id")
        else:
            named = Setting([dialect.named(inside)], f"as the engine names it without {dialect.name_flag}")
            model.settings.setdefault("served_as", named)
            weights.value = source[0] + inside[len(source[1]) :]
            if not any(f"{source[1]}/" in word for word in model.arguments):  # a template, a projector
                run.binds.remove(source)
            if source[0] != source[1]:
                weights.remark = f"{inside} in the container it came from"
    run.options += [f"--volume={source}:{target}" for source, target in run.binds]
    inner = model.port or dialect.port
    for outer, port, where in run.published:
        if port == inner:
            model.port = outer
        else:
            found.note(where, f"port {outer} leads to {port} in the container, where no engine listens: left out")
    launch: dict[str, object] = {"image": run.image.text if run.image else ""}
    if run.engine != "docker":
        launch["engine"] = run.engine
    remarks = []
    if not dialect.needs_gpu and not any(_GPU.match(option) for option in run.options):
        launch["gpus"] = "none"
        remarks.append("it was given no GPU")
    if run.options:
        launch["options"] = list(dict.fromkeys(run.options))
    if "@sha256:" not in str(launch["image"]):
        remarks.append("not pinned by digest: name@sha256:… stays the same")
    model.settings["launch"] = Setting(launch, "; ".join(remarks))
