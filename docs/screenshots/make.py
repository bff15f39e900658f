"""Makes the pictures in this folder, from what a real fleet said while it was recorded.

    python docs/screenshots/make.py                              # the pictures, from recorded.json
    python docs/screenshots/make.py --record fleet.yaml [120]    # record a fleet first, for so many seconds

The web page is drawn by headless Chromium (installed with apt-get where it is missing), top by textual itself.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fleetctl.lab.browser import browser
from fleetctl.watch.feed import Feed
from fleetctl.watch.page import Page
from fleetctl.watch.sample import Sample

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "recorded.json"
EVERY = 2.0


def record(fleet: Path, seconds: float) -> None:
    """Write down what a fleet says, and what its status is at the end."""
    from fleetctl.cli.session import open_fleet
    from fleetctl.run.watching import Watched

    samples = []
    with (
        open_fleet(fleet, accept_new=False, ssh_config=None, partly=True) as subject,
        Watched(subject) as watched,
    ):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            samples.append(asdict(watched.sample()))
            time.sleep(EVERY)
        state = watched.state()
    RECORDED.write_text(json.dumps({"state": state, "samples": samples}) + "\n")
    print(f"{len(samples)} samples are in {RECORDED}")


def recorded() -> tuple[list[Sample], dict[str, Any]]:
    """The samples that were recorded, and the state."""
    document = json.loads(RECORDED.read_text())
    return TypeAdapter(list[Sample]).validate_python(document["samples"]), document["state"]


@contextmanager
def replayed(samples: list[Sample], state: dict[str, Any]) -> Iterator[str]:
    """The page, at the end of what was recorded; its address."""
    rest = iter(samples)
    over = threading.Event()

    def sample() -> Sample:
        one = next(rest, None)
        if one is None:
            over.set()
        return one or samples[-1]

    feed = Feed(sample, lambda: state, every=0.01, state_every=1)
    page = Page(("127.0.0.1", 0), feed)
    threading.Thread(target=page.serve_forever, daemon=True).start()
    with feed.viewer():
        over.wait(30)
        yield f"http://127.0.0.1:{page.server_port}/"
    feed.close()
    page.shutdown()
    page.server_close()


def web(samples: list[Sample], state: dict[str, Any]) -> None:
    """web.png on a desk, in light colours; web-phone.png in dark ones."""
    with replayed(samples, state) as url, browser(print) as tab:
        tab.size(1120, 800)
        tab.go(url)
        tab.until("document.querySelector('#wrong li') && document.querySelector('#copies tr')")
        tab.screenshot(HERE / "web.png", whole=True)
        tab.size(390, 844, scale=2, phone=True)
        tab.dark(True)
        tab.screenshot(HERE / "web-phone.png")


def top(samples: list[Sample], state: dict[str, Any]) -> None:
    """top.svg: the same samples as `fleetctl top` shows them."""
    from fleetctl.facts.assess import Assessment
    from fleetctl.watch.top.picture import picture

    found = {key: state[key] for key in Assessment.__dataclass_fields__}
    drawn = picture(samples, TypeAdapter(Assessment).validate_python(found), title="fleetctl top")
    # Fonts from elsewhere are not fetched; every line has its length, whatever the font.
    (HERE / "top.svg").write_text(re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL))


def main(words: list[str]) -> None:
    """Record, if that is wanted, and make all pictures."""
    if words[:1] == ["--record"]:
        record(Path(words[1]), float(words[2]) if len(words) > 2 else 120.0)
    samples, state = recorded()
    web(samples, state)
    top(samples, state)


if __name__ == "__main__":
    main(sys.argv[1:])
