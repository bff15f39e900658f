"""A Plan: the value that ``fleetctl plan`` prints and ``fleetctl cutover`` executes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from fleetctl.render.release import Budget, Release, Value


class PlannedStep(Value):
    """One step: what the executor hands to the step kind of that name."""

    id: str = Field(description="unique in the plan: STAGE.KIND.TARGET")
    kind: str
    stage: str
    box: str = Field(description="box it acts on")
    target: str = Field(description="what it is about: a box, an engine or the proxy")
    params: dict[str, Any] = {}
    summary: str = Field(description="one plain line")
    after: tuple[str, ...] = Field((), description="ids of the steps that must be done first")
    turn: int | None = Field(None, description="which engine's turn it belongs to, from 1, where one follows another")


class Stage(Value):
    """A named part of the move, as the playbook lists it."""

    name: str
    summary: str


class FileDiff(Value):
    """How one file on one box will change."""

    box: str
    path: str
    change: str = Field(description="new, changed or removed")
    diff: str = Field(description="unified diff; secrets appear as @secret:NAME@")


class Gap(Value):
    """How long no engine will be up."""

    expected: float | None = Field(description="seconds; None: not known yet")
    why: str


class Sizing(Value):
    """What an engine will have for its cache, as the sum of its memory says."""

    engine: str
    lines: tuple[str, ...]
    tokens: int | None = Field(None, description="tokens of cache; None: not known")
    in_doubt: bool = Field(False, description="with the most overhead that is likely it does not start")
    exact: bool = Field(False, description="the cache is given in bytes: in doubt is whether the share holds it")
    beyond: int = Field(0, description="bytes beyond its share that its start was measured to take for a while")


class Plan(Value):
    """A move from one generation to the next."""

    move: str = Field(description="identity of the move: UTC time and a few letters")
    fleet: str
    operation: str = Field(description="cutover, rollback, or one of IN_PLACE or STAYING (facts/operations.py)")
    playbook: str
    from_layout: str | None
    from_generation: int | None
    to_layout: str | None
    generation: int | None = Field(description="generation that is current when the move is done; None: none")
    previous: int | None = Field(description="generation that a rollback from there goes to")
    lead: str = Field(description="box that keeps the journal and the lock")
    boxes: tuple[str, ...]
    source: Release
    release: Release
    stages: tuple[Stage, ...]
    steps: tuple[PlannedStep, ...]
    diffs: tuple[FileDiff, ...] = ()
    budgets: tuple[Budget, ...] = ()
    sizings: tuple[Sizing, ...] = ()
    others: dict[str, str] = Field({}, description="box → what services there that are no engines take at their worst")
    gap: Gap
    warnings: tuple[str, ...] = ()
    questions: dict[str, dict[str, Any]] = Field({}, description="box → what was asked for the facts")
    observed: dict[str, str] = Field({}, description="box → digest of the facts the plan rests on")

    def nothing_to_do(self) -> bool:
        """The fleet is in the wanted state already."""
        return not self.steps

    def stage_steps(self, stage: str) -> Iterator[PlannedStep]:
        """The steps of one stage, in order."""
        return (step for step in self.steps if step.stage == stage)
