"""From what came to a score. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fleetctl.evals.judge import Reply, Verdict

SHOWN = 3  # calls of an answer that are shown


@dataclass(frozen=True)
class Outcome:
    """One question of a suite: 0 to 1 points for what came, and ``why`` it is less than 1."""

    name: str
    category: str
    points: float
    why: str = ""
    reply: Reply = field(default=Reply(), repr=False)

    @property
    def right(self) -> bool:
        """The answer has all its points."""
        return self.points >= 1


@dataclass(frozen=True)
class Score:
    """``total`` (0 to 100), and the same of each category where the suite has some."""

    total: float
    categories: dict[str, float]
    outcomes: tuple[Outcome, ...]

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """What was not right, in the order of the suite."""
        return tuple(one for one in self.outcomes if not one.right)


def score(verdicts: Iterable[Verdict]) -> Score:
    """The score of the answers to the tool-use test: the mean of its categories. ValueError for no answer."""
    told = tuple(
        Outcome(one.scenario.id, one.scenario.category, 1.0 if one.right else 0.0, one.why, one.reply)
        for one in verdicts
    )
    if not told:
        raise ValueError("no verdict")
    groups: dict[str, list[float]] = {}
    for one in told:
        groups.setdefault(one.category, []).append(one.points)
    categories = {name: 100 * sum(points) / len(points) for name, points in groups.items()}
    return Score(sum(categories.values()) / len(categories), categories, told)


def mean_score(outcomes: Sequence[Outcome]) -> Score:
    """The score of the answers to tasks: the mean of their points. ValueError for no answer."""
    if not outcomes:
        raise ValueError("no answer")
    return Score(100 * sum(one.points for one in outcomes) / len(outcomes), {}, tuple(outcomes))


def silence(outcomes: Sequence[Outcome], begins: str = "") -> str:
    """Why nothing was answered at all; empty where something was. ``begins``: only such reasons count."""
    reasons = [one.reply.wrong for one in outcomes]
    return reasons[0] if reasons and all(why and why.startswith(begins) for why in reasons) else ""


def shown(outcome: Outcome) -> str:
    """A wrong answer in one line: what was asked, what is wrong with what came, and what came."""
    reply = outcome.reply
    calls = "; ".join(f"{call.name[:80]}({call.arguments[:80]})" for call in reply.calls[:SHOWN])
    calls += f"; and {len(reply.calls) - SHOWN} more" if len(reply.calls) > SHOWN else ""
    came = calls or repr(reply.text[:80])
    return f"{outcome.name}: {outcome.why}" + (f"; it answered {came}" if reply.calls or reply.text else "")


def shown_all(failures: Sequence[Outcome]) -> list[str]:
    """A line for each wrong answer; those that failed alike without an answer (a server that refuses) share one."""
    alike: dict[str, list[Outcome]] = {}
    for one in failures:
        empty = not one.reply.calls and not one.reply.text
        alike.setdefault(one.why if empty else shown(one), []).append(one)
    return [
        shown(several[0]) if len(several) == 1 else f"{several[0].name} and {len(several) - 1} more: {why}"
        for why, several in alike.items()
    ]
