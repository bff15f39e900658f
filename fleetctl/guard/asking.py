"""Talking to an engine: its counters every second, and a completion when one is asked for."""

import http.client
import json
import re
import socket
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from fleetctl.guard import box
from fleetctl.guard.box import Place
from fleetctl.guard.seen import Answer, Counters

EVERY = 1.0  # seconds between two looks at /metrics
LATE = 2.5  # seconds until one that has not answered counts as silent
FRESH = 4.0  # seconds for which counters say something
LIMIT = 4 * 1024 * 1024  # bytes of metrics or of an answer that are read
MAX_TOKENS = 16  # the first of them is enough
# What moves only while an engine works: tokens, steps, and the cache, which fills while a long prompt is read and
# nothing else moves. Not how many requests there are, nor how many ended: clients come to a hung engine too, and go.
_PROGRESS = re.compile(
    r"vllm:(?:(?:prompt_tokens|generation_tokens|num_preemptions|spec_decode_num_drafts)(?:_total)?"
    r"|iteration_tokens_total_(?:count|sum)|kv_cache_usage_perc|gpu_cache_usage_perc)"
    r"|sglang:(?:(?:prompt_tokens|generation_tokens)(?:_total)?|token_usage)"
    r"|llamacpp:(?:prompt_tokens|tokens_predicted|n_decode)_total"
    r"|te_(?:embed|predict)_success(?:_total)?|te_batch_next_size_count"
)
_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred", "te_queue_size")
_SAMPLE = re.compile(r"^((?:(?:vllm|sglang|llamacpp):|te_)[a-zA-Z0-9_]+)(?:\{[^}\n]*\})? (\S+)", re.MULTILINE)


class Measured(NamedTuple):
    """What /metrics says."""

    running: int
    waiting: int
    counters: Counters


def measured(text: str) -> Optional[Measured]:
    """Counters of an engine from Prometheus text, summed over its labels; None when they are not there."""
    sums: Dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        if name in _RUNNING or name in _WAITING or _PROGRESS.fullmatch(name):
            try:
                sums[name] = sums.get(name, 0.0) + float(value)
            except ValueError:
                continue
    # text-embeddings-inference tells its queue alone; what it works on is seen by the proxy's connections.
    if not any(name in sums for name in (*_RUNNING, "te_queue_size")):
        return None
    running, waiting = (int(sum(sums.pop(name, 0.0) for name in names)) for names in (_RUNNING, _WAITING))
    return Measured(running, waiting, tuple(sorted(sums.items())))


class Watch:
    """Reads the counters of one engine in a thread of its own, so that a hung one keeps nobody waiting."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._at = 0.0
        self._seen: Optional[Measured] = None
        self._over = threading.Event()
        self._asking = threading.Event()
        self.answer: Optional[Answer] = None
        threading.Thread(target=self._run, daemon=True).start()

    def end(self) -> None:
        """Stop reading."""
        self._over.set()

    def now(self) -> Optional[Measured]:
        """The last counters, if they are of now."""
        return self._seen if box.now() - self._at < FRESH else None

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            try:
                status, text = _get(self.place, "/metrics")
                seen = measured(text) if status == 200 else None
            except (OSError, http.client.HTTPException, ValueError):
                seen = None
            if seen is not None:
                self._seen, self._at = seen, box.now()
            self._over.wait(max(0.1, EVERY - (time.monotonic() - began)))

    def ask(self, within: float) -> None:
        """Ask for a completion; ``answer`` has its end. One at a time."""
        if not self._asking.is_set():
            self._asking.set()
            threading.Thread(target=self._ask, args=(box.now(), within), daemon=True).start()

    def _ask(self, asked: float, within: float) -> None:
        try:
            well, silent, said = completion(self.place, within)
            self.answer = Answer(asked, well, silent, said)
        finally:
            self._asking.clear()


class _OverSocket(http.client.HTTPConnection):
    """To an engine that listens at a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """As http.client has it."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def connection_to(address: str, port: int, timeout: float) -> http.client.HTTPConnection:
    """A connection to an address, or to ``unix:PATH``."""
    if address.startswith("unix:"):
        return _OverSocket(address[len("unix:") :], timeout)
    return http.client.HTTPConnection(address, port, timeout=timeout)


def _get(place: Place, path: str) -> Tuple[int, str]:
    connection = connection_to(place.address, place.port, LATE)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read(LIMIT).decode("utf-8", "replace")
    finally:
        connection.close()


def completion(place: Place, within: float) -> Tuple[bool, bool, str]:
    """Ask for a few tokens: whether one came (thinking aloud counts), whether all was silence, and what was said.

    An engine that refuses the question (401, 404, 429) says that it lives; whether it would answer is left open.
    """
    chat: Dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
    plain: Dict[str, Any] = {"prompt": "Hello"}
    deadline = time.monotonic() + within
    status, said = 0, ""
    try:
        if place.path:
            status = _status(place, deadline)
            said = "answered %s" % place.path if status == 200 else ""
        for path, body in () if place.path else (("/v1/chat/completions", chat), ("/v1/completions", plain)):
            asked = dict(body, model=place.model, max_tokens=MAX_TOKENS, stream=True)
            status, said = _first_word(place, path, asked, deadline)
            if status not in (400, 404, 422):  # no chat template, for example
                break
    except TimeoutError:
        return False, True, "no answer to a completion within %.0f s" % within
    except (OSError, http.client.HTTPException, ValueError) as error:
        # socket.timeout is no TimeoutError before Python 3.10
        if time.monotonic() >= deadline - 0.1:
            return False, True, "no answer to a completion within %.0f s" % within
        return False, False, "a completion failed: %s" % (error or type(error).__name__)
    if status >= 500 or (status == 200 and not said):
        return False, False, "a completion failed with status %d" % status
    return True, False, said or "status %d" % status


def _status(place: Place, deadline: float) -> int:
    """Status of the whole answer to the question that proves an engine which completes nothing."""
    connection = connection_to(place.address, place.port, max(0.1, deadline - time.monotonic()))
    try:
        headers = {"Content-Type": "application/json", "Connection": "close"}
        connection.request("POST", place.path, place.question, headers)
        answer = connection.getresponse()
        answer.read(LIMIT)
        return answer.status
    finally:
        connection.close()


def _first_word(place: Place, path: str, body: Dict[str, Any], deadline: float) -> Tuple[int, str]:
    """Status, and what came first of the answer."""
    connection = connection_to(place.address, place.port, max(0.1, deadline - time.monotonic()))
    try:
        headers = {"Content-Type": "application/json", "Connection": "close"}
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            return answer.status, ""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if connection.sock is not None:
                connection.sock.settimeout(left)
            line = answer.readline(LIMIT)
            if not line:
                return 200, ""
            word = _word_in(line.decode("utf-8", "replace"))
            if word:
                return 200, word
    finally:
        connection.close()


def _word_in(line: str) -> str:
    """What an event of a stream says: text, reasoning, a tool call or the end."""
    if not line.startswith("data:") or line[5:].strip() == "[DONE]":
        return ""
    event = json.loads(line[5:])
    choices: List[Dict[str, Any]] = event.get("choices") or []
    for choice in choices:
        delta = choice.get("delta") or choice
        for name in ("content", "reasoning_content", "reasoning", "text", "tool_calls"):
            if delta.get(name):
                return "answered with %s" % name
        if choice.get("finish_reason"):
            return "answered: %s" % choice["finish_reason"]
    return ""
