"""A model that answers every scenario of the tool-use test rightly, and can be given one fault for one category."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fleetctl.evals.scenario import Scenario, Suite

Call = dict[str, Any]
Fault = Callable[[dict[str, Any]], None]
"""Spoils a message (``content``, ``tool_calls``) of an answer."""

# A text for each regular expression of the suite.
TEXTS = {
    "~louvre": "Louvre", "~eiffel": "Eiffel Tower", "~luigi": "Luigi's", "~hauptstr": "Hauptstr. 5",
    "~(130\\D*\\*\\D*3|3\\D*\\*\\D*130)": "130 * 3", "~17.*23|23.*17": "17*23", "~5.*pipes": 'Quote: 5" pipes',
    "~see you at 7": "See you at 7.", "~good morning": "Good morning", "~dentist": "Dentist",
    "~C:\\\\temp\\\\new .?draft": 'C:\\temp\\new "draft"', "~first line\\s+second line": "first line\nsecond line",
    "~\\{.?.error.?.: null\\}.*<b>nothing</b>": 'Page shows {"error": null} & <b>nothing</b>',
    "~Übermäßig größer.*schön": "Übermäßig größer \u2013 „schön“ 😀", "~<tool_call>": "it printed <tool_call>",
}  # fmt: skip
WORDS = {
    "no_call.1": "Paris", "no_call.4": "control_light", "multi_turn.1": "Yes, take one.",
    "multi_turn.5": "Sorry, the exchange is closed.",
}  # fmt: skip


def right(scenario: Scenario) -> dict[str, Any]:
    """The message that answers a scenario as it has to be."""
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(_plain(arguments))}}
        for n, call in enumerate(scenario.calls)
        for name, arguments in call.items()
    ]
    words = WORDS.get(scenario.id, "I cannot do that with what I have.")
    return {"role": "assistant", "content": None if calls else words, "tool_calls": calls}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return _plain(value["one_of"][0]) if set(value) == {"one_of"} else {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return TEXTS[value] if isinstance(value, str) and value.startswith("~") else value


@contextmanager
def serving(suite: Suite, fault: Fault | None = None, category: str = "") -> Iterator[str]:
    """The URL of the model; ``fault`` spoils its answers in one category."""
    known = {json.dumps(suite.request(one, "m", max_tokens=9, seed=1)["messages"]): one for one in suite.scenarios}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            scenario = known[json.dumps(body["messages"])]
            message = right(scenario)
            if fault is not None and scenario.category == category:
                fault(message)
            reason = "tool_calls" if message["tool_calls"] else "stop"
            data = b"".join(_pieces(message, reason)) if body.get("stream") else _whole(message, reason)
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _whole(message: dict[str, Any], reason: str) -> bytes:
    return json.dumps({"choices": [{"message": message, "finish_reason": reason}]}).encode()


def _pieces(message: dict[str, Any], reason: str) -> Iterator[bytes]:
    """Deltas: the name of a call first, then its arguments in pieces of five characters."""
    deltas: list[dict[str, Any]] = [{"role": "assistant"}]
    deltas += [{"content": character} for character in message["content"] or ""]
    for index, call in enumerate(message["tool_calls"]):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        deltas.append({"tool_calls": [{"index": index, "id": call["id"], "function": {"name": name, "arguments": ""}}]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": arguments[at : at + 5]}}]}
            for at in range(0, len(arguments), 5)
        ]
    for delta in deltas:
        yield b"data: " + json.dumps({"choices": [{"delta": delta, "finish_reason": None}]}).encode() + b"\n\n"
    yield b"data: " + json.dumps({"choices": [{"delta": {}, "finish_reason": reason}]}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"
