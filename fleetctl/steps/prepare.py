"""Steps that touch nothing which serves: look again, keep the release on the box, have it checked, load the proxy."""

from __future__ import annotations

import contextlib
from typing import Any

from fleetctl.engine.runtimes.known import RUNTIMES
from fleetctl.errors import StepError
from fleetctl.facts.types import BoxFacts
from fleetctl.plan.types import PlannedStep
from fleetctl.remote.errors import OpFailed
from fleetctl.render.floating import SCRIPT
from fleetctl.render.proxy import proxy_files
from fleetctl.render.release import File, ProxyConfig, Release
from fleetctl.steps.base import Context, Record, Step, register


@register
class Preflight(Step):
    """The box is still as it was when the plan was made."""

    kind = "preflight"
    once = True

    def do(self, context: Context, step: PlannedStep) -> Record:
        told = context.box(step).call("facts", timeout=60, **context.plan.questions[step.box])
        if BoxFacts.model_validate(told).digest() != step.params["digest"]:
            raise StepError(
                f"{step.box} has changed since the plan was made", hint="make the plan again and look at it"
            )
        return {}


@register
class StageRelease(Step):
    """Keep the generation on the box: release, files with their secrets filled in, and meta data last.

    The meta data say which builds of the engines and which revisions of the models it was made with.
    """

    kind = "stage_release"

    def check(self, context: Context, step: PlannedStep) -> bool:
        kept = context.box(step).call("generation_read", number=step.params["generation"])
        return kept is not None and Release.model_validate(kept["release"]) == context.plan.release

    def prior(self, context: Context, step: PlannedStep) -> Record:
        return {"there": context.box(step).call("generation_read", number=step.params["generation"]) is not None}

    def do(self, context: Context, step: PlannedStep) -> Record:
        plan = context.plan
        folder = f"/etc/fleetctl/generations/{step.params['generation']}"
        files = plan.release.files.get(step.box, ())
        entries = [_entry(folder + "/files", file, context) for file in files]
        entries.append(
            {
                "path": f"{folder}/release.json",
                "content": plan.release.model_dump_json(),
                "mode": 0o600,
                "private": True,
            }
        )
        box = context.box(step)
        box.call("write", files=entries)
        engines = [engine for engine, _ in plan.release.ranks_on(step.box)]
        meta = {
            "generation": step.params["generation"],
            "layout": plan.to_layout,
            "previous": plan.previous,
            "move": plan.move,
            "paths": [file.path for file in files],
            "superseded": list(plan.release.superseded.get(step.box, ())),
            "revisions": {engine.model: engine.revision or engine.weights for engine in engines},
            "builds": box.call(
                "builds",
                binaries=sorted({engine.binary for engine in engines if engine.binary}),
                packages={one.binary: RUNTIMES[one.runtime].packages for one in engines if one.binary},
                images=sorted({(engine.image[0], engine.image_reference) for engine in engines if engine.image}),
            ),
        }
        box.call("write_meta", number=step.params["generation"], meta=meta)
        return {"files": len(files)}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        if prior["there"]:
            return {}
        box = context.box(step)
        box.call("generation_remove", number=step.params["generation"])
        if context.plan.release.programs.get(step.box):
            # They came after the generation, so they are undone before it, while it still needs them. What another one
            # needs that cannot be read is not known: then all of them stay until a later move.
            with contextlib.suppress(OpFailed):
                return {"programs": box.call("programs_prune")["removed"]}
        return {}


def _entry(folder: str, file: File, context: Context) -> Record:
    return {"path": folder + file.path, "content": context.fill(file), "mode": file.mode, "private": True}


