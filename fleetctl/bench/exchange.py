"""One request and what came back: when its tokens arrived, how many there were, and what went wrong.

Server-sent events are read as they arrive and each is given the time at which its bytes did. An answer in one piece
has its first and its last token when it is complete.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

MOST_ANSWER = 64 << 20  # bytes of an answer that are kept; an embedding of many texts is long


@dataclass(slots=True)
class Request:
    """What to send. ``body`` is JSON; ``tokens`` is how many output tokens it asks for (0: none, an embedding)."""

    path: str
    body: bytes
    stream: bool
    tokens: int
    prompt_tokens: int = 0
    """About how many tokens the prompt has; counts where the server does not tell."""


@dataclass(slots=True)
class Window:
    """The time that is measured, in seconds of ``time.perf_counter``; nothing counts before it and after it."""

    begin: float = math.inf
    end: float = math.inf

    def has(self, now: float) -> bool:
        """A moment is in it."""
        return self.begin <= now < self.end


class Exchange:
    """One request under way. Times are seconds of ``time.perf_counter``.

    ``intended`` is when it should have been sent: in an open loop latency counts from there, however late it was sent.
    """

    __slots__ = (
        "_rest",
        "chunks",
        "done",
        "ended",
        "error",
        "first",
        "inside",
        "intended",
        "last",
        "output_tokens",
        "prompt_tokens",
        "request",
        "sent",
        "status",
        "window",
    )

    def __init__(self, request: Request, intended: float, window: Window) -> None:
        self.request = request
        self.intended = intended
        self.window = window
        self.sent = intended
        self.status = 0
        self.first: float | None = None
        self.last: float | None = None
        self.ended: float | None = None
        self.chunks = 0
        """Pieces of the answer that had tokens; and ``inside``: how many of them arrived in the window."""
        self.inside = 0
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        """What the server counted, once it has said so."""
        self.error: str | None = None
        """The kind of failure, for counting: ``status 503``, ``stream broke off``."""
        self.done = False
        self._rest = b""

    @property
    def tokens_in(self) -> int:
        """Tokens of the prompt, as the server counted them, else as they were meant."""
        return self.request.prompt_tokens if self.prompt_tokens is None else self.prompt_tokens

    def body(self, data: bytes, now: float) -> None:
        """Take bytes of the answer."""
        if not self.request.stream or self.status != 200:
            if len(self._rest) < MOST_ANSWER:
                self._rest += data
            return
        whole = self._rest + data if self._rest else data
        if b"\r" in whole:
            whole = whole.replace(b"\r\n", b"\n")
        *events, self._rest = whole.split(b"\n\n")
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data:"):
                    self._event(line[5:].strip(), now)

    def _event(self, payload: bytes, now: float) -> None:
        if payload == b"[DONE]":
            self.done = True
            return
        try:
            told = json.loads(payload)
        except ValueError:
            self.error = self.error or "event is not JSON"
            return
        if not isinstance(told, dict) or "error" in told:
            self.error = self.error or "error in the stream"
            return
        self._usage(told.get("usage"))
        choices = told.get("choices")
        if choices and has_text(choices[0]):
            self._piece(now)

    def _piece(self, now: float) -> None:
        if self.first is None:
            self.first = now
        self.last = now
        self.chunks += 1
        if self.window.begin <= now < self.window.end:
            self.inside += 1

    def _usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            counted, made = usage.get("prompt_tokens"), usage.get("completion_tokens")
            self.prompt_tokens = counted if isinstance(counted, int) else self.prompt_tokens
            self.output_tokens = made if isinstance(made, int) else self.output_tokens

    def complete(self, now: float) -> None:
        """The answer is whole."""
        self.ended = now
        if self.error is not None:
            return
        if self.status != 200:
            self.error = f"status {self.status}"
        elif self.request.stream:
            if not self.done:
                self.error = "stream broke off"
            elif not self.chunks:
                self.error = "answer without text"
        else:
            self._whole(now)

    def _whole(self, now: float) -> None:
        try:
            told = json.loads(self._rest)
            self._rest = b""
        except ValueError:
            self.error = "answer is not JSON"
            return
        if not isinstance(told, dict) or not (told.get("choices") or told.get("data")):
            self.error = "answer without text"
            return
        self._usage(told.get("usage"))
        self._piece(now)

    def fail(self, kind: str, now: float) -> None:
        """It ended without an answer; a kind that was seen before stays."""
        self.ended = now
        self.error = self.error or kind

    @property
    def said(self) -> str:
        """The beginning of an answer that was no success, for people."""
        return self._rest[:400].decode("utf-8", "replace")


class Page(Exchange):
    """A plain page, such as an engine's /metrics."""

    __slots__ = ()

    def complete(self, now: float) -> None:
        self.ended = now
        if self.status != 200:
            self.error = f"status {self.status}"

    @property
    def content(self) -> bytes:
        """All of it."""
        return self._rest


def has_text(choice: Any) -> bool:
    """A choice of an event brings something of the answer: text, thinking aloud, or a part of a tool call."""
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta") or choice.get("message")
    if not isinstance(delta, dict):
        return bool(choice.get("text"))
    return bool(
        delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or delta.get("tool_calls")
    )
