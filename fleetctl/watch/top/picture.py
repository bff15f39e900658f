"""A picture of the screen as SVG, from samples."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fleetctl.facts.assess import Assessment
from fleetctl.watch.sample import Sample
from fleetctl.watch.top.app import Judged, Sampled, Top


def picture(
    samples: Sequence[Sample],
    found: Assessment | None = None,
    *,
    size: tuple[int, int] = (120, 32),
    title: str = "fleetctl top",
    interval: float = 2.0,
) -> str:
    """SVG of the screen (``size``: columns and lines) after these samples, the last of which is what it shows."""
    return asyncio.run(_drawn(samples, found, size, title, interval))


async def _drawn(
    samples: Sequence[Sample], found: Assessment | None, size: tuple[int, int], title: str, interval: float
) -> str:
    app = Top(lambda: samples[0], interval=interval, live=False)
    async with app.run_test(size=size) as pilot:
        if found is not None:
            app.post_message(Judged(found))
        for sample in samples:
            app.post_message(Sampled(sample))
        await pilot.pause()
        return app.export_screenshot(title=title)
