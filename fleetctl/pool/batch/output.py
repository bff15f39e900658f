"""The files of a finished job, in OpenAI's output format: answers in the order of the input, errors beside them.

Answers come in any order and may be more than memory takes, so they lie in a file without a name until all are there.
Each file appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from fleetctl.errors import SpecError
from fleetctl.pool.batch.results import Answer


@dataclass(frozen=True)
class Written:
    """What was written where."""

    output: Path
    answered: int
    errors: Path
    failed: int


class Spool:
    """Answers of one job as they come; ``names`` has the custom_id of each line.

    A context: what it keeps is gone with it.
    """

    def __init__(self, folder: Path, job: str, names: Mapping[int, str]) -> None:
        self._job, self._names = job, names
        self._places: dict[int, tuple[int, int, bool]] = {}
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __contains__(self, line: int) -> bool:
        return line in self._places

    def __len__(self) -> int:
        return len(self._places)

    def keep(self, answer: Answer) -> bool:
        """Keep one answer. False when it is not the first to its line, which counts, or the job has no such line."""
        if answer.line in self._places or answer.line not in self._names:
            return False
        row = _row(row_of(self._job, answer, self._names[answer.line]))
        start = self._file.seek(0, os.SEEK_END)
        self._file.write(row)
        self._places[answer.line] = (start, len(row), answer.failed)
        return True

    @property
    def missing(self) -> list[int]:
        """Lines whose answers are not there, the first ones first."""
        return sorted(set(self._names) - set(self._places))

    def answers(self) -> Iterator[bytes]:
        """Rows of the output, in the order of the names."""
        for line in self._names:
            start, length, failed = self._places.get(line, (0, 0, True))
            if not failed:
                yield self._row_at(start, length)

    def errors(self, *, cancelled: bool) -> Iterator[bytes]:
        """Rows of the errors, in the order of the names; ``cancelled``: with those that will never be answered."""
        for line, name in self._names.items():
            if line not in self._places:
                if cancelled:
                    yield unanswered(self._job, line, name)
                continue
            start, length, failed = self._places[line]
            if failed:
                yield self._row_at(start, length)

    def _row_at(self, start: int, length: int) -> bytes:
        self._file.seek(start)
        return self._file.read(length)


def row_of(job: str, answer: Answer, custom_id: str) -> dict[str, Any]:
    """A line of the output or of the errors."""
    name = f"{job}.{answer.line}"
    response = {"status_code": answer.status, "request_id": name, "body": _body(answer)}
    return {"id": name, "custom_id": custom_id, "response": response, "error": None}


def _body(answer: Answer) -> Any:
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(answer.body)
    return answer.body.decode("utf-8", "replace")


def unanswered(job: str, line: int, custom_id: str) -> bytes:
    """A line of the errors for a request that was cancelled before anybody took it."""
    error = {"code": "batch_cancelled", "message": "the job was cancelled before this request was worked on"}
    return _row({"id": f"{job}.{line}", "custom_id": custom_id, "response": None, "error": error})


def _row(row: dict[str, Any]) -> bytes:
    # Halves of surrogate pairs, which JSON can escape and UTF-8 cannot have, stay escaped.
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def paths(source: str, out: Path | None) -> tuple[Path, Path]:
    """Where answers and errors go: beside each other, named after ``out`` or, without one, after the job's file.

    Raises SpecError where a file could not be made there.
    """
    output = out if out is not None else Path(f"{_stem(source)}.output.jsonl")
    errors = output.with_name(f"{_stem(output.name).removesuffix('.output')}.errors.jsonl")
    if output.is_dir():
        raise SpecError(f"{output} is a folder; --out names a file")
    if not output.parent.is_dir():
        raise SpecError(f"{output.parent} is no folder to write {output.name} in")
    if not os.access(output.parent, os.W_OK):
        raise SpecError(f"nothing can be written in {output.parent}")
    return output, errors


def _stem(name: str) -> str:
    return name.removesuffix(".jsonl").removesuffix(".json") or "batch"


def write(spool: Spool, where: tuple[Path, Path], *, cancelled: bool) -> Written:
    """Write both files. One for errors is left out where there are none and none is there from before."""
    output, errors = where
    answered = _write(output, spool.answers())
    failed = _write(errors, spool.errors(cancelled=cancelled), only_if_any=not errors.exists())
    return Written(output, answered, errors, failed)


def _write(path: Path, rows: Iterator[bytes], *, only_if_any: bool = False) -> int:
    """Write a file so that it is there whole or as it was; returns its lines."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    count = 0
    try:
        with beside.open("xb") as file:
            for row in rows:
                file.write(row)
                count += 1
            file.flush()
            os.fsync(file.fileno())
        if count or not only_if_any:
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return count
