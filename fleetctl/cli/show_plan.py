"""A plan as people read it."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax

from fleetctl.cli.output import hang
from fleetctl.facts.operations import ASIDE, LORAS, ON_BOXES, STAYING
from fleetctl.plan.types import Plan
from fleetctl.spec.units import seconds

MANY = 4  # files of one folder that are told together


def title(plan: Plan) -> str:
    """One line that says what the plan does."""
    if plan.operation == "doctor":
        return f"doctor mends {len(plan.steps)} {'thing' if len(plan.steps) == 1 else 'things'} in {plan.fleet}"
    if plan.operation in ON_BOXES:
        boxes = list(dict.fromkeys(step.box for step in plan.steps)) or list(plan.boxes)
        return f"{plan.operation} of {', '.join(boxes)}"
    if plan.operation in ASIDE:
        subjects = ", ".join(dict.fromkeys(step.target for step in plan.steps))
        return f"{plan.operation} in {plan.fleet}{f': {subjects}' if subjects else ''}"
    if plan.operation in STAYING:
        return f"{plan.operation} in {plan.fleet}, layout {plan.to_layout}"
    origin = plan.from_layout or "nothing of fleetctl"
    goal = plan.to_layout or "nothing of fleetctl"
    number = f", generation {plan.generation}" if plan.generation is not None else ""
    return f"{plan.operation} of {plan.fleet}: {origin} → {goal}{number}"


def show_plan(plan: Plan, out: Console, *, diffs: bool) -> None:
    """Print stages and steps, then memory, files, warnings and the gap."""
    out.print(f"[bold]{escape(title(plan))}[/]")
    if plan.nothing_to_do():
        if plan.operation in ASIDE:
            out.print(f"nothing to do: {plan.gap.why}", markup=False)
        else:
            what = "all of it" if plan.operation in (*ON_BOXES, *LORAS) else plan.to_layout
            out.print(f"nothing to do: {what} is in place on {', '.join(plan.boxes)}")
        _show_warnings(plan, out)
        return
    for stage in plan.stages:
        steps = list(plan.stage_steps(stage.name))
        if not steps:
            continue
        out.print(f"\n[bold cyan]{escape(stage.name)}[/]  [dim]{escape(stage.summary)}[/]")
        for step in steps:
            hang(out, f"  {step.kind:<18} {escape(step.summary)}", 21)
    if plan.budgets:
        out.print("\n[bold cyan]memory[/]")
        for budget in plan.budgets:
            out.print(f"  {escape(budget.box)}")
            for line in budget.lines:
                hang(out, f"    {escape(line)}", 6)
            if budget.box in plan.others:
                hang(out, f"    {escape(plan.others[budget.box])}", 6)
        for sizing in plan.sizings:
            out.print(f"  {escape(sizing.engine)}")
            for line in sizing.lines:
                hang(out, f"    {escape(line)}", 6)
    if plan.diffs:
        out.print("\n[bold cyan]files[/]")
        for line in () if diffs else _files(plan):
            hang(out, f"  {escape(line)}", 11)
        for change in plan.diffs if diffs else ():
            hang(out, f"  {change.change:<8} {change.box}:{escape(change.path)}", 11)
            if change.diff and change.change == "changed":
                out.print(Syntax(change.diff, "diff", theme="ansi_dark", background_color="default", word_wrap=True))
    _show_warnings(plan, out)
    told = "not known" if plan.gap.expected is None else seconds(plan.gap.expected)
    out.print()
    hang(out, f"[bold cyan]gap[/]  {told}: {escape(plan.gap.why)}", 5)


def _files(plan: Plan) -> list[str]:
    """What happens to which files; many of one folder in one line (`plan --diff` has each)."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for one in plan.diffs:
        folder, _, name = one.path.rpartition("/")
        groups.setdefault((one.change, one.box, folder), []).append(name)
    lines = []
    for (change, box, folder), names in groups.items():
        if len(names) >= MANY:
            lines.append(f"{change:<8} {box}:{folder}/ ({len(names)} files)")
        else:
            lines += [f"{change:<8} {box}:{folder}/{name}" for name in names]
    return lines


def _show_warnings(plan: Plan, out: Console) -> None:
    if plan.warnings:
        out.print("\n[bold yellow]to know before[/]")
        for warning in plan.warnings:
            hang(out, f"  {escape(warning)}", 4)
