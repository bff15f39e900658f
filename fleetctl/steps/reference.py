"""What playbooks are and which steps there are; the page docs/playbooks.md:
``python -m fleetctl.steps.reference > docs/playbooks.md``.
"""

from __future__ import annotations

import inspect

from fleetctl.plan.expand import CHANGES, STEPS
from fleetctl.plan.shipped import shipped
from fleetctl.steps import KINDS

_INTRODUCTION = """\
# Playbooks

A playbook says in which stages a change is made, and which steps a stage has. It is a YAML file that you can read, copy
and change; fleetctl brings the steps. `fleetctl playbook` lists the playbooks that come with it:

    fleetctl playbook
    fleetctl playbook cutover > mine.yaml
    fleetctl plan --to replicas --playbook mine.yaml
    fleetctl cutover --to replicas --playbook mine.yaml

What the plan shows is what the cutover executes, whatever the playbook: the saved plan has the steps, not their names.

- A stage begins when the one before it is done. With `flow: true` every box and engine goes on as soon as its own steps
  are done; with `one_at_a_time: true` all steps of the stage are done for one engine, and then for the next.
- A step is written as its name, or with what it takes: `await_free: {limit: 10m}`.
- Steps that wait, look and prove may be left out. A playbook without a step that the change needs (`needed` below) is
  refused, with the name of the step: half a change is none.
- When a step fails, what was done is undone, last first. Undo belongs to the step: no playbook has to say it.

"""


def page() -> str:
    """The whole of docs/playbooks.md."""
    parts = [_INTRODUCTION, "| playbook | |\n| --- | --- |\n"]
    parts += [f"| `{name}` | {text} |\n" for name, text in shipped().items()]
    parts.append("\n## Steps\n\nIn the order in which the shipped playbooks have them.\n\n")
    parts.append("| step | takes | what it does | |\n| --- | --- | --- | --- |\n")
    for name, expand in STEPS.items():
        kind = type(KINDS[name])
        says = (kind.__doc__ or "").partition("\n")[0].replace("``", "`")
        taken = [f"`{_taken(each)}`" for each in list(inspect.signature(expand).parameters.values())[1:]]
        notes = [word for word, so in (("needed", name in CHANGES), ("undone", "undo" in vars(kind))) if so]
        parts.append(f"| `{name}` | {', '.join(taken)} | {says} | {', '.join(notes)} |\n")
    return "".join(parts)


def _taken(parameter: inspect.Parameter) -> str:
    """A parameter with its default; numbers are seconds."""
    default = f"{parameter.default:g}s" if isinstance(parameter.default, float) else parameter.default
    return f"{parameter.name}: {default}"


if __name__ == "__main__":
    print(page(), end="")
