"""Running things that depend on each other, as many at once as the order allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

WORKERS = 32
LOOK = 0.2  # seconds between looks at ``stopped`` while things run


def run_in_order(
    after: Mapping[str, Iterable[str]],
    action: Callable[[str], None],
    *,
    stopped: Callable[[], bool] = lambda: False,
    on_failure: Callable[[], None] = lambda: None,
    keep_going: bool = False,
) -> dict[str, BaseException]:
    """Run ``action`` on every name, each once all names that it comes after are through.

    After the first failure (or once ``stopped()``) nothing new is begun unless ``keep_going``; what runs is waited
    for, after ``on_failure`` was told. Returns the failures by name. Names in ``after`` that are not keys are ignored.
    """
    waiting = {name: {before for before in befores if before in after} for name, befores in after.items()}
    failures: dict[str, BaseException] = {}
    running: dict[Future[None], str] = {}
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="step") as pool:
        while True:
            halted = stopped() or (bool(failures) and not keep_going)
            ready = [] if halted else [name for name, befores in waiting.items() if not befores]
            for name in ready:
                del waiting[name]
                running[pool.submit(action, name)] = name
            if not running:
                return failures
            done, _ = wait(running, timeout=LOOK, return_when=FIRST_COMPLETED)
            for future in done:
                name = running.pop(future)
                error = future.exception()
                if error is not None:
                    failures[name] = error
                    on_failure()
                for befores in waiting.values():
                    befores.discard(name)


def reversed_order(after: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """The same names with every dependency turned around: the order of undoing."""
    turned: dict[str, set[str]] = {name: set() for name in after}
    for name, befores in after.items():
        for before in befores:
            if before in turned:
                turned[before].add(name)
    return turned
