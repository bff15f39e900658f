"""What engines say of themselves: telling lines of the log of their last start, and two looks at their counters."""

import http.client
import json
import re
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from fleetctl.onbox.journalctl import read_back
from fleetctl.onbox.main import Call, op
from fleetctl.onbox.process import run
from fleetctl.onbox.units import environment_of, states

DAY = 86400.0
MOST_LINES = 20_000  # lines of a unit's log that are read, the newest first
TIME, IN_ALL = 8.0, 24.0  # seconds for that, and for the logs of all units
KEPT = 3  # lines of each kind that are told, the newest
LONGEST = 400  # characters of a line that are told
RATES = 30  # throughput lines that are told, the newest: five minutes of vLLM's
APART = 2.0  # seconds between the two looks at the counters
METRICS_WAIT = 3.0  # seconds for /metrics
METRICS_SIZE = 4 * 1024 * 1024  # bytes of /metrics that are read

WORDS: Dict[str, str] = {
    "init": r"Init torch distributed begin|distributed_init_method=tcp",
    "follower": r"waiting for rank \[",
    "died": r"RayWorkerProc rank=\S+ died unexpectedly|Worker proc \S+ died unexpectedly|ngine core.* died "
    "unexpectedly",
    "lost": r"Failed to recv, got 0 bytes",
    "broadcast": r"No available shared memory broadcast block found in \d+ seconds",
    "versions": r"Version mismatch: The cluster was started with",
    "build": r"install the same build on every box|was given other settings|takes part in an engine of",
    "port": r"EADDRINUSE|[Aa]ddress already in use",
    "slow_start": r"Timed out waiting for engines to send initial message|Timed out waiting for engine core processes",
    "tools_off": r"requires --enable-auto-tool-choice and --tool-call-parser",
    "tools_wrong": r"Error in extracting tool call|Error trying to handle streaming tool call",
    "tools_text": r"content['\"]?[:=] ?['\"][^'\"]*<tool_call>",
    "lora_rank": r"LoRA rank \d+ is greater than max_lora_rank",
    "lora_none": r"No adapter found for",
    "lora_off": r"POST /v1/load_lora_adapter HTTP/[\d.]+\" 404",
    "offline": r"OfflineModeIsEnabled|offline mode is enabled",
    "gated": r"Cannot access gated repo|GatedRepoError|is a gated repo",
    "files": r"Found ulimit of \d+ and failed to automatically increase|Too many open files",
}
_WORDS = {key: re.compile(text) for key, text in WORDS.items()}
_ANY = re.compile("|".join("(?:%s)" % text for text in WORDS.values()))
_ABORTED = re.compile(r"\[shutdown\] EngineCore: aborting in-flight requests count=\d+")
# The engine answers, or has said that it will: what is older is not of interest any more.
_GOOD = re.compile(r"Application startup complete|the engine answers after|/health answers after|^Started fleetctl-")
_BEGUN = re.compile(r"Starting fleetctl-")
_RATE = re.compile(
    r"Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s, "
    r"Running: (\d+) reqs, (?:Swapped: \d+ reqs, )?Waiting: (\d+) reqs"
)
_DRAFTS = re.compile(r"Accepted: (\d+) tokens, Drafted: (\d+) tokens")
_ACCESS = re.compile(r"INFO: +\S+ - \"(?:GET|POST|HEAD|PUT|DELETE|OPTIONS) ")
_LINE = re.compile(r"^(\d+\.\d+) \S+ [^ ]*?(?:\[\d+\])?: (.*)$")

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


@op("examine_engines")
def examine_engines(call: Call, units: Dict[str, Optional[List[Any]]]) -> Dict[str, Any]:
    """Unit → what its log and its counters say.

    The value is None, or where it answers requests: address, port, and the model's name where it is to be asked a
    question with a tool, which it is when it has nothing else to do.
    """
    found: Dict[str, Any] = {}
    present = states(call, list(units))
    threads = []
    for unit, where in units.items():
        state = present[unit]
        told: Dict[str, Any] = {key: state[key] for key in ("active", "sub", "result", "restarts")}
        found[unit] = told
        told["began"] = _began(call, unit)
        if where is not None and state["active"] == "active":
            arguments = (told, str(where[0]), int(where[1]), where[2], state["pid"])
            threads.append(threading.Thread(target=_look, args=arguments, daemon=True))
            threads[-1].start()
    end = time.monotonic() + IN_ALL
    for unit, told in found.items():
        told["now"] = time.time()
        log = Log(told["active"], told["began"], told["restarts"])
        limit = max(0.5, min(TIME, end - time.monotonic()))
        told.update(read_back(call, unit, told["now"] - DAY, log.take, MOST_LINES, limit))
        told.update(log.told())
    for thread in threads:
        thread.join()
    return {"engines": found}


