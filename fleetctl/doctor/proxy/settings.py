"""Settings that make an outage longer than it need be: of the fleet's own proxy, and of an old one still there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from fleetctl.doctor.finding import Finding, Kind, Severity
from fleetctl.doctor.proxy.told import OtherProxy, ProxyTold
from fleetctl.doctor.scene import Scene
from fleetctl.errors import SpecError
from fleetctl.facts.took import last_loads
from fleetctl.proxy.lint.findings import Finding as Setting
from fleetctl.proxy.lint.kinds import Kind as Program
from fleetctl.proxy.lint.kinds import lint
from fleetctl.render.names import PROXY_FOLDER
from fleetctl.render.proxy import haproxy_config
from fleetctl.render.release import ProxyConfig
from fleetctl.spec.fleet_proxy import Proxy

CONFIG = f"{PROXY_FOLDER}/haproxy.cfg"
SHOWN = 12  # settings of an old proxy that are told

LENGTHENS = Kind(
    "X01",
    Severity.WARNING,
    "a setting of the proxy lengthens an outage",
    looks_for="settings under `proxy:` with which the rendered configuration breaks a rule of `fleetctl proxy lint`, "
    "and such lines in the configuration on the box that somebody edited",
    why="it costs requests exactly when an engine is away",
    fix="take the key out of fleet.yaml, or write what the finding says; `fleetctl explain` knows each rule",
    source="docs/proxy-lint.md",
)
SHORT_HOLD = Kind(
    "X02",
    Severity.WARNING,
    "requests are not held as long as an engine takes to load",
    looks_for="a `hold` under `proxy:` that is shorter than an engine of the live layout took to load last time",
    why="when an engine is away and no other is there, every request that waits longer than `hold` gets 503, although "
    "the engine is on its way",
    fix="write a longer `hold`; `fleetctl proxy tune` says what the fleet's own figures ask for",
    source="the loads that moves have measured; docs/proxy.md",
)
OTHER = Kind(
    "X03",
    Severity.WARNING,
    "another proxy sends requests to the boxes",
    looks_for="an nginx or HAProxy of the distribution, or in a container, that runs or would start at boot, and whose "
    "configuration names a box of the fleet",
    why="its clients go round fleetctl's proxy: nothing holds their requests during a move, and its own settings "
    "decide how long an outage is",
    fix="move its clients to the proxy's address and disable it, or list its unit under `superseded:`",
    source="an office's cutover: nginx answered 502 for 30 s after the engines were back; docs/proxy-lint.md",
)
KINDS = (LENGTHENS, SHORT_HOLD, OTHER)

_USUAL = Proxy.model_validate({"box": "any"})
# Rule of lint → the key of fleet.yaml behind it.
_KEYS = {
    "H04": ("check_interval", "fall", "rise"),
    "H10": ("retries",),
    "H20": ("stream_limit",),
    "H24": ("stream_limit",),
    "H23": ("timeout_connect",),
    "H32": ("timeout_queue", "hold"),
}


def settings(scene: Scene, told: Mapping[str, ProxyTold]) -> Iterator[Finding]:
    """What lengthens an outage."""
    of_file, live = _of_the_file(scene), scene.live.proxy
    yield from _keys(scene, of_file, None)
    if live is not None:
        rendered = _bad(CONFIG, haproxy_config(live), Program.HAPROXY)
        mended = {_what(setting) for setting in of_file}
        yield from _keys(scene, [s for s in rendered if _what(s) not in mended], live)
        known = {_what(setting) for setting in rendered}
        for box, one in told.items():
            if one.config is not None:
                found = _bad(CONFIG, one.config, Program.HAPROXY)
                yield from _edited(box, live.unit, [s for s in found if _what(s) not in known])
        yield from _hold(scene, live)
    for box, one in told.items():
        for other in one.others:
            yield from _other(scene, box, other)


def _of_the_file(scene: Scene) -> list[Setting]:
    """What is bad in the proxy that fleet.yaml wants, in any of its layouts."""
    configs = [release.proxy for release in scene.releases if release.proxy]
    found = {_what(s): s for config in configs for s in _bad(CONFIG, haproxy_config(config), Program.HAPROXY)}
    return sorted(found.values(), key=lambda setting: setting.severity is not Severity.ERROR)


def _what(setting: Setting) -> tuple[str, str]:
    return setting.code, setting.setting


def _bad(name: str, text: str, program: Program) -> list[Setting]:
    """Findings of lint that are no mere notes, errors first; none for a text that cannot be read."""
    try:
        _, found = lint(name, text, kind=program)
    except SpecError:
        return []
    bad = [setting for setting in found if setting.severity is not Severity.NOTE]
    return sorted(bad, key=lambda setting: setting.severity is not Severity.ERROR)


def _keys(scene: Scene, found: list[Setting], live: ProxyConfig | None) -> Iterator[Finding]:
    """One finding for each key of fleet.yaml; with ``live`` of settings that the file has mended already."""
    groups: dict[str, list[Setting]] = {}
    for setting in found:
        groups.setdefault(_key_of(live or scene.fleet.proxy, setting), []).append(setting)
    for key, same in groups.items():
        usual = getattr(_USUAL, key, None)
        worst = Severity.ERROR if any(one.severity is Severity.ERROR for one in same) else Severity.WARNING
        mend = f"take `{key}` out of proxy: in fleet.yaml ({_shown(usual)} is the default), then `fleetctl apply`"
        yield LENGTHENS.found(
            None,
            f"proxy: {key}",
            f"`{key}` under proxy: is {_shown(getattr(live or scene.fleet.proxy, key, None))}: {same[0].outage}",
            *(f"{one.code}: {one.setting}" for one in same),
            fix="`fleetctl apply`: fleet.yaml has another value already" if live else mend,
            severity=worst,
        )


def _key_of(proxy: Proxy | ProxyConfig, setting: Setting) -> str:
    """The key that was changed; of several the first that is not at its default."""
    keys = _KEYS.get(setting.code, ())
    changed = [key for key in keys if getattr(proxy, key) != getattr(_USUAL, key)]
    return (changed or [*keys, "proxy"])[0]


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}s" if value < 120 else f"{value / 60:g}m"
    return "not set" if value is None else str(value)


def _edited(box: str, unit: str, found: list[Setting]) -> Iterator[Finding]:
    for setting in found:
        yield LENGTHENS.found(
            box,
            str(setting.place),
            f"{setting.place} was edited on the box: `{setting.setting}`: {setting.outage}",
            f"{setting.code} {setting.where}: {setting.setting}",
            fix=f"`fleetctl apply` puts the file back; then on {box}: `systemctl reload {unit}` loads it",
            severity=setting.severity,
        )


def _hold(scene: Scene, config: ProxyConfig) -> Iterator[Finding]:
    live = {engine.id for engine in scene.live.engines}
    longer = {name: took for name, took in last_loads(scene.observed).items() if name in live and took > config.hold}
    if longer:
        name, load = max(longer.items(), key=lambda item: item[1])
        # A quarter more than the longest seen, in whole minutes.
        wanted = max(1, -(-int(load * 1.25) // 60))
        yield SHORT_HOLD.found(
            None,
            "proxy: hold",
            f"`hold` is {_shown(config.hold)}, and {name} took {load:.0f} s to load last time",
            *(f"{engine}: ready after {took:.0f} s" for engine, took in longer.items()),
            fix="`fleetctl apply`: fleet.yaml has a longer one already"
            if scene.fleet.proxy.hold >= load
            else f"write `hold: {wanted}m` under proxy: in fleet.yaml (20m is the default), then `fleetctl apply`",
        )


def _other(scene: Scene, box: str, other: OtherProxy) -> Iterator[Finding]:
    """A proxy that does not name a box of the fleet is none of our business."""
    named = _boxes_named(scene, box, other.text or "")
    if not named:
        return
    program = Program.NGINX if other.program == "nginx" else Program.HAPROXY
    bad = _bad(other.path, other.text or "", program)
    state = "runs" if other.running else "would start at boot"
    also = " and would start at boot" if other.running and other.enabled else ""
    if scene.live.proxy is None:
        yield from _only(box, other, bad)
        return
    service = other.unit.endswith(".service")
    stop = f"systemctl disable --now {other.unit}" if service else f"stop {other.unit}"
    superseded = f", or list {other.unit} under `superseded:` in fleet.yaml" if service else ""
    proxy = scene.live.proxy
    yield OTHER.found(
        box,
        other.unit,
        f"{other.unit} ({other.program}) {state}{also} beside fleetctl's proxy and leads to {', '.join(named)}",
        *(f"{s.place}: {s.code} {s.setting}: {s.outage}" for s in bad[:SHOWN]),
        fix=f"point its clients at {scene.fleet.proxy_address}:{proxy.port}, then on {box}: {stop}{superseded}; "
        f"{'`fleetctl proxy lint` says what each line would have to be' if bad else 'unless it serves something else'}",
        severity=Severity.ERROR if any(s.severity is Severity.ERROR for s in bad) else Severity.WARNING,
    )


def _only(box: str, other: OtherProxy, bad: list[Setting]) -> Iterator[Finding]:
    """The proxy as it is before the first layout of fleetctl."""
    if bad:
        yield OTHER.found(
            box,
            other.unit,
            f"{other.unit} ({other.program}) is the proxy as yet, and lengthens an outage in {len(bad)} ways",
            *(f"{s.place}: {s.code} {s.setting}: {s.outage}" for s in bad[:SHOWN]),
            fix=f"`fleetctl proxy lint` of {other.path} says what to write instead; after `fleetctl cutover` clients "
            f"belong to fleetctl's proxy, and {other.unit} under `superseded:`",
            severity=Severity.ERROR if bad[0].severity is Severity.ERROR else Severity.WARNING,
        )


def _boxes_named(scene: Scene, box: str, text: str) -> list[str]:
    """Engines' own addresses in a configuration, with their ports, outside of comments."""
    lines = [line.split("#", 1)[0] for line in text.splitlines()]
    found = []
    for release in scene.releases:
        for engine in release.engines:
            head = engine.head.box
            own = scene.fleet.boxes[head]
            hosts = {engine.address, own.address, own.link or "", head}
            hosts |= set(scene.observed[head].addresses) if head in scene.observed else set()
            hosts |= {"127.0.0.1", "localhost"} if head == box else set()
            for host in sorted(hosts - {""}):
                pattern = re.compile(rf"(?<![\w.:-])\[?{re.escape(host)}\]?:{engine.port}(?!\d)")
                shown = f"{host}:{engine.port}"
                if shown not in found and any(pattern.search(line) for line in lines):
                    found.append(shown)
    return found
