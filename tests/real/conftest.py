"""Two boxes with real vLLM on the CPU, made once for all tests here; what they measured is printed at the end."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetctl.lab.engines import bring_up, engines_folder, vllm_folder
from fleetctl.lab.lab import DEFAULT_ROOT, Lab
from fleetctl.lab.realvllm import BOX_PYTHON, installed

ROOT = Path("/var/lib/fleetctl-test-real")
GB, GIB = 10**9, 1024**3
# pip may find no build of torch for the CPU; the one with CUDA's libraries is the larger by far.
DISK_TO_INSTALL, DISK_TO_RUN = 7 * GB, 1 * GB
MEMORY = 12 * GIB

TABLE = pytest.StashKey[list[tuple[str, ...]]]()
COLUMNS = ("move", "gap s", "stop s", "load s", "overhead s", "recovery s", "requests", "failed", "held")


def why_not() -> str | None:
    """What keeps these tests from running on this machine; None where they can."""
    if platform.system() != "Linux" or os.geteuid() != 0:
        return "boxes need Linux and root"
    if not BOX_PYTHON.exists():
        return f"the engine's venv needs {BOX_PYTHON}, the Python of the boxes (Debian 12)"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if memory < MEMORY:
        return (
            f"two boxes with real vLLM need {MEMORY / GIB:.0f} GiB of memory, and this machine has {memory / GIB:.1f}"
        )
    engines = engines_folder()
    folder = next(parent for parent in (engines, *engines.parents) if parent.is_dir())
    free = shutil.disk_usage(folder).free
    need = DISK_TO_RUN if installed(vllm_folder(engines)) else DISK_TO_INSTALL
    if free < need:
        return f"real vLLM needs up to {need / GB:.0f} GB in {folder}, and {free / GB:.1f} are free"
    return None


FIRST = ("test_real_path.py", "test_real_loras.py")
"""Files whose tests run however little time there is."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They need a machine that real vLLM runs on. What may be left out where time is short comes last."""
    here = Path(__file__).parent
    reason = why_not()
    items.sort(key=lambda item: here in item.path.parents and item.path.name not in FIRST)
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.real)
            if item.path.name not in FIRST:
                item.add_marker(pytest.mark.long)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def lab(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """Two fresh boxes and their fleet.yaml. What was downloaded stays for the next run, beside the default lab."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        # The first run downloads for minutes: that has to be seen while it happens.
        with capture.global_and_fixture_disabled():
            print(f"\n{line}", end="", flush=True)

    lab = Lab(
        ROOT,
        bridge="fleetreal0",
        subnet="10.77.6.0/24",
        link_subnet="10.78.6.0/24",
        base=Path(os.environ.get("FLEETCTL_LAB_BASE") or DEFAULT_ROOT / "base"),
    )
    lab.down()
    try:
        bring_up(lab, 2, "vllm", say)
        yield lab
    finally:
        lab.down()


@pytest.fixture(scope="session")
def table(pytestconfig: pytest.Config) -> list[tuple[str, ...]]:
    """Rows for the table at the end, in the order of COLUMNS."""
    return pytestconfig.stash.setdefault(TABLE, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash.get(TABLE, [])
    if not rows:
        return
    terminalreporter.section("real vLLM on two boxes")
    widths = [max(len(row[column]) for row in [COLUMNS, *rows]) for column in range(len(COLUMNS))]
    for row in [COLUMNS, *rows]:
        first, *rest = (word.rjust(width) for word, width in zip(row, widths, strict=True))
        terminalreporter.write_line("  ".join([row[0].ljust(len(first)), *rest]))
