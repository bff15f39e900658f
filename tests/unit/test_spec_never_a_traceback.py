"""Whatever is in a fleet.yaml, it loads or every problem is told at a place inside the file."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.spec.load import parse_fleet
from fleetctl.spec.problems import FleetFileError
from fleetctl.spec.schema import json_schema
from fleetctl.spec.syntax import compose, lines_of
from fleetctl.spec.tree import Tree

EXAMPLE = (Path(__file__).parents[2] / "templates" / "example.yaml").read_text()
VALUE = yaml.safe_load(EXAMPLE)
VALIDATOR = jsonschema.Draft202012Validator(json_schema())
WORDS = st.sampled_from(
    ["split", "copies", "spark1", "spark2", "spark3", "qwen", "venv", "image", "env", "file", "command", "unit",
     "boxes", "on", "no", "~", "0777", "22:30", "1e3", ".nan", "71GiB", "15m", "-1", "0", "70000", "a.service",
     "fleetctl-a.service", "http://x", "--port", "--", "<<"]
)  # fmt: skip
SCALARS = st.one_of(WORDS, st.text(max_size=8), st.integers(), st.floats(), st.booleans(), st.none())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(WORDS, st.text(max_size=4)), inner, max_size=3)
    ),
    max_leaves=6,
)
SNIPPETS = st.one_of(
    st.sampled_from(
        ["\t", "{", "}", "[", "]", ":", ": ", "&a ", "*a", "!x ", "!!binary ", "- ", "\n", '"', "'", "<<: *a", "|",
         "> ", "#", "%", "@", "\0", "\x85", "\u2028", "\ufeff", "---\n", "...\n", "? ", "\\", "\r"]
    ),
    st.text(max_size=4),
)  # fmt: skip
FEW = settings(max_examples=250)


def load_or_be_told(text: str) -> bool:
    """Whether the text loads. Every problem lies inside the text and is in words of the file."""
    try:
        parse_fleet(text, "fleet.yaml")
    except FleetFileError as error:
        lines = lines_of(text.removeprefix("\ufeff"))
        assert error.problems
        for problem in error.problems:
            assert 1 <= problem.line <= len(lines)
            assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1
            assert "is not accepted here" not in problem.message  # said only where no rule has words of its own
            assert "Input should" not in problem.message
        assert [p.line for p in error.problems] == sorted(p.line for p in error.problems)
        return False
    return True


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, inner in below for found in paths_of(inner, (*path, key)))]


PATHS = [path for path in paths_of(VALUE) if path]


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """The example with a few of its values replaced, taken out, or given under another key."""
    value = deepcopy(VALUE)
    for _ in range(draw(st.integers(1, 3))):
        *above, last = draw(st.sampled_from(PATHS))
        part = value
        try:
            for key in above:
                part = part[key]
            change = draw(st.sampled_from(["replace", "delete", "rename"]))
            if change == "replace":
                part[last] = draw(VALUES)
            elif change == "delete":
                del part[last]
            else:
                part[draw(SCALARS)] = part.pop(last)
        except (KeyError, IndexError, TypeError, AttributeError):
            continue  # an earlier change took this place away
    return value


@FEW
@given(value=mutated())
def test_a_changed_value_loads_or_is_told(value: Any) -> None:
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    if load_or_be_told(text):
        root = compose(text, "fleet.yaml")
        assert root is not None
        assert not list(VALIDATOR.iter_errors(Tree(root).data))


@FEW
@given(places=st.lists(st.tuples(st.integers(0, len(EXAMPLE)), st.integers(0, 12), SNIPPETS), min_size=1, max_size=3))
def test_changed_text_loads_or_is_told(places: list[tuple[int, int, str]]) -> None:
    text = EXAMPLE
    for at, length, snippet in places:
        text = text[:at] + snippet + text[at + length :]
    load_or_be_told(text)


@FEW
@given(text=st.one_of(st.text(), st.lists(SNIPPETS, max_size=30).map("".join), VALUES.map(yaml.safe_dump)))
def test_any_text_loads_or_is_told(text: str) -> None:
    load_or_be_told(text)
