"""Answers that a gateway gives by itself, in the form that OpenAI's clients expect of errors."""

from __future__ import annotations

import json
from dataclasses import dataclass

from fleetctl.pool.exchange import Exchange


@dataclass
class Refusal(Exception):  # noqa: N818 - an answer first, and an error only in how it travels
    """A request that ends here: its status and what its client is told."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    retry_after: int | None = None
    """Seconds after which the client may try again."""
    allow: str = ""
    """Methods that the path has."""

    def body(self) -> bytes:
        """The error as JSON."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()

    def answer(self, exchange: Exchange, identity: str = "") -> None:
        """Answer a request with it, in JSON whatever was asked for: clients read errors so."""
        headers = [("x-request-id", identity)] if identity else []
        if self.retry_after is not None:
            headers.append(("retry-after", str(self.retry_after)))
        if self.allow:
            headers.append(("allow", self.allow))
        exchange.answer(self.status, self.body(), headers=headers)


def unknown_model(name: str) -> Refusal:
    """404, as OpenAI says it."""
    message = f"The model `{name[:200]}` does not exist; GET /v1/models has those that do."
    return Refusal(404, message, code="model_not_found", param="model")


def no_model() -> Refusal:
    """400 for a body in which no name stands."""
    message = "no model is named: `model` has to be a text at the top level of the body, or in the header x-model"
    return Refusal(400, message, param="model", code="missing_model")


def adapter_in_header(name: str) -> Refusal:
    """400 for an adapter that the header names and the body does not: the base model would answer."""
    message = (
        f"x-model names the LoRA adapter {name[:200]}: `model` in the body has to name it too, where engines read it"
    )
    return Refusal(400, message, param="model")


def too_long(most: int) -> Refusal:
    """413."""
    return Refusal(413, f"the body is longer than {most} bytes, which is the most here", code="body_too_long")


def body_late(seconds: float) -> Refusal:
    """408."""
    return Refusal(408, f"the body had not come within {seconds:g} s, which is as long as this request may take")


def queue_full(model: str, seconds: int) -> Refusal:
    """429 with the time after which there should be room."""
    message = f"as many requests for {model} wait as may; try again in {seconds} s"
    return Refusal(429, message, "rate_limit_error", "queue_full", retry_after=seconds)


def queue_away(why: str) -> Refusal:
    """503 while NATS cannot take the request."""
    return Refusal(503, f"the queue cannot take the request now: {why}", "server_error", "queue_away", retry_after=2)


def used_id() -> Refusal:
    """409 for an id that had a request of its own, whose answer nobody has any more."""
    message = "the request with this x-request-id was cancelled, or answered a while ago; send it with another id"
    return Refusal(409, message, code="duplicate_request", param="x-request-id")


def store_full() -> Refusal:
    """429 before a long body is read, and where one does not fit after all."""
    message = "the store for long bodies is full; try again when requests with long bodies have been served"
    return Refusal(429, message, "rate_limit_error", "store_full", retry_after=5)


def many_bodies() -> Refusal:
    """429 for a long body whose turn does not come in time."""
    message = "so many long bodies are on their way that this one would come too late; try again"
    return Refusal(429, message, "rate_limit_error", "many_bodies", retry_after=5)


def store_away() -> Refusal:
    """503 while the bucket for long bodies does not take them; the log of the gateway says why."""
    message = "a long body cannot be stored at the moment; try again, or send less at once"
    return Refusal(503, message, "server_error", "store_away", retry_after=5)


def slow_body(seconds: float) -> Refusal:
    """408 for a client that keeps one of a few places and sends nothing."""
    return Refusal(408, f"nothing of the body came for {seconds:g} s")


def late(model: str, seconds: float) -> Refusal:
    """504."""
    message = f"{model} had no answer within {seconds:g} s, which is as long as this request may take"
    return Refusal(504, message, "timeout_error", "deadline")


def broke_off(why: str) -> Refusal:
    """What is said at the end of an answer that began and cannot go on."""
    return Refusal(502, f"the answer broke off: {why}", "server_error", "broken_off")
