"""``fleetctl schema``."""

from __future__ import annotations


def schema() -> None:
    """Print the JSON Schema of fleet.yaml."""
    import json

    from fleetctl.spec.schema import json_schema

    print(json.dumps(json_schema(), indent=2))
