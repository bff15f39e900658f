"""The JSON Schema of fleet.yaml, for editors and other tools."""

from __future__ import annotations

from typing import Any

from fleetctl.spec.fleet import Fleet

SCHEMA_ID = "urn:fleetctl:fleet.yaml:1"


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of every form that fleet.yaml takes. Rules between parts are not in it."""
    schema = _tidied(Fleet.model_json_schema(mode="validation"))
    schema["description"] = "Boxes, models, layouts and the proxy of a fleet, as fleetctl reads them."
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "fleet.yaml",
        **schema,
    }


def _tidied(schema: Any) -> Any:
    """A schema that refuses names that break the pattern, and is without titles that only repeat the key."""
    if isinstance(schema, list):
        return [_tidied(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tidy = {key: _tidied(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    if "patternProperties" in tidy:
        tidy.setdefault("additionalProperties", False)
    if "anyOf" in tidy:
        tidy.pop("minLength", None)  # said by the options themselves, as minItems and minProperties
    if isinstance(tidy.get("description"), str):
        tidy["description"] = tidy["description"].replace("``", "`")
    return tidy
