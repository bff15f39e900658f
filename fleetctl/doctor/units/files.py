"""Files of our units: drop-ins that change them, edits, and what systemd has not read yet. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.doctor.finding import Finding, Severity
from fleetctl.doctor.settled import Settled
from fleetctl.doctor.units.kinds import DRIFT, DROP_IN, NOT_READ
from fleetctl.doctor.units.told import DropIn, UnitsTold
from fleetctl.render.names import UNIT_FOLDER

NOTIFY_ONLY = {"Type", "NotifyAccess"}
# What makes the stop of another unit the stop of ours.
PULLED_DOWN = ("PartOf", "BindsTo", "Requires", "StopPropagatedFrom")


def files(view: Settled, box: str, told: UnitsTold) -> Iterator[Finding]:
    """Findings about the files of one box."""
    facts = view.facts(box)
    secret = {file.path for file in view.scene.live.files.get(box, ()) if file.secrets}
    for path in facts.drift:
        evidence = told.diffs.get(path, ())
        missing = tuple(evidence) == ("it is missing",)
        lines = ["it has secrets in it, and is not shown"] if path in secret else list(evidence)
        yield DRIFT.found(
            box,
            path,
            f"{path} {'is missing' if missing else 'was edited'} since the live generation was put there",
            *lines,
            fix="fleetctl apply puts it back as it was; what shall stay of the change goes into fleet.yaml first",
            severity=Severity.ERROR if missing else None,
        )
    for one in told.drop_ins:
        if one.unit in facts.ours and not (one.keys and set(one.keys) <= NOTIFY_ONLY):
            yield _drop_in(box, one)
    touched = {one.unit for one in told.drop_ins} | {path.rpartition("/")[2] for path in facts.drift}
    for unit in facts.ours:
        if facts.units[unit].reload and unit not in touched:
            yield NOT_READ.found(
                box,
                unit,
                f"systemd has not read {UNIT_FOLDER}/{unit} since it changed",
                f"{unit}: NeedDaemonReload=yes",
                fix="systemctl daemon-reload",
            )


def _drop_in(box: str, one: DropIn) -> Finding:
    keys = list(dict.fromkeys(one.keys))
    what = ", ".join(f"{key}=" for key in keys) or "nothing"
    down = [line.partition("=")[2] for line in one.lines if line.partition("=")[0] in PULLED_DOWN]
    also = f"; the stop of {', '.join(down)} stops it" if down else ""
    folder = one.path.rpartition("/")[0]
    wide = not folder.endswith(f"/{one.unit}.d")  # service.d and the like: one file for many units
    return DROP_IN.found(
        box,
        one.path,
        f"{one.path} changes {what} of {one.unit}{also}",
        *one.lines,
        fix=f"put what is needed into fleet.yaml; rm {one.path}; systemctl daemon-reload; then fleetctl apply",
        severity=Severity.NOTE if wide else None,
    )
