#!/usr/bin/python3
"""Wait until an engine answers: ``ready.py URL``, as ExecStartPost= of its unit.

Ends with 0 when URL answers 200, and with 1 when the engine's process (MAINPID) is gone. There is no time limit here:
TimeoutStartSec= of the unit is the one.
"""

import os
import sys
import time
import urllib.request

PAUSE = 0.1  # seconds between two questions


def alive(pid):
    """Whether the process still runs; a zombie does not."""
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def answers(url):
    """Whether a GET answers 200 within two seconds, asked of the address itself and of no proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as response:
            return response.status == 200
    except (OSError, ValueError):
        return False


def main(url):
    pid = int(os.environ.get("MAINPID", "0"))
    start = time.monotonic()
    while True:
        answered = answers(url)
        if pid and not alive(pid):
            print("the engine (process %d) ended before %s answered" % (pid, url), file=sys.stderr)
            return 1
        if answered:
            print("%s answers after %.1f s" % (url, time.monotonic() - start))
            return 0
        time.sleep(PAUSE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
