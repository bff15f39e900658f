"""The fleet that the tests of interruptions cut, kill and freeze, and what it has to look like afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from operators import OTHER, UNFINISHED, Operators, answers, state_of
from places import BOXES_ARE, NEW, USED

from fleetctl.lab.lab import Lab

CONTROL = "/etc/standin.json"


class Subject:
    """The fleet that is cut, with what it has to look like in each layout."""

    def __init__(self, operators: Operators) -> None:
        self.operators = operators
        self.lab = operators.lab
        self.right: dict[str, dict[str, str]] = {}

    def be_in(self, layout: str, *, with_way_back: bool = False) -> None:
        """Whatever was before, the fleet is in this layout; with the way back a rollback leads to the other one."""
        code, told = self.operators.status()
        if code == UNFINISHED:
            self.operators.do("rollback", "--undo")
            code, told = self.operators.status()
        if code == 0 and told["layout"] == layout and not with_way_back:
            return
        if told["layout"] == layout:
            self.operators.do("cutover", "--to", OTHER[layout])
        self.operators.do("cutover", "--to", layout)
        self.right[layout] = state_of(self.lab)

    def is_whole_in(self, layout: str, story: str) -> None:
        """It serves in this layout, units, enablement and files exact, and nothing is held or open."""
        code, told = self.operators.status()
        assert code == 0, f"{told['problems']} {told['unfinished']}\n{story}"
        assert told["layout"] == layout, story
        assert told["lock"] is None and told["unfinished"] is None
        assert answers(self.lab)
        assert state_of(self.lab) == self.right[layout], story

    @contextmanager
    def slow_loads(self, seconds: float) -> Iterator[None]:
        """Engines that start in here take this long to load."""
        for box in self.lab.boxes():
            self.lab.exec(box.name, ["sh", "-c", f"cat > {CONTROL}"], json.dumps({"load_seconds": seconds}))
        try:
            yield
        finally:
            for box in self.lab.boxes():
                self.lab.exec(box.name, ["rm", "-f", CONTROL])

    def move(self, operation: str, to: str) -> tuple[str, ...]:
        """The command line of a move that leads to a layout from the other one."""
        return ("cutover", "--to", to) if operation == "cutover" else ("rollback",)


@pytest.fixture(scope="module")
def subject(
    moving_lab: Lab, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Subject]:
    if request.session.stash[BOXES_ARE] != NEW:
        moving_lab.reset()
    request.session.stash[BOXES_ARE] = USED
    text = moving_lab.fleet_file.read_text().replace('STANDIN_LOAD_SECONDS: "5"', 'STANDIN_LOAD_SECONDS: "0.5"')
    file = Path(tmp_path_factory.mktemp("fleet")) / "fleet.yaml"
    file.write_text(text)
    operators = Operators(moving_lab, file)
    made = Subject(operators)
    for box in moving_lab.boxes():  # faults of the tests before, which may have been in another file
        moving_lab.exec(box.name, ["rm", "-f", CONTROL])
    for layout in OTHER:
        operators.do("cutover", "--to", layout)
        made.right[layout] = state_of(moving_lab)
    yield made
    operators.close()
