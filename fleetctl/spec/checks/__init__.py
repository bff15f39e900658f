"""Rules that hold between the parts of a fleet.yaml, checked on the tree so that they are told with everything else.

Each check is a function from a :class:`~fleetctl.spec.checks.view.View` to problems; the first line of its docstring is
the rule, and the reference prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fleetctl.spec.checks import boxes, bridge, firewall, gates, guard, layouts, models, pool, proxy
from fleetctl.spec.checks.view import View
from fleetctl.spec.problems import Problem
from fleetctl.spec.tree import Tree

Check = Callable[[View], Iterator[Problem]]

CHECKS: tuple[Check, ...] = (
    *boxes.CHECKS,
    *models.CHECKS,
    *layouts.CHECKS,
    *proxy.CHECKS,
    *bridge.CHECKS,
    *firewall.CHECKS,
    *gates.CHECKS,
    *guard.CHECKS,
    *pool.CHECKS,
)


def check(tree: Tree) -> list[Problem]:
    """Problems of every check, in no particular order."""
    view = View(tree)
    return [problem for rule in CHECKS for problem in rule(view)]
