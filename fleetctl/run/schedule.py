"""Running things that depend on each other, as many at once as the order allows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

WORKERS = 32
LOOK = 0.2  # seconds between looks at ``stopped`` while things run


def run_in_order(
    after: Mapping[str, Iterable[str]],
    action: Callable[[str], None],
    *,
    stopped: Callable[[], bool] = lambda: False,
    watch: Callable[[bool], None] = lambda halted: None,
    keep_going: bool = False,
) -> dict[str, BaseException]:
    """Run ``action`` on every name, each once all names that it comes after are through.

    After the first failure (unless ``keep_going``) and once ``stopped()`` nothing new is begun; the rest is waited for.
    ``watch`` is called while things run, after every end and at least every ``LOOK`` seconds; it is told whether
    nothing new will begin. Returns the failures by name. Names in ``after`` that are not keys are ignored.
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
            watch(halted)
            done, _ = wait(running, timeout=LOOK, return_when=FIRST_COMPLETED)
            for future in done:
                name = running.pop(future)
                error = future.exception()
                if error is not None:
                    failures[name] = error
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


def among(after: Mapping[str, Iterable[str]], chosen: Collection[str]) -> dict[str, set[str]]:
    """The order of the chosen names alone. Dependencies through others count: they lead to the next chosen ones."""

    def before(name: str, seen: set[str]) -> set[str]:
        found: set[str] = set()
        for earlier in set(after.get(name, ())) - seen:
            seen.add(earlier)
            found |= {earlier} if earlier in chosen else before(earlier, seen)
        return found

    return {name: before(name, set()) for name in after if name in chosen}
