"""From a step's name in a playbook to the planned steps of a move: one function per name, all pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fleetctl.plan.adapter_drafts import bring_adapters, load_adapters
from fleetctl.plan.ahead import fetch_weights, read_ahead, verify_weights
from fleetctl.plan.difference import (
    PROXY_UNIT,
    UNIT_FOLDER,
    VRRP_UNIT,
    is_vrrp,
)
from fleetctl.plan.draft import Draft, Move, on_box
from fleetctl.plan.engine_drafts import (
    ask_current,
    await_free,
    await_ready,
    await_room,
    gate,
    start_engine,
    stop_engine,
)
from fleetctl.plan.firewall import apart
from fleetctl.plan.firewall_drafts import apply_firewall, remove_firewall
from fleetctl.plan.flags import verify_flags
from fleetctl.plan.images import have_image, same_image, try_container
from fleetctl.plan.measuring_drafts import measure_knee, try_settings
from fleetctl.plan.pagecache import drop_page_cache
from fleetctl.plan.pool_drafts import (
    await_pool,
    drain_worker,
    gate_pool,
    gate_unpinned,
    restart_pooled,
    ship_programs,
    start_gateway,
    start_nats,
    start_worker,
    stop_gateway,
    stop_nats,
    stop_worker,
)
from fleetctl.plan.proxy_drafts import (
    drain,
    hold,
    load_proxy,
    open_gateway,
    open_server,
    proxy_paths,
    settle_address,
    settle_proxy,
)
from fleetctl.plan.trial import trial
from fleetctl.plan.types import PlannedStep
from fleetctl.render.names import GUARD_UNIT
from fleetctl.render.release import Engine


def _preflight(move: Move) -> Iterable[Draft]:
    for box in move.difference.boxes:
        yield on_box(box, f"{box} is still as the plan saw it", digest=move.observed[box].digest())


def _stage_release(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        if box.generation and move.generation is not None:
            count = len(move.target.files.get(name, ()))
            yield on_box(
                name,
                f"keep generation {move.generation} on {name} ({count} files)",
                generation=move.generation,
            )


def _verify_release(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        units = [path for path in box.install if path.startswith(UNIT_FOLDER) and not path.endswith(".conf")]
        if box.install:
            config = next((path for path in box.install if path.endswith("/haproxy.cfg")), None)
            vrrp = next((path for path in box.install if is_vrrp(path) and path.endswith(".conf")), None)
            yield on_box(
                name,
                f"systemd{', HAProxy and keepalived' if vrrp else ' and HAProxy'} accept the files for {name}",
                generation=move.generation,
                units=units,
                config=config,
                **({"vrrp": vrrp} if vrrp else {}),
            )


def _mark_drained(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        if box.mark_drained:
            yield on_box(name, f"note on {name} that it is drained", by=move.by)


def _forget_drained(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        if box.forget_drained:
            yield on_box(name, f"{name} is not drained any more")


def _supersede(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        if box.supersede:
            yield on_box(name, f"systemctl disable --now {' '.join(box.supersede)}", units=box.supersede)


def _stop_guard(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        if box.stop_guard:
            yield on_box(name, f"stop the guard of {name}", unit=GUARD_UNIT)


def _start_guard(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        if box.start_guard:
            yield on_box(name, f"{name} is guarded", unit=GUARD_UNIT)


def _install_files(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        proxy = proxy_paths(box.install, PROXY_UNIT)
        install = [path for path in apart(box.install) if path not in proxy and not is_vrrp(path)]
        if install:
            yield on_box(
                name,
                f"install {_count(install, 'file')} on {name}, daemon-reload",
                generation=move.generation,
                install=install,
            )


def _remove_files(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        proxy = proxy_paths(box.remove, PROXY_UNIT)
        remove = [path for path in apart(box.remove) if path not in proxy and not is_vrrp(path)]
        if remove:
            yield on_box(name, f"remove {_count(remove, 'file')} of the old layout on {name}", remove=remove)


def _count(things: list[str], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


def _restore_superseded(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        if box.give_back:
            yield on_box(name, f"give {', '.join(box.give_back)} on {name} back its state", units=box.give_back)


def _recheck_superseded(move: Move) -> Iterable[Draft]:
    for name in move.difference.boxes:
        units = move.target.superseded.get(name, ())
        if units:
            yield on_box(name, f"replaced units stayed away on {name}", units=list(units))


def _enable_units(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        # The unit of the floating address comes, is enabled and goes together with its files.
        enable, disable = ([unit for unit in units if unit != VRRP_UNIT] for units in (box.enable, box.disable))
        if enable or disable:
            starts = sorted(unit for unit in box.at_boot)
            yield on_box(
                name,
                f"a reboot of {name} starts {', '.join(starts) or 'nothing of fleetctl'}",
                enable=enable,
                disable=disable,
            )


def _make_current(move: Move) -> Iterable[Draft]:
    for name, box in move.difference.boxes.items():
        if box.generation:
            word = f"generation {move.generation}" if move.generation is not None else "no generation"
            yield on_box(name, f"{word} is current on {name}", generation=move.generation)


STEPS: dict[str, Callable[..., Iterable[Draft]]] = {
    "preflight": _preflight,
    "stage_release": _stage_release,
    "verify_release": _verify_release,
    "have_image": have_image,
    "same_image": same_image,
    "try_container": try_container,
    "verify_flags": verify_flags,
    "fetch_weights": fetch_weights,
    "verify_weights": verify_weights,
    "read_ahead": read_ahead,
    "bring_adapters": bring_adapters,
    "ship_programs": ship_programs,
    "ask_current": ask_current,
    "apply_firewall": apply_firewall,
    "load_proxy": load_proxy,
    "hold": hold,
    "drain": drain,
    "supersede": _supersede,
    "stop_guard": _stop_guard,
    "stop_gateway": stop_gateway,
    "stop_worker": stop_worker,
    "stop_nats": stop_nats,
    "stop_engine": stop_engine,
    "await_room": await_room,
    "await_free": await_free,
    "drop_page_cache": drop_page_cache,
    "trial": trial,
    "measure_knee": measure_knee,
    "try_settings": try_settings,
    "install_files": _install_files,
    "start_engine": start_engine,
    "start_nats": start_nats,
    "start_worker": start_worker,
    "start_gateway": start_gateway,
    "await_pool": await_pool,
    "gate_pool": gate_pool,
    "drain_worker": drain_worker,
    "restart_pooled": restart_pooled,
    "gate_unpinned": gate_unpinned,
    "restore_superseded": _restore_superseded,
    "await_ready": await_ready,
    "gate": gate,
    "load_adapters": load_adapters,
    "open": open_server,
    "open_gateway": open_gateway,
    "recheck_superseded": _recheck_superseded,
    "start_guard": _start_guard,
    "enable_units": _enable_units,
    "remove_files": _remove_files,
    "remove_firewall": remove_firewall,
    "settle_proxy": settle_proxy,
    "settle_address": settle_address,
    "make_current": _make_current,
    "mark_drained": _mark_drained,
    "forget_drained": _forget_drained,
}
"""Every step that a playbook can use."""

CHANGES = (
    "stage_release", "bring_adapters", "apply_firewall", "load_proxy", "supersede", "stop_guard", "stop_engine",
    "install_files", "start_engine", "restore_superseded", "open", "start_guard", "enable_units", "remove_files",
    "remove_firewall", "settle_address", "settle_proxy", "make_current", "mark_drained", "forget_drained",
    "ship_programs", "stop_gateway", "stop_worker", "stop_nats", "start_nats", "start_worker", "start_gateway",
    "open_gateway", "restart_pooled",
)  # fmt: skip
"""Steps that make a difference go away. The others wait, look and prove: a playbook may leave those out."""


def _through(target: str, via: str) -> str:
    return target if not via else f"proxy@{via}" if target == "proxy" else f"{target}/proxy@{via}"


def place(
    stage: str, kind: str, draft: Draft, after: Iterable[str], turn: tuple[int, Engine] | None = None
) -> PlannedStep:
    """The draft as a step of a plan; in an engine's turn it is about that engine."""
    target = turn[1].id if turn else draft.target
    return PlannedStep(
        id=f"{stage}.{kind}.{_through(target, draft.via)}",
        kind=kind,
        stage=stage,
        box=draft.box,
        target=target,
        turn=turn[0] if turn else None,
        params=draft.params,
        summary=draft.summary,
        after=tuple(sorted(set(after))),
    )
