"""Traffic that was there, to be sent again: when requests came and how long their answers were, and nothing else.

The file is JSON lines: a head, and a list for each request, ``[seconds from the begin, tokens of the answer]``. The
proxy's log has bytes, not tokens; what a token takes of a stream, and of an answer in one piece, is about the same for
all engines. It does not have the lengths of prompts at all: those come from a mix.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleetctl.bench.exchange import Request
from fleetctl.bench.prompts import Prompts
from fleetctl.errors import SpecError

FORMAT = "fleetctl bench recording 1"
STREAMED_TOKEN = 210.0  # bytes of the event that one token comes in, of a stream of vLLM
WHOLE_TOKEN = 4.5  # bytes of a token of an answer in one piece
ENVELOPE = 400.0  # bytes of headers, and of JSON around an answer
STREAMED = 0.7  # an answer whose first byte came before this share of its time was streamed
_MOST_TOKENS = 100_000


@dataclass(frozen=True)
class Recording:
    """Requests as (seconds from the begin, tokens of the answer), in order, and how long they were recorded."""

    arrivals: tuple[tuple[float, int], ...]
    seconds: float


def answer_tokens(size: int, first_byte_ms: int, total_ms: int) -> int:
    """About how many tokens an answer of so many bytes had."""
    streamed = 0 <= first_byte_ms < STREAMED * total_ms
    tokens = (size - ENVELOPE) / (STREAMED_TOKEN if streamed else WHOLE_TOKEN)
    return min(_MOST_TOKENS, max(1, round(tokens)))


def write_recording(file: Path, recording: Recording) -> None:
    """Write the file."""
    head = {"format": FORMAT, "seconds": round(recording.seconds, 3), "requests": len(recording.arrivals)}
    lines = [json.dumps(head), *(json.dumps([round(at, 3), tokens]) for at, tokens in recording.arrivals)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_recording(file: Path) -> Recording:
    """Read a file. Raises SpecError, with the line, for what is no recording."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read {file}: {error}") from error
    try:
        head = json.loads(lines[0]) if lines else None
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            raise ValueError
        seconds = float(head["seconds"])
    except (ValueError, TypeError, KeyError):
        raise SpecError(f"{file} is no recording", hint="`fleetctl bench record FILE` makes one") from None
    arrivals = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            at, tokens = json.loads(line)
            if not (0 <= float(at) <= 1e8 and 1 <= int(tokens) <= _MOST_TOKENS):
                raise ValueError
        except (ValueError, TypeError):
            raise SpecError(f"{file}:{number}: a line is [seconds, tokens], such as [1.25, 80]") from None
        arrivals.append((float(at), int(tokens)))
    if not arrivals:
        raise SpecError(f"{file} has no requests")
    arrivals.sort()
    return Recording(tuple(arrivals), max(seconds, arrivals[-1][0]))


def replayed(recording: Recording, prompts: Prompts, faster: float = 1.0) -> Iterator[tuple[float, Request]]:
    """The requests of a recording, ``faster`` times as fast, with prompts of a mix."""
    for at, tokens in recording.arrivals:
        yield at / faster, prompts.answering(tokens)


def from_log(requests: Sequence[Sequence[int]]) -> Recording:
    """A recording of answered requests as `fleetctl.onbox.proxyrequests` tells of them."""
    good = [(began, size, first, ended - began) for _, began, ended, first, size, status in requests if status == 200]
    if not good:
        return Recording((), 0.0)
    start = min(began for began, *_ in good)
    end = max(began + took for began, _, _, took in good)
    arrivals = sorted(((began - start) / 1000, answer_tokens(size, first, took)) for began, size, first, took in good)
    return Recording(tuple(arrivals), (end - start) / 1000)
