"""Log lines in vLLM 0.32's form, on standard output; tracebacks and uvicorn's lines on standard error."""

import os
import sys
import time

process_name = "APIServer"


def log_to(name: str) -> None:
    """Set the process name that starts this process's log lines (`APIServer`, `EngineCore`, …)."""
    global process_name
    process_name = name


def log(level: str, source: str, message: str) -> None:
    """Write one line: `(EngineCore pid=7) INFO 11-30 07:10:02 [core.py:133] message`."""
    when = time.strftime("%m-%d %H:%M:%S")
    prefix = f"({process_name} pid={os.getpid()}) {level} {when} [{source}] "
    write(sys.stdout, "".join(f"{prefix}{line}\n" for line in message.split("\n")))


def info(source: str, message: str) -> None:
    """Write an INFO line; `source` is vLLM's file and line, such as `core.py:133`."""
    log("INFO", source, message)


def error(source: str, message: str) -> None:
    """Write an ERROR line."""
    log("ERROR", source, message)


def plain(message: str) -> None:
    """Write a line as uvicorn and torch do: on standard error, with no vLLM prefix."""
    write(sys.stderr, message + "\n")


def access(client: str, request: str, status: int, phrase: str) -> None:
    """Write uvicorn's access line, on standard output."""
    write(sys.stdout, f'INFO:     {client} - "{request}" {status} {phrase}\n')


def traceback(frames: list[str], final: str, source: str | None = None) -> None:
    """Write a Python traceback with the given `file line function` frames and last lines.

    With `source` it is logged line by line as an ERROR, as the engine core logs its own failures;
    without, it goes to standard error as an uncaught exception does.
    """
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        path, line, function = frame.split()
        lines.append(f'  File "/opt/vllm/lib/python3.11/site-packages/{path}", line {line}, in {function}')
    text = "\n".join([*lines, final])
    if source:
        error(source, text)
    else:
        plain(text)


def write(stream: object, text: str) -> None:
    """One write per message, so that lines of several processes do not mix."""
    descriptor = 1 if stream is sys.stdout else 2
    try:
        os.write(descriptor, text.encode())
    except OSError:
        # A closed or full log pipe must not take the engine down, as Python's logging would not.
        return