def _began(call: Call, unit: str) -> Optional[float]:
    """When the process of a unit began (epoch seconds); None: it never did since the box booted."""
    done = run(call, ["systemctl", "show", "-P", "ExecMainStartTimestampMonotonic", "--", unit])
    text = done["out"].strip()
    if not text.isdigit() or int(text) == 0:
        return None
    return time.time() - (time.clock_gettime(time.CLOCK_MONOTONIC) - int(text) / 1e6)


class Log:
    """Takes the lines of a unit, the newest first, and keeps those that tell something of how the unit is now.

    Of a unit that runs: the lines of its process. Of any other: those of its last try (and of the one before, while
    systemd tries again and again), but none from before it last ran well.
    """

    def __init__(self, active: str, began: Optional[float], restarts: int) -> None:
        self._running, self._began = active == "active", began
        self._tries = 2 if restarts and active == "activating" else 1
        self._over = False
        self._found: Dict[str, Dict[str, Any]] = {}
        self._rates: List[List[float]] = []
        self._drafts = [0, 0]
        self._aborted: Optional[List[Any]] = None
        self._silent = 0
        self._progress: Optional[List[Any]] = None

    def take(self, raw: bytes) -> None:
        """One line of ``journalctl -o short-unix``."""
        parsed = _LINE.match(raw.decode("utf-8", "replace"))
        if parsed is None:
            return
        at, text = float(parsed.group(1)), parsed.group(2)
        if self._aborted is None and _ABORTED.search(text):
            self._aborted = [at, text[:LONGEST]]
        if self._over or self._ends(at, text):
            self._over = True
            return
        self._take_current(at, text)

    def _ends(self, at: float, text: str) -> bool:
        """Whether this line, and all older ones, are of no interest."""
        if self._running:
            return self._began is not None and at < self._began - 0.5
        if _GOOD.search(text):
            return True
        if _BEGUN.match(text):
            self._tries -= 1
            return self._tries < 1
        return False

    def _take_current(self, at: float, text: str) -> None:
        rate = _RATE.search(text)
        drafts = _DRAFTS.search(text)
        if rate is not None and len(self._rates) < RATES:
            self._rates.append([at, *(float(value) for value in rate.groups())])
        if drafts is not None:
            self._drafts[0] += int(drafts.group(1))
            self._drafts[1] += int(drafts.group(2))
        if self._progress is None:
            if _WORDS["broadcast"].search(text):
                self._silent += 1
            elif not _ACCESS.search(text) and not (rate and not float(rate.group(1)) + float(rate.group(2))):
                self._progress = [at, text[:LONGEST]]
        if _ANY.search(text) is None:
            return
        for key, word in _WORDS.items():
            if word.search(text):
                entry = self._found.setdefault(key, {"count": 0, "last": at, "first": at, "lines": []})
                entry["count"] += 1
                entry["first"] = at
                if len(entry["lines"]) < KEPT:
                    entry["lines"].append(_shown(key, text))

    def told(self) -> Dict[str, Any]:
        """All that was kept. ``silent``: broadcast lines in a row since the engine last said anything else."""
        return {
            "found": self._found,
            "rates": self._rates,
            "drafts": self._drafts,
            "aborted": self._aborted,
            "silent": self._silent,
            "progress": self._progress,
        }


def _shown(key: str, text: str) -> str:
    """A line as it is told; of what a model wrote to somebody only the call."""
    begin = text.find("<tool_call>") if key == "tools_text" else 0
    return text[begin : begin + (160 if key == "tools_text" else LONGEST)]


def _look(told: Dict[str, Any], address: str, port: int, model: Optional[str], pid: int) -> None:
    _look_twice(told, address, port)
    busy = sum(look["running"] + look.get("waiting", 0.0) for look in told["looks"])
    if model is not None and len(told["looks"]) == 2 and not busy:
        key = environment_of(pid).get("VLLM_API_KEY", "").split(",")[0]
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
    connection = http.client.HTTPConnection(address, port, timeout=TOOL_WAIT)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        status, said = answer.status, answer.read(METRICS_SIZE)
    finally:
        connection.close()
    if status != 200:
        return {"status": status}
    message = json.loads(said.decode("utf-8", "replace"))["choices"][0]["message"]
    content = str(message.get("content") or "")
    begun = _CALLED.search(content) if TOOL["name"] in content else None
    text = content[begun.start() : begun.start() + 160] if begun else ""
    return {"status": status, "called": bool(message.get("tool_calls")), "text": text}


def _look_twice(told: Dict[str, Any], address: str, port: int) -> None:
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
    connection = http.client.HTTPConnection(address, port, timeout=METRICS_WAIT)
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
