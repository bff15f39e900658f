"""``fleetctl schema``."""

from __future__ import annotations

from fleetctl.cli.options import Debug, Json


def schema(as_event: Json = False, debug: Debug = False) -> None:
    """Print the JSON Schema of fleet.yaml."""
    import json

    from fleetctl.cli.output import emit
    from fleetctl.spec.schema import json_schema

    if as_event:
        emit("schema", schema=json_schema())
    else:
        print(json.dumps(json_schema(), indent=2))
