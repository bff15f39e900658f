"""fleet.yaml from disk or from text to a :class:`Fleet`, with every problem of it told in one pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from fleetctl.errors import SpecError
from fleetctl.spec.checks import check
from fleetctl.spec.explain import explain
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.problems import FleetFileError, Problem, listed
from fleetctl.spec.problems import Path as KeyPath
from fleetctl.spec.syntax import LONGEST, compose, lines_of
from fleetctl.spec.tree import TooLargeError, Tree
from fleetctl.spec.wants import required

_STARTER = "`fleetctl init [USER@]HOST…` writes a starter"
_OTHER_ENCODINGS = (
    (b"\xff\xfe\0\0", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)


@dataclass(frozen=True)
class Loaded:
    """A fleet with the text that it was read from and where that lies."""

    fleet: Fleet
    text: str
    path: Path


def load_fleet(path: Path) -> Loaded:
    """Read and check a fleet.yaml. Raises SpecError that lists every problem with its place in the file."""
    text = _read(path)
    return Loaded(parse_fleet(text, str(path)), text, path)


def parse_fleet(text: str, source_name: str) -> Fleet:
    """A fleet from text; ``source_name`` stands before each problem. Raises FleetFileError, a SpecError."""
    text = text.removeprefix("\ufeff")
    root = compose(text, source_name)
    keys = listed(required(Fleet))
    if root is None:
        message = f"there is nothing in this file; it needs the keys {keys} ({_STARTER})"
        raise FleetFileError(source_name, [Problem(1, 1, (), message)])
    lines = lines_of(text)
    try:
        tree = Tree(root)
    except TooLargeError as error:
        problem = Problem(*error.place, (), str(error))
        raise FleetFileError(source_name, [_inside(problem, lines)]) from None
    if not isinstance(tree.data, dict):
        kind = "a list" if isinstance(tree.data, list) else "a single value" if tree.data is not None else "empty"
        message = f"the file is {kind}, and must be a mapping with the keys {keys} ({_STARTER})"
        raise FleetFileError(source_name, [_inside(tree.problem((), message), lines)])
    problems = list(tree.problems)
    fleet = None
    try:
        fleet = Fleet.model_validate(tree.data)
    except ValidationError as error:
        problems += explain(tree) or ([] if problems else _unexplained(tree, error))
    problems = _once(problems, check(tree))
    if problems or fleet is None:
        raise FleetFileError(source_name, [_inside(problem, lines) for problem in problems])
    return fleet


def problem_at(text: str, source_name: str, path: KeyPath, message: str) -> FleetFileError:
    """The error for a value of a file that is valid by itself, at its place in the text."""
    root = compose(text.removeprefix("\ufeff"), source_name)
    assert root is not None
    return FleetFileError(source_name, [Tree(root).problem(path, message)])


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(4 * LONGEST + 1)
    except FileNotFoundError:
        raise SpecError(
            f"{path}: there is no such file", hint=f"{_STARTER}; --fleet or FLEETCTL_FLEET names another file"
        ) from None
    except IsADirectoryError:
        raise SpecError(f"{path} is a directory, not a file", hint=f"write {path}/fleet.yaml") from None
    except PermissionError:
        raise SpecError(f"{path} cannot be read: permission denied", hint=f"try `ls -l {path}`") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"{path} cannot be read: {reason}", hint="name another file") from None
    for mark, encoding in _OTHER_ENCODINGS:
        if data.startswith(mark):
            raise FleetFileError(str(path), [Problem(1, 1, (), f"the file is in {encoding}; save it as UTF-8")])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", "replace")
        line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        what = f"the byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise FleetFileError(str(path), [Problem(line, column, (), what)]) from None


def _inside(problem: Problem, lines: list[str]) -> Problem:
    """The problem at a place that is in the file: YAML puts an empty value at its end behind the last line."""
    line = min(problem.line, len(lines))
    column = min(problem.column, len(lines[line - 1]) + 1) if line == problem.line else len(lines[line - 1]) + 1
    return replace(problem, line=line, column=column)


def _once(structure: list[Problem], rules: list[Problem]) -> list[Problem]:
    """Problems without repetition: a rule is silent where the structure is wrong, and an alias speaks once."""
    wrong = {problem.path for problem in structure}
    found = structure + [problem for problem in rules if problem.path not in wrong]
    unique: dict[tuple[int, int, str], Problem] = {}
    for problem in found:
        unique.setdefault((problem.line, problem.column, problem.message), problem)
    return list(unique.values())


def _unexplained(tree: Tree, error: ValidationError) -> list[Problem]:
    """The places that pydantic names, for a rule of a model that has no words of its own."""
    problems = []
    for found in error.errors(include_url=False, include_input=False):
        path = tuple(found["loc"])
        while path and not tree.knows(path):
            path = path[:-1]
        problems.append(tree.problem(path, "this value is not accepted here; compare it with `fleetctl schema`"))
    return problems
