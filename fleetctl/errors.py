"""The one hierarchy of errors that fleetctl raises on purpose.

Each carries the exit status of the process, so that scripts can tell kinds of failure apart. The numbers are
documented in ``docs/exit-codes.md`` and do not change.
"""

from __future__ import annotations


class FleetError(Exception):
    """Something an operator has to know: what happened, where, and (in ``hint``) what to do next."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class SpecError(FleetError):
    """fleet.yaml, a playbook or an option is not usable."""

    exit_code = 2


class BoxError(FleetError):
    """A box cannot be reached or used (SSH, sudo, python3)."""

    exit_code = 3

    def __init__(self, box: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{box}: {message}", hint=hint)
        self.box = box


class LockedError(FleetError):
    """Another operator holds the fleet."""

    exit_code = 4


class RefusedError(FleetError):
    """The plan cannot be carried out as things are; nothing was changed."""

    exit_code = 5


class MoveUndoneError(FleetError):
    """A move failed and everything it had done was undone."""

    exit_code = 6


class MoveStuckError(FleetError):
    """A move failed and could not be undone completely: a person has to look."""

    exit_code = 7


class InterruptedMoveError(FleetError):
    """The operator stopped a move (Ctrl-C, SIGTERM) and everything it had done was undone."""

    exit_code = 130


class UnfinishedError(FleetError):
    """An earlier move was cut off; it has to be finished or undone first."""

    exit_code = 8


class UnhealthyError(FleetError):
    """The fleet was looked at and something is wrong with it."""

    exit_code = 9


class LabError(FleetError):
    """The lab cannot run here, or one of its boxes does not do as asked."""

    exit_code = 10


class StepError(FleetError):
    """A step of a move failed; the executor turns it into MoveUndoneError or MoveStuckError."""

    exit_code = 6


def reason(box: str, error: FleetError) -> str:
    """The message of a box's error without the name of the box, which is said beside it."""
    return error.message.removeprefix(f"{box}: ") if isinstance(error, BoxError) else error.message
