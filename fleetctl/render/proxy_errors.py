"""The answers that HAProxy gives by itself, in the form of the OpenAI API."""

from __future__ import annotations

import json
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ProxyError:
    """One status that HAProxy answers without an engine."""

    status: int
    reason: str
    kind: str
    code: str
    message: str
    headers: dict[str, str] = field(default_factory=dict)


def _invalid(status: int, reason: str, code: str, message: str) -> ProxyError:
    return ProxyError(status, reason, "invalid_request_error", code, message)


ERRORS = (
    _invalid(400, "Bad Request", "bad_request", "The request is not valid HTTP, or its headers are too long."),
    ProxyError(
        401,
        "Unauthorized",
        "authentication_error",
        "invalid_api_key",
        "A valid API key is needed: send it as Authorization: Bearer KEY.",
        {"WWW-Authenticate": "Bearer"},
    ),
    _invalid(403, "Forbidden", "forbidden", "The request is not allowed."),
    _invalid(404, "Not Found", "not_found", "There is nothing at this address."),
    _invalid(408, "Request Timeout", "request_timeout", "The request did not arrive in time."),
    _invalid(413, "Payload Too Large", "request_too_large", "The request is too large to find its model in it."),
    ProxyError(500, "Internal Server Error", "server_error", "proxy_error", "The proxy could not handle the request."),
    ProxyError(502, "Bad Gateway", "server_error", "engine_lost", "The engine went away while it answered."),
    ProxyError(
        503,
        "Service Unavailable",
        "service_unavailable",
        "no_engine",
        "No engine was ready to take the request in time.",
        {"Retry-After": "10"},
    ),
    ProxyError(504, "Gateway Timeout", "server_error", "engine_silent", "The engine did not answer in time."),
)


def error_body(message: str, kind: str, code: str, *, param: str | None = None) -> str:
    """The JSON body of an error."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def error_page(error: ProxyError) -> str:
    """The whole answer as HAProxy's errorfile has it, with CRLF line ends."""
    body = error_body(error.message, error.kind, error.code) + "\n"
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store", **error.headers}
    headers["Content-Length"] = str(len(body.encode()))
    lines = [f"HTTP/1.1 {error.status} {error.reason}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", body])
