#!/usr/bin/python3
"""Run a container in the foreground, and end when its first process is gone, whatever becomes of Podman.

    contained.py PIDFILE podman run --pidfile PIDFILE …

`podman run` hears of the container's end from conmon. Where that was killed it hears nothing more, and its unit would
stay active without an engine, and would not start it again. Signals are handed on to `podman run`, which hands them on
to the engine; the exit status is that of `podman run`, and 1 for a container whose end it missed.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time

LOOK = 1.0  # seconds between two looks at the container's process
GRACE = 5.0  # seconds that `podman run` has to end after it
HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def started(pid):
    """When a process was started, in ticks of the kernel; None for one that has ended."""
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


def process_of(pidfile):
    """Process that the file names and when it was started, once it is there."""
    try:
        with open(pidfile, encoding="utf-8") as source:
            pid = int(source.read())
    except (OSError, ValueError):
        return None
    begin = started(pid)
    return (pid, begin) if begin is not None else None


def watch(child, pidfile):
    """Until `podman run` ends; its exit status. Where the container ended and it did not, it is killed."""
    container, gone_since = None, None
    while child.poll() is None:
        caught = signal.sigtimedwait((signal.SIGCHLD, *HANDED_ON), LOOK)
        if caught is not None and caught.si_signo in HANDED_ON:
            child.send_signal(caught.si_signo)
        container = container or process_of(pidfile)
        if container is None or started(container[0]) == container[1]:
            continue
        gone_since = gone_since or time.monotonic()
        if time.monotonic() - gone_since > GRACE:
            text = "the container's process (%d) has ended and podman does not know: was its conmon killed?"
            print(text % container[0], file=sys.stderr)
            child.kill()
            child.wait()
            return 1
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def forget(pidfile):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(pidfile)


def main(pidfile, command):
    forget(pidfile)
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD, *HANDED_ON))
    with_usual = lambda: signal.pthread_sigmask(signal.SIG_SETMASK, usual)  # noqa: E731
    try:
        return watch(subprocess.Popen(command, preexec_fn=with_usual), pidfile)
    finally:
        forget(pidfile)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
