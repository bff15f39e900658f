"""A headless Chromium, driven over its DevTools pipe: what a page looks like, and what it says."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fleetctl.errors import LabError
from fleetctl.lab.requirements import Say, install_packages

PATIENCE = 60.0  # seconds for an answer of the browser; a busy machine is slow
NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # as root it has none
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
)

# Descriptors are moved out of each other's way first.
_START = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3])
os.dup2(read, 3); os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def chromium(say: Say) -> str:
    """Path of a Chromium, installed with apt-get where there is none. Raises LabError."""
    found = next((path for name in NAMES if (path := shutil.which(name)) is not None), None)
    if found is None:
        install_packages(["chromium", "fonts-dejavu-core"], say)
        found = shutil.which(NAMES[0])
    if found is None:
        raise LabError("there is no chromium", hint="apt-get install chromium")
    return found


class Tab:
    """One page of the browser. ``errors`` are what its scripts and its policy complained about."""

    def __init__(self, browser: _Pipe, session: str) -> None:
        self._browser, self._session = browser, session
        self.errors = browser.errors

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, params, self._session)

    def go(self, url: str) -> None:
        """Load a page."""
        told = self._call("Page.navigate", url=url)
        if "errorText" in told:
            raise LabError(f"the browser cannot load {url}: {told['errorText']}")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page. Raises LabError when it fails."""
        told = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise LabError(f"{expression}: {told['exceptionDetails']}")
        return told["result"].get("value")

    def until(self, expression: str, limit: float = PATIENCE) -> None:
        """Wait until an expression is true on the page. Raises LabError with the page's text."""
        end = time.monotonic() + limit
        while not self.evaluate(f"Boolean({expression})"):
            if time.monotonic() > end:
                text = self.evaluate("document.body.innerText")
                raise LabError(f"not so within {limit:g} s: {expression}\n{text}\n{self.errors}")
            time.sleep(0.1)

    def size(self, width: int, height: int, *, scale: float = 1, phone: bool = False) -> None:
        """The size of the window, in CSS pixels."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )

    def dark(self, wanted: bool) -> None:
        """Whether the reader prefers dark pages."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if wanted else "light"}
        self._call("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """A picture (PNG) of what is seen, or of the whole page."""
        told = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(told["data"]))


class _Pipe:
    """Messages of the DevTools protocol, each ended by a zero byte, over two pipes."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._rest = b""
        self._number = 0
        self.errors: list[str] = []

    def call(self, method: str, params: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        rest = json.dumps(message).encode() + b"\0"
        while rest:
            rest = rest[os.write(self._write, rest) :]
        while True:
            told = self._next()
            if told.get("id") == self._number:
                if "error" in told:
                    raise LabError(f"{method}: {told['error'].get('message')}")
                return dict(told["result"])
            self._hear(told)

    def _hear(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"].get("exception", {}).get("description", params)))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(str(params["entry"]["text"]))

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._read, 1 << 20) if ready else b""
            if not part:
                raise LabError("the browser does not answer" if not ready else "the browser has ended")
            self._rest += part
        line, self._rest = self._rest.split(b"\0", 1)
        return dict(json.loads(line))


@contextmanager
def browser(say: Say = lambda text: None) -> Iterator[Tab]:
    """A headless browser with one empty tab, and a profile of its own that is gone afterwards. Raises LabError."""
    program = chromium(say)
    folder = tempfile.mkdtemp(prefix="fleetctl-browser-")
    to_read, write = os.pipe()  # it reads its commands from descriptor 3 and answers on 4
    read, to_write = os.pipe()
    argv = [program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(
        [sys.executable, "-c", _START, str(to_read), str(to_write), *argv],
        pass_fds=(to_read, to_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(to_read)
    os.close(to_write)
    try:
        pipe = _Pipe(write, read)
        target = pipe.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = pipe.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            pipe.call(f"{domain}.enable", {}, session)
        yield Tab(pipe, session)
    finally:
        os.close(write)
        os.close(read)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
