"""The concurrency that was found is written into fleet.yaml where it belongs, and nothing else changes."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from fleetctl.errors import SpecError
from fleetctl.spec.edit import with_concurrency
from fleetctl.spec.load import parse_fleet

EXAMPLE = (Path(__file__).parents[2] / "templates" / "example.yaml").read_text()
HEAD = """\
fleet: office
boxes:
  a: {address: 10.0.0.1, memory: 100GiB, reserve: 20GiB}
  b: {address: 10.0.0.2, memory: 100GiB, reserve: 20GiB}
models:
  m: {weights: org/m, context: 8192, launch: {venv: /opt/vllm}}
proxy: {box: a}
layouts:
"""


def changed(before: str, after: str) -> list[str]:
    told = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in told if line[0] in "+-"]


@pytest.mark.parametrize(
    ("layouts", "boxes", "lines"),
    [
        (
            "  one: {m: {copies: [a, b], concurrency: 12}}  # ours\n",
            ["a", "b"],
            [
                "-   one: {m: {copies: [a, b], concurrency: 12}}  # ours",
                "+   one: {m: {copies: [a, b], concurrency: 8}}  # ours",
            ],
        ),
        (
            "  one:\n    m:\n      concurrency: 12  # until we know better\n      copies: [a, b]\n",
            ["a"],
            ["-       concurrency: 12  # until we know better", "+       concurrency: 8  # until we know better"],
        ),
        (
            "  one:\n    m:\n      port: 8123\n      copies: [a, b]\n",
            ["a", "b"],
            ["+       concurrency: 8"],
        ),
        (
            "  one:\n    m:\n      concurrency: 12\n      copies:\n        a: {concurrency: 4}  # old\n        b:\n",
            ["a", "b"],
            [
                "-       concurrency: 12",
                "+       concurrency: 8",
                "-         a: {concurrency: 4}  # old",
                "+         a: {concurrency: 8}  # old",
            ],
        ),
        (
            "  one:\n    m:\n      copies:\n        a: {concurrency: 4}\n        b: {concurrency: 5}\n",
            ["a", "b"],
            [
                "-         a: {concurrency: 4}",
                "-         b: {concurrency: 5}",
                "+         a: {concurrency: 8}",
                "+         b: {concurrency: 8}",
            ],
        ),
        ("  one: {m: {split: [a, b], concurrency: 8}}\n", ["a"], []),
    ],
    ids=["flow", "block with a comment", "not there yet", "of a copy of its own", "all of their own", "it has it"],
)
def test_it_is_set_where_the_placement_or_the_copy_has_it(layouts: str, boxes: list[str], lines: list[str]) -> None:
    after = with_concurrency(HEAD + layouts, "one", "m", 8, boxes)
    assert sorted(line for line in changed(HEAD + layouts, after)) == sorted(lines)


def test_the_other_layouts_of_the_example_stay_as_they_are() -> None:
    after = with_concurrency(EXAMPLE, "split", "qwen", 31, ["spark1"])
    before, fleet = parse_fleet(EXAMPLE, "example"), parse_fleet(after, "example")
    assert fleet.layouts["split"]["qwen"].concurrency == 31
    assert fleet.layouts["replicas"] == before.layouts["replicas"]
    assert len(changed(EXAMPLE, after)) <= 4


@pytest.mark.parametrize(
    ("layouts", "told"),
    [
        ("  one: {m: &p {copies: [a], concurrency: 4}}\n  two: {m: *p}\n", "write this under layouts: one: m"),
        ("  one: {m: {copies: [a], concurrency: 6, arguments: ['--max-num-seqs=6']}}\n", "max-num-seqs"),
    ],
)
def test_what_would_change_more_or_cannot_be_is_refused(layouts: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        with_concurrency(HEAD + layouts, "one", "m", 8)
    assert told in str(caught.value)
