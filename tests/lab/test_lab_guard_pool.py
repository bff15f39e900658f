"""The guard on a box of a pool: memory that runs short there, and an engine of the pool that hangs."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from moving import Moving, eventually
from test_lab_guard import SETTINGS, did, said, status
from test_lab_pool import ENGINE, OTHER, PASSWORDS, ask, with_pool

MEMINFO = "/run/lab-meminfo"
DROP_IN = "/run/systemd/system/fleetctl-guard.service.d/lab.conf"


def _pooled(document: dict[str, Any]) -> None:
    with_pool(document)
    document["guard"] = SETTINGS


def _available(moving: Moving, mebibytes: int) -> None:
    """What the guard of box2 sees: a box of the lab has the host's memory."""
    text = f"MemTotal: {8 << 20} kB\nMemAvailable: {mebibytes << 10} kB\n"
    moving.put("box2", MEMINFO + ".new", text)
    moving.sh("box2", f"mv {MEMINFO}.new {MEMINFO}")


def test_what_is_idle_goes_first_comes_back_when_asked_for_and_what_hangs_is_started_again(moving: Moving) -> None:
    text = moving.changed(_pooled)
    moving.cutover("pool", text=text, env=PASSWORDS)
    _available(moving, 4096)
    moving.put("box2", DROP_IN, f"[Service]\nEnvironment=FLEETCTL_GUARD_MEMINFO={MEMINFO}\n")
    moving.sh("box2", "systemctl daemon-reload && systemctl restart fleetctl-guard")
    assert ask(moving, "other").status_code == 200
    eventually(lambda: moving.unit("box2", OTHER)[0] == "active")
    time.sleep(3)  # until the guard has heard that it is loaded: it asks the worker once a second

    _available(moving, 100)
    eventually(lambda: moving.unit("box2", OTHER)[0] == "inactive", lambda: said(moving, "box2"))
    assert moving.unit("box2", ENGINE)[0] == "active", "it is pinned"
    _available(moving, 200)
    assert "what is idle goes" in said(moving, "box2") and did(moving, "box2") == []
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, moving, "other")
        assert ask(moving, "standin").status_code == 200, "others go on"
        assert moving.unit("box2", OTHER)[0] == "inactive" and not asked.done()
        _available(moving, 4096)
        assert asked.result().status_code == 200, "it has waited in the queue"
    eventually(lambda: "the pool has its memory again" in said(moving, "box2"), lambda: said(moving, "box2"))

    moving.sh("box2", f"systemctl kill --kill-whom=all --signal=SIGSTOP {OTHER}")
    assert ask(moving, "other").status_code == 200, said(moving, "box2")
    assert did(moving, "box2") == ["kill"]
    assert "it hangs" in said(moving, "box2")
    assert status(moving, text)["box2"]["status"]["pool"]["out"] == {}
