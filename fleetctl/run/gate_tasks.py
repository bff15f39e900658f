"""What gates need on the operator's machine: files of tasks, which a plan has in it, and programs that run suites."""

from __future__ import annotations

from pathlib import Path

from fleetctl.errors import SpecError
from fleetctl.plan.types import Plan
from fleetctl.spec.fleet import Fleet

LARGEST = 256 * 1024  # bytes: the text is in every plan, and kept with the release on the boxes


def gate_tasks(fleet: Fleet, text: str, file: Path | None) -> dict[str, str]:
    """The text of each file of gates.evaluations, found beside fleet.yaml (``file``, with ``text`` in it).

    Raises FleetFileError, at the place in fleet.yaml, for one that cannot be read or has a task that is wrong.
    """
    if not fleet.gates.evaluations:
        return {}
    from fleetctl.evals.tasks import Similar, parse_tasks, read_tasks  # which few need, and which takes time to import

    found = {}
    for number, gate in enumerate(fleet.gates.evaluations):
        if file is None:
            raise SpecError(f"{gate.file} lies beside fleet.yaml, and that was read from a box", hint="--fleet FILE")
        path = file.parent / Path(gate.file).expanduser()
        try:
            found[gate.file] = read_tasks(path, LARGEST)
            tasks = parse_tasks(found[gate.file], str(path))
            alike = next((task for task in tasks if isinstance(task.rule, Similar)), None)
            if alike is not None:
                raise SpecError(
                    f"{path}: {alike.id} is scored `similar`, which needs an embedding model: not in a gate"
                )
        except SpecError as error:
            from fleetctl.spec.load import problem_at

            raise problem_at(text, str(file), ("gates", "evaluations", number, "file"), error.message) from error
    return found


def have_suites(plan: Plan) -> None:
    """Raises SpecError, with the command, when a suite that the plan wants asked is not installed here."""
    tools = plan.release.gates.tools
    if tools is None or tools.suite == "tools":
        return
    from fleetctl.evals.outside import program_of

    if any(tools.suite in step.params.get("scores", {}) for step in plan.steps):
        program_of(tools.suite)
