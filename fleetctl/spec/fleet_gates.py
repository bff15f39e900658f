"""The part of fleet.yaml about gates: what an engine must pass before it gets traffic."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fleetctl.spec.part import Count, Name, Part
from fleetctl.spec.units import Duration


class CompletionGate(Part):
    """A real completion, asked of the engine directly, streaming and not."""

    prompt: str = Field(default="Answer with one word: what is the capital of France?", description="what is asked")
    max_tokens: Count = Field(default=4, description="longest answer in tokens; thinking aloud counts as an answer")
    within: Duration = Field(default=120.0, description="longest time for the whole answer")


class EmbeddingGate(Part):
    """Vectors of a few texts, asked of an engine that embeds: the same text has to get the same vector."""

    dimensions: Count | None = Field(default=None, description="length that a vector has to have; default: any")
    normalised: bool = Field(default=True, description="every vector has to have the length 1, as a point of a sphere")
    within: Duration = Field(default=120.0, description="longest time for an answer")


class TaskFile(Part):
    """Where the tasks are."""

    file: Annotated[str, Field(min_length=1)] = Field(
        description="JSON Lines with tasks as `fleetctl eval FILE` takes them; relative to fleet.yaml, at most 256 KiB"
    )


class ScoreGate(Part):
    """A test with a score of 0 to 100, asked of the engine directly."""

    at_least: Annotated[float, Field(ge=0, le=100)] = Field(default=0.0, description="lowest score that passes")
    no_worse_than: Literal["current"] | None = Field(
        default=None,
        description="`current`: the score must not be lower than that of the build of this model that serves now, as "
        "this gate or `fleetctl eval` noted it",
    )
    tolerance: Annotated[float, Field(ge=0, le=100)] = Field(
        default=3.0, description="points that it may be lower nevertheless"
    )
    models: tuple[Name, ...] = Field(default=(), description="models that are tested; default: all")
    concurrency: Count | None = Field(
        default=None, description="questions asked at a time; default: the model's concurrency on that box"
    )
    within: Duration = Field(default=900.0, description="longest time for the whole test")


class ToolsGate(ScoreGate):
    """The tool-use test of `fleetctl eval tools`, asked of the engine directly: 60 scenarios, a score of 0 to 100."""

    max_tokens: Count = Field(default=2048, description="longest answer to one scenario, thinking aloud included")
    suite: Literal["tools", "tool-eval-bench"] = Field(
        default="tools",
        description="`tools` is fleetctl's own; `tool-eval-bench` has to be installed where fleetctl runs",
    )


class TasksGate(ScoreGate, TaskFile):
    """A file of tasks with known answers, asked of the engine directly: a score of 0 to 100."""


class LongContextGate(Part):
    """One long prompt, asked of the engine directly, with a phrase in its middle that has to be found."""

    tokens: Count | None = Field(
        default=None, description="length of the prompt; default: three quarters of the model's context"
    )
    find: bool = Field(default=True, description="the phrase has to be in the answer; without, any text will do")
    max_tokens: Count = Field(default=512, description="longest answer, thinking aloud included")
    within: Duration = Field(default=900.0, description="longest time for the answer")


class SameAnswersGate(Part):
    """Prompts asked of the engine that serves before a move, and of the new one, at temperature 0."""

    prompts: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="what is asked; default: ten short prompts"
    )
    at_least: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.8, description="part of the answers that have to be the same, 0 to 1"
    )
    max_tokens: Count = Field(default=32, description="longest answer; the longer, the sooner two builds differ")
    within: Duration = Field(default=120.0, description="longest time for one answer")


class Gates(Part):
    """What an engine must pass before it gets traffic. Readiness, model and context are always checked."""

    completion: CompletionGate = Field(default=CompletionGate(), description="a real completion")
    embedding: EmbeddingGate = Field(
        default=EmbeddingGate(), description="vectors, of an engine that embeds (and the time limit of one that ranks)"
    )
    long_context: LongContextGate | None = Field(
        default=None, description="a long prompt; without this key there is none"
    )
    same_answers: SameAnswersGate | None = Field(
        default=None, description="answers compared with those of the build that serves; without this key there is none"
    )
    tools: ToolsGate | None = Field(default=None, description="a tool-use test; without this key there is none")
    evaluations: tuple[TasksGate, ...] = Field(default=(), description="files of tasks with known answers")
    unpinned: bool = Field(
        default=False,
        description="models of a pool that are not pinned are loaded once on each box and pass their gates, when the "
        "proxy has opened; default: their first request proves them",
    )
