"""Judging with an end: a regular expression can take years over an answer that nearly fits.

Python interrupts a search for signals alone, and takes those in the main thread alone. There it is done in place;
elsewhere (a gate of a move) a process of its own judges by rules that search.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import TracebackType

from pydantic import TypeAdapter

from fleetctl.evals.judge import Reply, Verdict, judge
from fleetctl.evals.scenario import Scenario, Suite
from fleetctl.evals.scorers import Points, points
from fleetctl.evals.tasks import Regex, Rule, Schema

LIMIT = 5.0  # seconds to judge one
_RULE: TypeAdapter[Rule] = TypeAdapter(Rule)


class Judge:
    """Judges for one run of a suite; leaving the block ends the process that helped, if there was one."""

    def __init__(self) -> None:
        self._helper: subprocess.Popen[str] | None = None

    def verdict(self, suite: Suite, scenario: Scenario, reply: Reply) -> Verdict:
        """The verdict on an answer to a scenario. Its expressions are fleetctl's own."""
        try:
            with _limited():
                return judge(suite, scenario, reply)
        except TimeoutError:
            return Verdict(scenario, reply, f"judging the answer took more than {LIMIT:g} s")

    def points(self, rule: Rule, text: str, alike: float | None = None) -> Points:
        """The points of an answer by a rule; ``alike`` is the similarity that was measured for a rule `similar`."""
        if isinstance(rule, Regex | Schema) and threading.current_thread() is not threading.main_thread():
            return self._elsewhere(rule, text)
        return points_in_time(rule, text, alike)

    def _elsewhere(self, rule: Rule, text: str) -> Points:
        if self._helper is None:
            command = [sys.executable, "-m", "fleetctl.evals.judging"]
            pipe = subprocess.PIPE
            self._helper = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        assert self._helper.stdin is not None and self._helper.stdout is not None
        try:
            print(json.dumps({"rule": rule.model_dump(), "text": text}), file=self._helper.stdin, flush=True)
            told, why = json.loads(self._helper.stdout.readline())
        except (OSError, ValueError):
            self.__exit__(None, None, None)
            return 0.0, "the process that judges answers has ended"
        return float(told), str(why)

    def __enter__(self) -> Judge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.kill()
            with helper:  # closes the pipes and waits
                pass


def points_in_time(rule: Rule, text: str, alike: float | None = None) -> Points:
    """The points of an answer, or 0 after LIMIT."""
    try:
        with _limited():
            return points(rule, text, alike)
    except TimeoutError:
        return 0.0, f"judging the answer by its rule took more than {LIMIT:g} s"


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """TimeoutError after LIMIT, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main() -> None:
    """A rule and an answer by line, and for each a line with its points and why."""
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(points_in_time(_RULE.validate_python(asked["rule"]), asked["text"])), flush=True)


if __name__ == "__main__":
    main()
