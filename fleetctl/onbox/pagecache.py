"""Dropping the page cache, on boxes whose GPU shares the memory: CUDA does not count what it holds as free."""

import time
from typing import Any, Dict

from fleetctl.onbox.main import Call, op
from fleetctl.onbox.waits import GIB, meminfo

DROP = "/proc/sys/vm/drop_caches"
CLEAN_PAGES = "1\n"  # neither dentries nor inodes, and nothing that is not on the disk yet


@op("drop_page_cache")
def drop_page_cache(call: Call, need: int, drop: str = DROP) -> Dict[str, Any]:
    """Drop it when less than ``need`` bytes are free and dropping can help; never fails.

    ``free`` and ``after`` are MemFree before and afterwards, in bytes. ``dropped`` says whether it was; ``why`` says
    why not: enough is free, processes hold the memory and not the cache, or this box does not let it be dropped.
    """
    start = time.monotonic()
    before = meminfo()
    free, available = before["MemFree"], before["MemAvailable"]
    told: Dict[str, Any] = {"free": free, "after": free, "dropped": False}
    if free >= need:
        return dict(told, why="%.1f GiB are free" % (free / GIB))
    if available < need:
        return dict(told, why="only %.1f GiB could be free: it is not the page cache" % (available / GIB))
    try:
        with open(drop, "w") as target:
            target.write(CLEAN_PAGES)
    except OSError as error:
        return dict(told, why="%s cannot be written: %s" % (drop, error.strerror or error))
    return dict(told, dropped=True, why="", after=meminfo()["MemFree"], waited=round(time.monotonic() - start, 2))
