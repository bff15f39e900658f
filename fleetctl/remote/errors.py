"""Errors of a connected box."""

from __future__ import annotations

from collections.abc import Mapping

from fleetctl.errors import BoxError, FleetError


class NoPythonError(BoxError):
    """The box can be reached and has no python3."""


class OpFailed(BoxError):  # noqa: N818 - it reads as what happened
    """The program on the box answered that an op failed.

    ``kind`` is ``OpError`` for a failure that the op foresaw, ``Cancelled``, ``Timeout``, or the name of the Python
    exception; ``detail`` then has the traceback from the box.
    """

    def __init__(self, box: str, op: str, kind: str, message: str, detail: str | None = None) -> None:
        super().__init__(box, message if kind in ("OpError", "Timeout") else f"{op}: {kind}: {message}")
        self.op = op
        self.kind = kind
        self.reason = message
        self.detail = detail


class ConnectionLost(BoxError):  # noqa: N818 - it reads as what happened
    """The connection is gone. What was under way on the box may or may not have happened: check before repeating."""


class SeveralBoxesError(FleetError):
    """The same thing failed on several boxes; ``errors`` has each, by the name of the box."""

    def __init__(self, errors: Mapping[str, FleetError]) -> None:
        shown = dict.fromkeys(str(error) for error in errors.values())
        super().__init__("\n".join(shown))
        self.errors = dict(errors)
        self.exit_code = next(iter(errors.values())).exit_code
