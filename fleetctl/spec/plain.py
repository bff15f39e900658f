"""A YAML file other than fleet.yaml as plain values: one message for whatever is wrong with its text."""

from __future__ import annotations

from typing import Any

import yaml

from fleetctl.errors import SpecError


def plain_yaml(text: str, source: str) -> Any:
    """The values of a text. Raises SpecError, with the source, for what is no YAML.

    Also for values that have no meaning (a 13th month, a number of 5,000 digits) and for brackets without end: the
    parser tells these in errors of their own.
    """
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SpecError(f"{source} is no YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise SpecError(f"{source} is no YAML: its values are too deep inside each other") from None
    except (ValueError, AttributeError, TypeError, OverflowError) as error:
        # AttributeError is what PyYAML raises for `!!timestamp` of something else.
        raise SpecError(f"{source} has a value that YAML cannot read: {str(error)[:200]}") from error
