"""The tool-use test: what is asked and what has to come back. Pure; the text is ``evals/tools.yaml``."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from fleetctl.resources import root_text

_AREAS = ("crm", "billing", "warehouse", "fleet", "hr", "travel", "media", "garden", "library", "clinic")
_VERBS = ("list", "create", "archive", "export", "approve", "count", "merge", "assign", "audit", "sync")
_NOUNS = ("contract", "invoice", "vehicle", "shift", "recipe", "sample", "permit", "parcel", "member", "sensor")


class _Text(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Said(_Text):
    """One message of a conversation: what the user says, what was called, or what a tool answered."""

    user: str | None = None
    calls: tuple[dict[str, dict[str, Any]], ...] = ()
    result: str | None = None


class Scenario(_Text):
    """One question. ``id`` is CATEGORY.NUMBER; the other fields are explained at the top of the file."""

    id: str = ""
    category: str = ""
    tools: tuple[str, ...] = Field(min_length=1)
    decoys: int = 0
    user: str | None = None
    messages: tuple[Said, ...] = ()
    choice: str = "auto"
    stream: bool = False
    calls: tuple[dict[str, dict[str, Any]], ...]
    says: tuple[str, ...] = ()


class Tool(_Text):
    """A function that may be called."""

    description: str
    parameters: dict[str, dict[str, Any]]
    required: tuple[str, ...]

    def arguments(self) -> dict[str, Any]:
        """JSON Schema of its arguments."""
        return {
            "type": "object",
            "properties": self.parameters,
            "required": list(self.required),
            "additionalProperties": False,
        }


class Suite(_Text):
    """All scenarios, in the order of the file, and the tools that they name."""

    catalogue: dict[str, Tool]
    scenarios: tuple[Scenario, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """Names of the categories, in order."""
        return tuple(dict.fromkeys(one.category for one in self.scenarios))

    def request(self, scenario: Scenario, model: str, *, max_tokens: int, seed: int) -> dict[str, Any]:
        """Body of the chat completion that asks it. Temperature 0; ``seed`` also shuffles the tools."""
        body: dict[str, Any] = {
            "model": model,
            "messages": list(_messages(scenario)),
            "tools": self._tools(scenario, seed),
            "tool_choice": scenario.choice,
            "temperature": 0,
            "seed": seed,
            "max_tokens": max_tokens,
        }
        if scenario.choice not in ("auto", "required", "none"):
            body["tool_choice"] = {"type": "function", "function": {"name": scenario.choice}}
        return {**body, "stream": True} if scenario.stream else body

    def _tools(self, scenario: Scenario, seed: int) -> list[dict[str, Any]]:
        # The same order for the same seed, whatever ran before: each scenario has dice of its own.
        dice = random.Random(f"{seed} {scenario.id}")
        tools = [_function(name, tool.description, tool.arguments()) for name, tool in self._named(scenario)]
        tools += [_decoy(number) for number in range(scenario.decoys)]
        dice.shuffle(tools)
        return tools

    def _named(self, scenario: Scenario) -> list[tuple[str, Tool]]:
        return [(name, self.catalogue[name]) for name in scenario.tools]


def load_suite() -> Suite:
    """The suite that ships."""
    document = yaml.safe_load(root_text("evals", "tools.yaml"))
    scenarios = tuple(
        Scenario.model_validate({**one, "id": f"{category}.{number}", "category": category})
        for category, several in document["scenarios"].items()
        for number, one in enumerate(several, 1)
    )
    return Suite(catalogue=document["catalogue"], scenarios=scenarios)


def _function(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _decoy(number: int) -> dict[str, Any]:
    """One of a thousand tools that no scenario asks for."""
    area, verb, noun = _AREAS[number % 10], _VERBS[number // 10 % 10], _NOUNS[(number // 100 + number) % 10]
    schema = {
        "type": "object",
        "properties": {f"{noun}_id": {"type": "string"}, "note": {"type": "string"}},
        "required": [f"{noun}_id"],
    }
    return _function(f"{area}_{verb}_{noun}_{number}", f"{verb.capitalize()} a {noun} in the {area} system.", schema)


def _messages(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """The conversation as the OpenAI API has it. Calls are numbered, and results belong to the calls in their order."""
    if scenario.user is not None:
        yield {"role": "user", "content": scenario.user}
    made = answered = 0
    for said in scenario.messages:
        if said.user is not None:
            yield {"role": "user", "content": said.user}
        if said.calls:
            calls = [(name, arguments) for call in said.calls for name, arguments in call.items()]
            yield {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": f"call_{made + number:09d}",
                        "type": "function",
                        "function": {"name": name, "arguments": json.dumps(arguments)},
                    }
                    for number, (name, arguments) in enumerate(calls)
                ],
            }
            made += len(calls)
        if said.result is not None:
            yield {"role": "tool", "tool_call_id": f"call_{answered:09d}", "content": said.result}
            answered += 1
