"""What engines say of themselves: telling lines of the log of their last start, and two looks at their counters."""

import re
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from fleetctl.onbox.engine_asking import TOOLS_OFF, ask, look_twice
from fleetctl.onbox.journalctl import read_back
from fleetctl.onbox.main import Call, op
from fleetctl.onbox.process import run
from fleetctl.onbox.redacted import hidden
from fleetctl.onbox.units import environment_of, states

DAY = 86400.0
MOST_LINES = 20_000  # lines of a unit's log that are read, the newest first
TIME, IN_ALL = 8.0, 24.0  # seconds for that, and for the logs of all units
KEPT = 3  # lines of each kind that are told, the newest
LONGEST = 400  # characters of a line that are told
RATES = 30  # throughput lines that are told, the newest: five minutes of vLLM's

WORDS: Dict[str, str] = {
    "init": r"Init torch distributed begin|distributed_init_method=tcp",
    "follower": r"waiting for rank \[",
    "died": r"(?:RayWorkerProc rank=|Worker proc |ngine core).* died unexpectedly",
    "lost": r"Failed to recv, got 0 bytes",
    "broadcast": r"No available shared memory broadcast block found in \d+ seconds",
    "versions": r"Version mismatch: The cluster was started with",
    "build": r"install the same build on every box|was given other settings|takes part in an engine of",
    "port": r"EADDRINUSE|[Aa]ddress already in use",
    "slow_start": r"Timed out waiting for engines to send initial message|Timed out waiting for engine core processes",
    "tools_off": TOOLS_OFF.pattern,
    "tools_wrong": r"Error in extracting tool call|Error trying to handle streaming tool call",
    "tools_text": r"content['\"]?[:=] ?['\"][^'\"]*<tool_call>",
    "refused": r"POST /v1/chat/completions HTTP/[\d.]+\" 400",
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


@op("examine_engines")
def examine_engines(call: Call, units: Dict[str, Optional[List[Any]]]) -> Dict[str, Any]:
    """Unit → what its log and its counters say.

    The value is None, or where it answers requests: address, port, the model's name, and whether it was given a parser
    for tool calls. One that was is asked a question with a tool, if it has nothing else to do; one that was not, if it
    refused requests: it says then whether that was why.
    """
    found: Dict[str, Any] = {}
    present = states(call, list(units))
    looking = []
    for unit in units:
        state = present[unit]
        found[unit] = {key: state[key] for key in ("active", "sub", "result", "restarts")}
        found[unit]["began"] = _began(call, unit)
    serving = {
        unit: where for unit, where in units.items() if where is not None and present[unit]["active"] == "active"
    }
    for unit, where in serving.items():
        looking.append(_begin(look_twice, found[unit], str(where[0]), int(where[1])))
    end = time.monotonic() + IN_ALL
    for unit, told in found.items():
        told["now"] = time.time()
        log = Log(told["active"], told["began"], told["restarts"])
        limit = max(0.5, min(TIME, end - time.monotonic()))
        told.update(read_back(call, unit, told["now"] - DAY, log.take, MOST_LINES, limit))
        told.update(log.told())
    for thread in looking:
        thread.join()
    asking = []
    for unit, where in serving.items():
        told, (address, port, model, parser) = found[unit], where
        busy = len(told["looks"]) < 2 or any(look["running"] + look.get("waiting", 0.0) for look in told["looks"])
        if (parser and not busy) or (not parser and "refused" in told["found"]):
            key = environment_of(present[unit]["pid"]).get("VLLM_API_KEY", "").split(",")[0]
            asking.append(_begin(ask, told, str(address), int(port), str(model), key))
    for thread in asking:
        thread.join()
    return {"engines": found}


def _begin(work: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


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
            self._aborted = [at, hidden(text[:LONGEST])]
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
                self._progress = [at, hidden(text[:LONGEST])]
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
    return hidden(text[begin : begin + (160 if key == "tools_text" else LONGEST)])
