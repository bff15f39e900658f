"""Errors a client sees, in the bodies that vLLM 0.32 gives them."""

import json
from http import HTTPStatus
from typing import Any

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class ApiError(Exception):
    """An answer with an error status. `kind` is the `type` in the body, such as `NotFoundError`."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.content: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": status}}

    def body(self) -> bytes:
        """The JSON body."""
        return json.dumps(self.content).encode()


def plain_status(status: int) -> ApiError:
    """What the web framework answers by itself: 404 and 405."""
    phrase = HTTPStatus(status).phrase
    return ApiError(status, phrase, phrase)


def bad_request(message: str, param: str | None = None, value: object = None) -> ApiError:
    """400 for a request that was read but cannot be served."""
    extras = [f"parameter={param}"] if param is not None else []
    if value is not None:
        extras.append(f"value={value}")
    return ApiError(400, f"{message} ({', '.join(extras)})" if extras else message, "BadRequestError", param)


def invalid(kind: str, place: str, message: str, given: object) -> ApiError:
    """400 for a body that does not have the right form; `place` is like `body.messages`."""
    shown = f"<{type(given).__name__} of {len(given)} items>" if isinstance(given, (dict, list)) else given
    error = {"type": kind, "loc": place, "msg": message, "input": shown}
    return ApiError(400, f"1 validation error:\n  {error}", "Bad Request", place)


def unknown_model(name: str, served: list[str]) -> ApiError:
    """404 for a model name that is not served; adapters are not among the names that it tells."""
    told = f"The model `{name}` does not exist. Valid aliases: {', '.join(served)}."
    return ApiError(404, told, "NotFoundError", "model")


def engine_dead() -> ApiError:
    """500 for every request once the engine core is gone."""
    return ApiError(500, ENGINE_DEAD, "InternalServerError")


def internal(message: str = "Internal server error") -> ApiError:
    """500 for a failure of this request only."""
    return ApiError(500, message, "InternalServerError")


class UnauthorizedError(ApiError):
    """401: no API key, or a wrong one. vLLM's body here is not in the OpenAI form."""

    def __init__(self) -> None:
        super().__init__(401, "Unauthorized", "Unauthorized")
        self.content = {"error": "Unauthorized"}
