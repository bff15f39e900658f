"""A YAML file other than fleet.yaml as plain values: one message for whatever is wrong with its text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fleetctl.errors import SpecError

LONGEST = 1 << 20  # bytes of a file


def plain_text(path: Path) -> str:
    """The text of a file. Raises SpecError, with the path, for one that cannot be read, is no file, or is too long."""
    try:
        if not path.is_file():  # of a device or a pipe there may be no end
            raise SpecError(f"{path} cannot be read: it is no file")
        with path.open("rb") as file:
            raw = file.read(LONGEST + 1)
        if len(raw) > LONGEST:
            raise SpecError(f"{path} has more than {LONGEST:,} bytes")
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not UTF-8 text") from error


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
