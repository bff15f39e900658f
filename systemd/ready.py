#!/usr/bin/python3
"""Wait until an engine answers: ``ready.py URL`` or ``ready.py unix:PATH``, as ExecStartPost= of its unit.

Ends with 0 when URL, or /health through the Unix socket PATH, answers 200, and with 1 when the engine's process
(MAINPID) is gone. There is no time limit here: TimeoutStartSec= of the unit is the one.
"""

import http.client
import os
import socket
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
    if url.startswith("unix:"):
        return healthy(url[len("unix:") :])
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as response:
            return response.status == 200
    except (OSError, ValueError):
        return False


def healthy(path):
    """The same of /health through a Unix socket."""
    connection = http.client.HTTPConnection("localhost", timeout=2)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.settimeout(2)
        connection.sock.connect(path)
        connection.request("GET", "/health", headers={"Connection": "close"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


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
