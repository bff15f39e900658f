"""Whether the memory of the box runs short. Pure."""

from typing import List, Tuple

from fleetctl.guard.seen import Memory, Settings

GIB = 1024**3
HORIZON = 6.0  # seconds that it takes until an engine is out of the proxy, its requests have finished and it is gone
WINDOW = 6.0  # seconds over which the fall of available memory is measured
PRESSED = 3  # looks in a row with high pressure: one may be chance
CALM = 3  # looks in a row with enough memory until the shortage counts as over
SWAP_LEFT = 0.1  # share of the swap that is left when it counts as full (earlyoom's and systemd-oomd's own figure)


class Shortage:
    """Follows the memory from look to look. ``why`` says in words what is short; empty: nothing is."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen: List[Tuple[float, int]] = []
        self._pressed = 0
        self._enough = 0
        self.why = ""
        self.falling = 0.0
        """Bytes per second that available memory loses; never below 0."""

    def see(self, now: float, memory: Memory) -> None:
        """Take one look into account."""
        self._seen = [(at, size) for at, size in self._seen if now - WINDOW <= at < now] + [(now, memory.available)]
        first_at, first = self._seen[0]
        self.falling = max(0.0, (first - memory.available) / (now - first_at)) if now > first_at else 0.0
        pressed = memory.pressure is not None and memory.pressure >= self._settings.pressure
        self._pressed = self._pressed + 1 if pressed else 0
        why = self._found(memory)
        if why:
            self.why, self._enough = why, 0
            return
        # The mark at which a shortage ends is higher than the one at which it begins, so that it does not flap.
        over = memory.available >= self._settings.memory_high
        self._enough = self._enough + 1 if over else 0
        if self._enough >= CALM:
            self.why = ""

    def _found(self, memory: Memory) -> str:
        marks = self._settings
        if memory.available < marks.memory_low:
            return "%s available, less than %s" % (_gib(memory.available), _gib(marks.memory_low))
        # An engine that loads takes memory as fast as this too: with plenty left that is no shortage.
        if memory.available < marks.memory_high and self.seconds_left(memory) < HORIZON:
            return "%s available and falling by %s a second" % (_gib(memory.available), _gib(self.falling))
        # With plenty available it is the pressure of a service that has a limit of its own: no engine could help it.
        if self._pressed >= PRESSED and memory.available < marks.memory_high:
            told = (memory.pressure or 0, _gib(memory.available), _gib(marks.memory_high))
            return "tasks stand still %.0f %% of the time, and %s available, less than %s" % told
        full = memory.swap_total > 0 and memory.swap_free < SWAP_LEFT * memory.swap_total
        if full and memory.available < marks.memory_high:
            return "swap is full and %s available, less than %s" % (_gib(memory.available), _gib(marks.memory_high))
        return ""

    def seconds_left(self, memory: Memory) -> float:
        """Until available memory reaches the mark from which on nothing is waited for, if it goes on like this."""
        above = memory.available - self._settings.memory_hard
        if above <= 0:
            return 0.0
        return above / self.falling if self.falling > 0 else float("inf")

    def enough(self) -> bool:
        """There has been enough for some time."""
        return not self.why and self._enough >= CALM


def _gib(size: float) -> str:
    return "%.2f GiB" % (size / GIB)