@register
class VerifyRelease(Step):
    """systemd, HAProxy and keepalived on the box accept the files before any of them is used."""

    kind = "verify_release"

    def do(self, context: Context, step: PlannedStep) -> Record:
        box = context.box(step)
        folder = context.generation_files(step.params["generation"])
        for path in step.params["units"]:
            ran = box.run("systemd-analyze", "verify", "--man=no", folder + path, timeout=60, check=False)
            if ran.rc != 0:
                raise StepError(f"{step.box}: systemd does not accept {path}: {first_lines(ran.err)}")
        config = step.params["config"]
        if config is not None:
            _check_haproxy(box, folder, config)
        if "vrrp" in step.params:
            _check_keepalived(box, folder, step.params["vrrp"])
        return {"units": len(step.params["units"])}


def _check_haproxy(box: Any, folder: str, config: str) -> None:
    ran = box.run("haproxy", "-c", "-f", folder + config, timeout=60, check=False)
    if ran.rc != 0:
        raise StepError(f"{box.name}: HAProxy does not accept {config}: {first_lines(ran.err + ran.out)}")


def _check_keepalived(box: Any, folder: str, config: str) -> None:
    # The script of the generation fills in the interface, as it will when the unit starts.
    ran = box.run("python3", "-I", folder + SCRIPT, "check", folder + config, timeout=60, check=False)
    if ran.rc != 0:
        raise StepError(f"{box.name}: keepalived does not accept {config}: {first_lines(ran.err + ran.out)}")


def first_lines(text: str) -> str:
    """The beginning of what a program said, on one line."""
    return "; ".join(line.strip() for line in text.splitlines()[:6] if line.strip())


def transition_folder(move: str) -> str:
    """Where the proxy's files for the time of a move are kept on the proxy's box."""
    return f"/var/lib/fleetctl/moves/{move}/transition"


@register
class LoadProxy(Step):
    """Start or reload the proxy with the servers of both layouts, while nothing is held."""

    kind = "load_proxy"

    def check(self, context: Context, step: PlannedStep) -> bool:
        seen = context.box(step).call("proxy_look", path=context.proxy.admin_socket)
        return seen is not None and bool(seen["description"] == step.params["description"])

    def prior(self, context: Context, step: PlannedStep) -> Record:
        config = ProxyConfig.model_validate(step.params["config"])
        state = context.box(step).call("unit_states", units=[config.unit])[config.unit]
        return {"running": state["active"] == "active"}

    def do(self, context: Context, step: PlannedStep) -> Record:
        config = ProxyConfig.model_validate(step.params["config"])
        box = context.box(step)
        folder = transition_folder(context.plan.move)
        files = proxy_files(config, step.box)
        plain = [file for file in files if not file.secrets]
        box.call("write", files=[_entry(folder, file, context) for file in plain])
        paths = [file.path for file in files]
        # Files with secrets are those of the generation: a rollback needs no secret of the operator's machine.
        kept = context.generation_files(step.params["generation"])
        for source, some in ((folder, plain), (kept, [file for file in files if file.secrets])):
            chosen = [file.path for file in some]
            box.call("install", move=context.plan.move, folder=source, paths=chosen, remove=[])
        box.call("daemon_reload")
        reload_or_start(box, config)
        box.call("proxy_await", path=config.admin_socket, description=step.params["description"], limit=15)
        return {"files": paths}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        config = ProxyConfig.model_validate(step.params["config"])
        box = context.box(step)
        paths = [file.path for file in proxy_files(config, step.box)]
        box.call("uninstall", move=context.plan.move, paths=paths)
        if prior["running"]:
            box.call("daemon_reload")
            reload_or_start(box, config)
        else:
            box.call("unit_stop", unit=config.unit)
            box.call("daemon_reload")
        return {}


def reload_or_start(box: Any, config: ProxyConfig) -> None:
    """Make the proxy run what is in its file: reload when it runs, which cuts no stream, else start it."""
    state = box.call("unit_states", units=[config.unit])[config.unit]
    if state["active"] == "active":
        ran = box.run("systemctl", "reload", config.unit, timeout=60, check=False)
        if ran.rc != 0:
            raise StepError(f"{box.name}: the proxy did not reload: {first_lines(ran.err)}")
    else:
        box.call("unit_start", unit=config.unit, wait=True)
