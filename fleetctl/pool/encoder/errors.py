"""What goes wrong with a model, when the server starts, and with a request, while it serves."""

from __future__ import annotations

from fleetctl.errors import FleetError


class ModelError(FleetError):
    """The model cannot be served: what is wrong with its folder, and what to do."""


class RequestError(Exception):
    """A request that is answered with an error, in the words of OpenAI's API."""

    def __init__(self, message: str, *, status: int = 400, kind: str = "", parameter: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind or ("BadRequestError" if status == 400 else "NotFoundError")
        self.parameter = parameter
