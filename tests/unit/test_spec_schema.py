"""The JSON Schema accepts every form of the file that loads, and refuses what an editor should mark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from fleetctl.spec import reference
from fleetctl.spec.load import parse_fleet
from fleetctl.spec.problems import FleetFileError
from fleetctl.spec.schema import json_schema
from fleetctl.spec.syntax import compose
from fleetctl.spec.tree import Tree

ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "templates" / "example.yaml").read_text()
VALIDATOR = jsonschema.Draft202012Validator(json_schema())


def value_of(text: str) -> Any:
    root = compose(text, "fleet.yaml")
    assert root is not None
    return Tree(root).data


def loads(text: str) -> bool:
    try:
        parse_fleet(text, "fleet.yaml")
    except FleetFileError:
        return False
    return True


def test_the_schema_is_valid_and_says_what_it_is() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"].startswith("urn:")
    assert schema["title"] == "fleet.yaml"


def test_the_example_is_valid() -> None:
    assert not list(VALIDATOR.iter_errors(value_of(EXAMPLE)))


FORMS = [
    ("memory: 121.6GiB", "memory: 130567962624"),
    ("memory: 121.6GiB", "memory: 128 gb"),
    ("load_limit: 15m", "load_limit: 900"),
    ("load_limit: 15m", "load_limit: 900.5"),
    ("load_limit: 15m", "load_limit: 1500ms"),
    ("hold: 20m", "hold: 1h"),
    ("split: [spark1, spark2]", "split: {spark1: {environment: {A: b}}, spark2: }"),
    ("split: [spark1, spark2]", "split: [spark1, spark2], copies: null"),
    ("launch: {build: v32}", "launch: {image: x, engine: podman, options: [--gpus=all]}"),
    ("launch: {build: v32}", f"launch: {{image: x, id: 'sha256:{'0' * 64}', gpus: amd}}"),
    ("HF_TOKEN: {file: ~/.secrets/hf}", "HF_TOKEN: {command: [pass, hf], env: null}"),
    ("num_speculative_tokens: 4", "num_speculative_tokens: 4, draft_model: x"),
    ("link: 10.0.0.1", "link: null"),
]


@pytest.mark.parametrize(("old", "new"), FORMS, ids=[new for _, new in FORMS])
def test_every_form_that_loads_is_valid(old: str, new: str) -> None:
    assert old in EXAMPLE
    text = EXAMPLE.replace(old, new, 1)
    assert loads(text)
    assert not list(VALIDATOR.iter_errors(value_of(text)))


BAD = [
    ("fleet: office", "fleet: Office"),
    ("fleet: office", "fleet: 12"),
    ("fleet: office", "flet: office"),
    ("  spark2:\n    address", "  Spark 2:\n    address"),
    ("memory: 121.6GiB", "memory: lots"),
    ("memory: 121.6GiB", "memory: 121.6G"),
    ("memory: 121.6GiB", "memory: -1"),
    ("port: 22,", "port: 70000,"),
    ("port: 22,", 'port: "22",'),
    ("sudo_password: {env: SPARK2_SUDO}", "sudo_password: hunter2"),
    ("sudo_password: {env: SPARK2_SUDO}", "sudo_password: {env: A, file: b}"),
    ("agents: {env: FLEET_KEY_AGENTS}", "agents: hunter2"),
    ("agents: {env: FLEET_KEY_AGENTS}", "Agents: {env: FLEET_KEY_AGENTS}"),
    ("context: 262144", "context: 0"),
    ("context: 262144", "context: true"),
    ("launch: {build: v32}", "launch: {venv: /opt/vllm, image: x}"),
    ("launch: {build: v32}", "launch: /opt/vllm"),
    ('HF_HUB_OFFLINE: "1"', "HF_HUB_OFFLINE: 1"),
    ("load_limit: 15m", "load_limit: 15 parsecs"),
    ("split: [spark1, spark2]", "split: [spark1]"),
    ("split: [spark1, spark2]", "split: [spark1, 2]"),
    ("split: [spark1, spark2]", "split: []"),
    ("split: [spark1, spark2]", "split: [spark1, spark2], copies: [spark1]"),
    ("split: [spark1, spark2]", "copies: null"),
    ("concurrency: 8", "concurrency: 0"),
    ("- old-vllm.service", "- old-vllm"),
    ("max_tokens: 64", "max_tokens: many"),
]


@pytest.mark.parametrize(("old", "new"), BAD, ids=[new.strip() for _, new in BAD])
def test_what_is_wrong_by_itself_is_refused_by_the_schema_and_by_loading(old: str, new: str) -> None:
    assert old in EXAMPLE
    text = EXAMPLE.replace(old, new, 1)
    assert not loads(text)
    assert list(VALIDATOR.iter_errors(value_of(text)))


def test_every_key_has_a_description() -> None:
    schema = json_schema()
    parts = [schema, *schema["$defs"].values()]
    bare = [key for part in parts for key, value in part.get("properties", {}).items() if "description" not in value]
    assert bare == []


def test_the_reference_in_docs_is_current() -> None:
    path = ROOT / "docs" / "fleet-yaml.md"
    command = "python -m fleetctl.spec.reference > docs/fleet-yaml.md"
    assert path.read_text() == reference.reference(), f"bring it up to date with: {command}"
