"""Asking an engine itself: its counters, twice, and a question with a tool.

Of vLLM's names the few that are judged stand here again: watch/names.py, which has all, stays with the operator, and
what the guard knows of them lands with a release.
"""

import http.client
import json
import re
import time
from typing import Any, Dict, List, Optional, Tuple

from fleetctl.onbox.reaching import connection_to

APART = 2.0  # seconds between the two looks at the counters
METRICS_WAIT = 3.0  # seconds for /metrics
METRICS_SIZE = 4 * 1024 * 1024  # bytes of /metrics that are read
TOOLS_OFF = re.compile(r"requires --enable-auto-tool-choice and --tool-call-parser")
_COUNTERS = {
    "running": re.compile(r"vllm:num_requests_running"),
    "waiting": re.compile(r"vllm:num_requests_waiting"),
    "tokens": re.compile(r"vllm:(?:prompt|generation)_tokens(?:_total)?"),
    "drafted": re.compile(r"vllm:spec_decode_num_draft_tokens(?:_total)?"),
    "accepted": re.compile(r"vllm:spec_decode_num_accepted_tokens(?:_total)?"),
}
# How models write a call where no parser takes it out of their text.
_CALLED = re.compile(
    r"<tool_call>|<function=|<\|tool_call|<\|python_tag\|>|\[TOOL_CALLS\]|\{\"name\": *\"get_weather\""
)
TOOL: Dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOL_WAIT = 20.0  # seconds for the answer
TOOL_TOKENS = 128
_SAMPLE = re.compile(r"^(vllm:[a-z_]+)(?:\{[^}\n]*\})? (\S+)", re.MULTILINE)


def ask(told: Dict[str, Any], address: str, port: int, model: str, key: str) -> None:
    """Put what :func:`ask_with_tool` finds into ``told``, as ``tool``."""
    try:
        told["tool"] = ask_with_tool(address, port, model, key)
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        told["tool"] = None  # no answer in time, or none that is understood: unknown


def ask_with_tool(address: str, port: int, model: str, key: str) -> Dict[str, Any]:
    """Ask for the weather, with a tool for it. ``text`` is what of the call stands in the content instead."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "What is the weather in Paris? Call the tool get_weather."}],
        "tools": [{"type": "function", "function": TOOL}],
        "tool_choice": "auto",
        "max_tokens": TOOL_TOKENS,
        "temperature": 0,
    }
    headers = {"Content-Type": "application/json", "Connection": "close"}
    if key:
        headers["Authorization"] = "Bearer " + key
    connection = connection_to(address, port, TOOL_WAIT)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        status, said = answer.status, answer.read(METRICS_SIZE)
    finally:
        connection.close()
    if status != 200:
        return {"status": status, "refused": bool(TOOLS_OFF.search(said.decode("utf-8", "replace")))}
    message = json.loads(said.decode("utf-8", "replace"))["choices"][0]["message"]
    content = str(message.get("content") or "")
    begun = _CALLED.search(content) if TOOL["name"] in content else None
    text = content[begun.start() : begun.start() + 160] if begun else ""
    return {"status": status, "called": bool(message.get("tool_calls")), "text": text}


def look_twice(told: Dict[str, Any], address: str, port: int) -> None:
    """Counters now and a moment later; what cannot be read is not there."""
    looks: List[Dict[str, float]] = []
    told["looks"] = looks
    for number in range(2):
        if number:
            time.sleep(APART)
        try:
            status, text = _get(address, port)
        except (OSError, http.client.HTTPException, ValueError):
            return
        seen = counters(text) if status == 200 else None
        if seen is None:
            return
        looks.append(seen)


def _get(address: str, port: int) -> Tuple[int, str]:
    connection = connection_to(address, port, METRICS_WAIT)
    try:
        connection.request("GET", "/metrics", headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read(METRICS_SIZE).decode("utf-8", "replace")
    finally:
        connection.close()


def counters(text: str) -> Optional[Dict[str, float]]:
    """The few that are judged, summed over labels; None where an engine's own are not among them."""
    sums: Dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        for key, wanted in _COUNTERS.items():
            if wanted.fullmatch(name):
                try:
                    sums[key] = sums.get(key, 0.0) + float(value)
                except ValueError:
                    continue
    return sums if "running" in sums else None
